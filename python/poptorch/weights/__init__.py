# SPDX-License-Identifier: Apache-2.0
"""The state of a model between the host's tensors and the program."""
