# SPDX-License-Identifier: Apache-2.0
"""The version of the API that programs see, as ``major.minor.point-snapshot``."""

# The PopTorch release whose behaviour is followed, then the version of this project.
__version__ = "3.4.0-tessera0.1.0"
