# SPDX-License-Identifier: Apache-2.0
"""How much tile memory an op may use: said of its result, found from there."""

import torch
import torch.fx

from poptorch.capture import _torch_private as private
from poptorch.capture import state

# Ops that plan temporary memory on an IPU.
_TUNABLE = frozenset(
    """
    mm bmm addmm baddbmm addbmm addmv mv dot matmul linear convolution embedding _embedding_bag
    index index_select index_put index_put_ _index_put_impl_ gather scatter scatter_add
    scatter_reduce index_add lstm_layer gru_layer rnn_layer sdpa
    """.split()
)
_FREE = frozenset("view _unsafe_view reshape t transpose permute expand unsqueeze squeeze".split())
_REACH = 2  # ops between the result and the op that is meant, views not counted


def _name(node: torch.fx.Node) -> str:
    target = node.target
    return target.__name__.split(".")[0] if isinstance(target, torch._ops.OpOverload) else ""


def set_memory(tensor: torch.Tensor, proportion: float) -> bool:
    """Notes the proportion at the op that made a captured tensor; False if there is none."""
    if state.current() is None:
        return False
    ops: list[torch.fx.Node] = [private.node_of(tensor, private.running_tracer())]
    for _ in range(_REACH + 1):
        before: list[torch.fx.Node] = []
        for node in ops:  # grows while views are looked through
            name = _name(node)
            if name in _TUNABLE:
                tag = node.meta["custom"]["tag"]
                node.meta["custom"] = {"tag": tag._replace(memory=proportion)}
                return True
            # getitem of an op with several results counts as a view
            look_through = name in _FREE or not isinstance(node.target, torch._ops.OpOverload)
            (ops if look_through else before).extend(node.all_input_nodes)
        ops = before
    return False
