# SPDX-License-Identifier: Apache-2.0
"""Every op of a captured model lies on the IPU of its block, and its backward with it."""

import re

import ir_interpreter as interpreter
import poptorch
import torch
from poptorch.capture import capture
from poptorch.ops.blocks import placing
from torch import nn
from torch.nn import functional as F


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8))
        self.second = nn.Sequential(nn.Linear(8, 3), nn.GELU())

    def forward(self, x, y):
        with poptorch.Block("one", ipu_id=0):
            x = self.first(x)
        with poptorch.Block("two", ipu_id=1):
            return F.mse_loss(self.second(x), y)


def text_of(model, *args):
    with placing(poptorch.PipelinedExecution()):
        return capture(model, args, {}, training=True, rows=interpreter.rows(), name="t").text


def test_gradients_are_made_where_their_forward_ran():
    text = text_of(Two(), torch.ones(2, 4), torch.ones(2, 3))
    place = dict(re.findall(r'^loc !(\d+) ".*" \d+ ".*" ((?:fwd|bwd) \d+)', text, re.M))
    line_of = {}
    for row in re.findall(r"^  (.+?) = .*!(\d+)$", text, re.M):
        line_of.update((v.strip(), place[row[1]]) for v in row[0].split(","))
    names = dict(re.findall(r'^  param (%\d+) "(.*?)"', text, re.M))
    grads = re.findall(r"^  grad (%\d+) (%\d+)", text, re.M)
    assert len(grads) == 6
    for param, value in grads:
        assert line_of[value] == ("bwd 0" if names[param].startswith("first") else "bwd 1")
    assert set(place.values()) == {"fwd 0", "bwd 0", "fwd 1", "bwd 1"}
