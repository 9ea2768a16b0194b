# SPDX-License-Identifier: Apache-2.0
"""From a model, its options and its optimizer to a program."""
