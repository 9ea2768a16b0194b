# SPDX-License-Identifier: Apache-2.0
"""The captured graph as text IR."""
