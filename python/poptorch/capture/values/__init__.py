# SPDX-License-Identifier: Apache-2.0
"""Values of tensors while a model is captured, where all tensors are fake.

Known: `constants` are made from Python data alone. Read: `frozen` answers when Python reads a value
that depends on data; `replay` computes it from the graph recorded so far. Followed: where eager
reads a value, `follow` and `dynamic_index` compute with the tensor instead; `affine` says by how
much two integers differ, `ragged` keeps labels whose number is not known.
"""
