# SPDX-License-Identifier: Apache-2.0
"""Random models made of supported ops: the compiled program equals eager, forward and backward."""

import copy

import poptorch
import pytest
import torch
from tolerances import assert_pass_close
from torch import nn
from torch.nn import functional as F


class RandomModel(nn.Module):
    """Random steps on a pool of [B, T, D] tensors; smooth ops only, so gradients compare."""

    def __init__(self, seed, steps=14, b=4, t=6, d=8):
        super().__init__()
        self.plan = []
        gen = torch.Generator().manual_seed(seed)
        self.linears = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.norm = nn.LayerNorm(d)
        self.scale = nn.Parameter(torch.randn(d, generator=gen))
        self.conv = nn.Conv1d(t, t, 3, padding=1)
        self.b, self.t, self.d = b, t, d
        names = sorted(n for n in dir(self) if n.startswith("op_"))
        for _ in range(steps):
            op = names[int(torch.randint(len(names), (1,), generator=gen))]
            picks = torch.randint(0, 1 << 30, (3,), generator=gen).tolist()
            self.plan.append((op, picks))

    def op_linear(self, x, y, k):
        return self.linears[k % 3](x)

    def op_gelu(self, x, y, k):
        return F.gelu(x, approximate="tanh" if k % 2 else "none")

    def op_residual(self, x, y, k):
        return x + torch.tanh(y) * 0.5

    def op_gate(self, x, y, k):
        return torch.sigmoid(x) * y

    def op_norm(self, x, y, k):
        return self.norm(x)

    def op_softmax(self, x, y, k):
        return torch.softmax(x, dim=k % 3) + (F.log_softmax(y, -1) * 0.1)

    def op_transpose(self, x, y, k):
        return x.reshape(self.b, self.d, self.t).transpose(1, 2) * y

    def op_attention(self, x, y, k):
        heads = [v.reshape(self.b, self.t, 2, self.d // 2).transpose(1, 2) for v in (x, y, x + y)]
        out = F.scaled_dot_product_attention(*heads, is_causal=bool(k % 2))
        return out.transpose(1, 2).reshape(self.b, self.t, self.d)

    def op_reduce(self, x, y, k):
        return x - x.mean(dim=k % 3, keepdim=True) + y.sum(dim=(k + 1) % 3, keepdim=True) * 0.05

    def op_slice(self, x, y, k):
        return torch.cat([x[:, : self.t // 2], y[:, self.t // 2 :]], dim=1)

    def op_where(self, x, y, k):
        return torch.where(x.detach() > 0, x, y * 0.3)

    def op_matmul(self, x, y, k):
        return torch.bmm(x @ y.transpose(1, 2), y) * 0.05

    def op_scale(self, x, y, k):
        return x * self.scale + y.exp().clamp(max=3.0) * 0.1

    def op_conv(self, x, y, k):
        return F.silu(self.conv(x))

    def op_expand(self, x, y, k):
        return x[:, :1].expand(-1, self.t, -1) * 0.5 + y

    def op_loop_pad(self, x, y, k):
        return F.pad(x[..., 1:], (0, 1), value=0.25) + y.flip(0) * 0.0 + y

    def forward(self, x, y):
        pool = [x, y]
        for op, (i, j, k) in self.plan:
            out = getattr(self, op)(pool[i % len(pool)], pool[j % len(pool)], k)
            pool.append(out / (1.0 + out.detach().abs().amax()))
        result = torch.stack(pool[-3:]).sum(0)
        return result, (result**2).mean()


class Marked(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        out, loss = self.model(x, y)
        return out, poptorch.identity_loss(loss, reduction="none")


def options():
    return poptorch.Options().showCompilationProgressBar(False)


@pytest.mark.parametrize("seed", range(24))
def test_compiled_equals_eager(seed):
    torch.manual_seed(seed)
    model = Marked(RandomModel(seed))
    eager = copy.deepcopy(model)
    x, y = torch.randn(4, 6, 8), torch.randn(4, 6, 8)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    executor = poptorch.trainingModel(
        model, options=options(), optimizer=poptorch.optim.SGD(model.parameters(), lr=1.0)
    )
    out, loss = executor(x, y)
    expected, expected_loss = eager.model(x, y)
    expected_loss.backward()
    assert_pass_close(out, expected.detach(), "output")
    assert_pass_close(loss, expected_loss.detach(), "loss")
    executor.copyWeightsToHost()
    after = dict(model.named_parameters())
    for n, p in eager.named_parameters():
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        moved = before[n] - after[n].detach()
        slack = float(before[n].abs().max()) * 2.4e-7
        scale = max(float(grad.abs().max()), 1e-3)
        assert float((moved - grad).abs().max()) <= 2e-4 * scale + slack, n
