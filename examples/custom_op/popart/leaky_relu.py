# SPDX-License-Identifier: Apache-2.0
"""An op written against PopART's headers, built by its Makefile and trained with.

Run ``eval "$(python -m poptorch.custom_op_env)" && make`` in this folder first.
"""

import ctypes
import pathlib

import poptorch
import torch

ctypes.cdll.LoadLibrary(str(pathlib.Path(__file__).parent / "leaky_relu.so"))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (out,) = poptorch.custom_op(
            [self.layer(x)],
            "LeakyRelu",
            "custom.ops",
            1,
            example_outputs=[y],
            attributes={"alpha": 0.02},
        )
        return out, torch.nn.functional.mse_loss(out, y)


torch.manual_seed(0)
model = Model()
step = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
x = torch.randn(64, 8)
y = torch.nn.functional.leaky_relu(x.sum(1, keepdim=True), 0.02)
losses = [step(x, y)[1].item() for _ in range(20)]
assert losses[-1] < losses[0] / 4, losses
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
