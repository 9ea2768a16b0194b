# SPDX-License-Identifier: Apache-2.0
"""The optimizer of a program: one row per algorithm."""
