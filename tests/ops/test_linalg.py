# SPDX-License-Identifier: Apache-2.0
"""Linear algebra where PyTorch's operator samples do not reach: failing factorisations, sizes
beyond a block, products of integers, what beta = 0 ignores, complex values between host calls."""

import inspect

import poptorch
import pytest
import torch
from against_eager import Call, check_gradients, check_inference, quiet, summary
from torch import nn


def hosted(executor):
    return {call["target"] for call in summary(executor)["host_calls"]}


def positive(*shape):
    torch.manual_seed(1)
    a = torch.randn(*shape) / shape[-1] ** 0.5
    return a @ a.mT + torch.eye(shape[-1])


def good(n=4):
    return positive(n, n)


def singular(n=4):
    a = good(n)
    a[:, 1] = 0
    a[1, :] = 0
    return a


class Cholesky(nn.Module):
    def forward(self, x):
        return torch.linalg.cholesky(x)  # the line


class Solve(nn.Module):
    def forward(self, x):
        return torch.linalg.solve(x, x.sum(-1))  # the line


class Inverse(nn.Module):
    def forward(self, x):
        return torch.linalg.inv(x)  # the line


class ComplexCholesky(nn.Module):
    """Complex numbers have no kernels: torch runs it."""

    def forward(self, x):
        return torch.linalg.cholesky(torch.complex(x, torch.zeros_like(x))).real  # the line


FAILURES = {
    Cholesky: "linalg.cholesky: .*not positive-definite .the leading minor of order 2",
    Solve: "linalg.solve: The solver failed because the input matrix is singular",
    Inverse: "linalg.inv: The diagonal element 2 is zero.*singular",
    ComplexCholesky: "linalg.cholesky.*not positive-definite",
}


@pytest.mark.parametrize("model", FAILURES, ids=lambda m: m.__name__)
def test_a_failing_factorisation_is_an_error_at_the_users_line(model):
    lines, first = inspect.getsourcelines(model)
    line = first + next(i for i, text in enumerate(lines) if "# the line" in text)
    executor = poptorch.inferenceModel(model(), quiet())
    expected = model()(good())
    torch.testing.assert_close(executor(good()), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError):
        model()(singular())
    with pytest.raises(poptorch.Error, match=FAILURES[model]) as caught:
        executor(singular())
    assert f"test_linalg.py:{line}" in str(caught.value)
    torch.testing.assert_close(executor(good()), expected, rtol=1e-4, atol=1e-5)


def test_failing_is_told_and_not_an_error_where_it_is_asked_for():
    def run(x):
        factor, info = torch.linalg.cholesky_ex(x)
        return info, torch.linalg.inv_ex(x).info

    batch = torch.stack([good(), singular()])
    executor = poptorch.inferenceModel(Call(run), quiet())
    ours, theirs = executor(batch), run(batch)
    assert [t.tolist() for t in ours] == [t.tolist() for t in theirs] == [[0, 2], [0, 2]]


class Weighted(nn.Module):
    """A parameter goes through a factorisation and its gradient."""

    def __init__(self, function, n, rows=None):
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.w = nn.Parameter(positive(2, n, n) if rows is None else torch.randn(2, rows, n))

    def forward(self, x):
        return self.function(self.w, x)


# name -> (function of a well-behaved matrix and a right side)
FACTORISATIONS = {
    "cholesky": lambda a, b: torch.linalg.cholesky(a) @ b,
    "cholesky_solve": lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a)),
    "solve": torch.linalg.solve,
    "solve from the right": lambda a, b: torch.linalg.solve(a, b.mT, left=False),
    "inv": lambda a, b: torch.linalg.inv(a) @ b,
    "logdet": lambda a, b: torch.logdet(a) + b.sum(),
    "qr": lambda a, b: torch.linalg.qr(a).R @ b,
    "triangular": lambda a, b: torch.linalg.solve_triangular(a, b, upper=True),
    "pinv": lambda a, b: torch.linalg.pinv(a) @ b,
    "eigvalsh": lambda a, b: torch.linalg.eigvalsh(a) + b.sum(),
    "svdvals": lambda a, b: torch.linalg.svdvals(a) + b.sum(),
    "matrix_exp": lambda a, b: torch.linalg.matrix_exp(a) @ b,
}


@pytest.mark.parametrize("n", [3, 40, 120])
@pytest.mark.parametrize("name", FACTORISATIONS)
def test_factorisations_and_gradients(name, n):
    torch.manual_seed(2)
    check_gradients(Weighted(FACTORISATIONS[name], n), (torch.randn(2, n, 3),))


def test_least_squares_of_a_tall_matrix():
    torch.manual_seed(3)
    a, b = torch.randn(3, 8, 4), torch.randn(3, 8, 2)
    for driver in (None, "gels", "gelsd"):
        run = Call(lambda a, b, d=driver: tuple(torch.linalg.lstsq(a, b, driver=d)))
        executor = check_inference(run, (a, b))
        assert not hosted(executor)


INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
PRODUCTS = {
    "mm": lambda a, b, v: a @ b,
    "bmm": lambda a, b, v: a.expand(3, -1, -1) @ b.expand(3, -1, -1),
    "mv": lambda a, b, v: b @ v,
    "dot": lambda a, b, v: torch.dot(v, v),
    "addmm": lambda a, b, v: torch.addmm(v, a, b, beta=3, alpha=2),
    "baddbmm": lambda a, b, v: torch.baddbmm(v, a[None], b[None], beta=0, alpha=2),
    "addbmm": lambda a, b, v: torch.addbmm(v, a.expand(3, -1, -1), b.expand(3, -1, -1)),
    "addmv": lambda a, b, v: torch.addmv(v, b, v, beta=2, alpha=3),
    "addr": lambda a, b, v: torch.addr(v, a[:, 0], v, beta=2, alpha=3),
    "outer": lambda a, b, v: torch.outer(a[:, 0], v),
    "einsum": lambda a, b, v: torch.einsum("ij,jk,k->i", a, b, v),
    "matrix_power": lambda a, b, v: torch.linalg.matrix_power(b, 3),
    "kron": lambda a, b, v: torch.kron(a, b),
    "transposed": lambda a, b, v: (b.t() @ a.t()).t(),
    "multi_dot": lambda a, b, v: torch.linalg.multi_dot([a, b, b]),
    "trace": lambda a, b, v: torch.trace(b),
}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_products_of_integers(dtype):
    torch.manual_seed(4)
    low = 0 if dtype is torch.uint8 else -100
    a, b, v = (torch.randint(low, 100, s).to(torch.int32) for s in ((5, 7), (7, 7), (7,)))
    run = Call(lambda *args: tuple(f(*(x.to(dtype) for x in args)) for f in PRODUCTS.values()))
    executor = poptorch.inferenceModel(run, quiet())
    for name, ours, theirs in zip(PRODUCTS, executor(a, b, v), run(a, b, v), strict=True):
        assert ours.tolist() == theirs.to(ours.dtype).tolist(), name
    assert not hosted(executor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_beta_of_zero_ignores_even_nan(dtype):
    nan = torch.full((3, 4), float("nan"))

    def run(*args):
        a, b, v, nan = (x.to(dtype) for x in args)
        return (
            torch.addmm(nan, a, b, beta=0),
            torch.baddbmm(nan, a[None], b[None], beta=0),
            torch.addbmm(nan, a[None], b[None], beta=0),
            torch.addmv(nan[:, 0], a, v, beta=0),
            torch.addr(nan, a[:, 0], b[0], beta=0),
        )

    torch.manual_seed(5)
    args = (torch.randn(3, 5), torch.randn(5, 4), torch.randn(5), nan)
    assert not any(t.isnan().any() for t in run(*args))
    check_inference(Call(run), args)


def test_products_over_nothing_are_zero():
    def run(x):
        a, b = x[:, :0], x[:0]
        return a @ b, torch.addmm(x[0], a, b), torch.dot(x[0, :0], x[0, :0])

    check_inference(Call(run), (torch.randn(3, 4),))


def test_complex_values_pass_from_host_call_to_host_call():
    def run(x):
        spectrum = torch.fft.rfft(x, dim=-1)
        turned = (spectrum * 2j + 1).transpose(0, 1)[1:].unsqueeze(-1)
        back = torch.fft.irfft(spectrum.conj() * spectrum, n=x.shape[-1])
        return turned, turned.real, back, torch.view_as_real(spectrum)[..., 0], turned.abs().sum()

    check_inference(Call(run), (torch.randn(4, 16),))


def test_complex_scalars_and_empty_tensors_are_returned():
    def run(x):
        z = torch.complex(x, -x)
        return z.sum(), z[:0], torch.polar(x.abs(), x)

    check_inference(Call(run), (torch.randn(6),))


def test_a_spectrogram_there_and_back():
    window = torch.hann_window(16)

    def run(x):
        s = torch.stft(x, 16, window=window, return_complex=True)
        return s.abs(), torch.istft(s * 2, 16, window=window)

    check_inference(Call(run), (torch.randn(2, 64),))


# Name: a function of matrices, the op it becomes, the number of its results.
SPECTRA = {
    "eigvalsh": (torch.linalg.eigvalsh, "eigh", 1),
    "svdvals": (torch.linalg.svdvals, "svd_thin", 1),
    "matrix_exp": (torch.linalg.matrix_exp, "linalg_matrix_exp", 1),
    "pinv": (torch.linalg.pinv, "svd_thin", 3),
}


@pytest.mark.parametrize("batch", [(), (1,), (3,)])
@pytest.mark.parametrize("name", SPECTRA)
def test_the_core_says_which_matrices_torch_runs(name, batch):
    function, op, results = SPECTRA[name]

    def faster(n):
        return poptorch._core.host_is_faster(op, [*batch, n, n], results)

    limit = next(n for n in range(1, 1000) if faster(n + 1))
    for n in (limit, limit + 1):
        executor = check_inference(Call(function), (positive(*batch, n, n) / 4,))
        assert bool(hosted(executor)) == (n > limit)


def test_an_op_that_the_core_does_not_know_has_no_limit():
    with pytest.raises(poptorch._core.Error, match="no op"):
        poptorch._core.host_is_faster("eig", [8, 8], 1)
