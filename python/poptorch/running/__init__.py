# SPDX-License-Identifier: Apache-2.0
"""Calls of a compiled program: arguments in, results out."""
