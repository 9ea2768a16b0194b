# SPDX-License-Identifier: Apache-2.0
"""Ops that `poptorch.custom_op` reaches: `registry` those of the user's libraries, `named` those
that PopART and PopTorch ship, written in ATen."""
