# SPDX-License-Identifier: Apache-2.0
"""What `poptorch.DataLoader` is made of: worker processes and their shared memory."""
