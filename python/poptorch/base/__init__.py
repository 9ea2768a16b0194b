# SPDX-License-Identifier: Apache-2.0
"""What every room uses: errors, the logger, memory of tensors, progress."""
