# SPDX-License-Identifier: Apache-2.0
"""Sources that are loaded once per flavour of Lightning, under names inside its own packages; their
relative imports are those packages'. Nothing imports this package itself."""
