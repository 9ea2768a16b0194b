# SPDX-License-Identifier: Apache-2.0
"""Virtual IPUs for Lightning: ``accelerator="ipu"``. Importing it loads nothing else: torch
starts ``_hook`` by itself, see docs/lightning.md."""
