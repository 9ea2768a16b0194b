# SPDX-License-Identifier: Apache-2.0
"""Ops written against PopART's headers: what they compute, and their gradients."""

import os
import shutil
import subprocess
import sys

import popart_support as support
import poptorch
import pytest
import torch
from built_libraries import SDK, compiler

X = torch.tensor([[-2.0, -0.5, 0.0], [0.25, 1.0, 3.0]])
G = torch.tensor([[1.0, 2.0, -3.0], [0.5, -1.0, 4.0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_leaky_relu(dtype):
    x = X.to(dtype)
    out = support.infer("custom.ops", "LeakyRelu", x, alpha=0.25)
    torch.testing.assert_close(out, torch.nn.functional.leaky_relu(x, 0.25))


def test_leaky_relu_gradient_is_that_of_its_gradient_op():
    out, (grad,) = support.gradients("custom.ops", "LeakyRelu", [X], G, alpha=0.25)
    torch.testing.assert_close(out, torch.nn.functional.leaky_relu(X, 0.25))
    torch.testing.assert_close(grad, torch.where(X < 0, 0.25 * G, G))


def test_an_attribute_that_is_not_given_has_its_default():
    out = support.infer("custom.ops", "LeakyRelu", X)
    torch.testing.assert_close(out, torch.nn.functional.leaky_relu(X, 0.01))


def test_cube_of_two_inputs_and_outputs():
    x, b = torch.tensor([1.0, 2.0, -3.0]), torch.tensor([10.0, 20.0, 30.0])
    shifted, cubed = support.infer("com.acme", "Cube", x, b, outputs=[x, x])
    torch.testing.assert_close(cubed, x**3)
    torch.testing.assert_close(shifted, x**3 + b)


def test_a_wrong_gradient_is_the_op_s_own():
    """It squares the gradient, not the value: 3 g^2 y."""
    x, b = torch.tensor([5.0]), torch.tensor([0.0])
    _, grads = support.gradients("com.acme", "Cube", [x, b], torch.tensor([0.1]), outputs=[x, x])
    torch.testing.assert_close(grads[0], torch.tensor([3 * 0.1**2 * 125.0]))
    torch.testing.assert_close(grads[1], torch.tensor([0.0]))


@pytest.mark.parametrize(
    ("name", "x", "attributes", "wanted"),
    [
        ("AddScalarFloat", X, {"scalar": 3.5}, X + 3.5),
        ("AddScalarInt", torch.arange(4, dtype=torch.int32), {"scalar": -7}, torch.arange(4) - 7),
        ("AddScalarVecFloat", X, {"vec": [1.0, 2.5, -3.0]}, X + torch.tensor([1.0, 2.5, -3.0])),
        ("AddScalarVecInt", torch.arange(3), {"vec": (1, -1, 5)}, torch.tensor([1, 0, 7])),
        (
            "AddVecScalarMulFloat",
            X,
            {"vec": [1.0, 2.0, 3.0], "scalar": 0.5},
            (X + torch.tensor([1.0, 2.0, 3.0])) * 0.5,
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_attributes_and_constants(name, x, attributes, wanted):
    out = support.infer("test.poptorch", name, x, **attributes)
    torch.testing.assert_close(out, wanted.to(out.dtype))


MANY = {
    "float_one": 1.0,
    "int_one": 1,
    "int_minus": -1,
    "floats": [0.5, -2.0],
    "ints": [7, -8, 1 << 40],
    "string": 'a "b" \x01',
    "strings": ["x", ""],
    "flag": True,
}


def test_every_kind_of_attribute_arrives():
    x = torch.zeros(2)
    assert support.infer("test.poptorch", "ManyAttributeOp", x, **MANY).tolist() == [1, 1]
    wrong = {**MANY, "int_one": 2}
    assert support.infer("test.poptorch", "ManyAttributeOp", x, **wrong).tolist() == [0, 0]


def test_setup_decides_on_the_shape():
    x = torch.tensor([1.0, 2.0, 6.0])
    out = support.infer("test.poptorch", "ReduceOp", x, reduction="mean")
    torch.testing.assert_close(out, torch.tensor(3.0))
    found = support.infer(
        "test.poptorch",
        "ThreeReduceOp",
        x,
        2 * x,
        X,
        outputs=[x, x, x],
        reductions=["sum", "mean", "sum"],
    )
    torch.testing.assert_close(torch.stack(found), torch.tensor([9.0, 6.0, X.sum()]))


def test_what_grow_throws_is_the_error():
    with pytest.raises(poptorch.Error, match="median is neither sum nor mean"):
        support.infer("test.poptorch", "ReduceOp", X, reduction="median")


def test_a_missing_attribute_is_an_error():
    with pytest.raises(poptorch.Error, match="no attribute key scalar"):
        support.infer("test.poptorch", "AddScalarFloat", X)


SURROGATES = {
    "Heaviside": lambda x, g: torch.where(x > 0, g, 0.0),
    "StraightThroughEstimator": lambda x, g: g,
    "FastSigmoid": lambda x, g: g / (5.0 * x.abs() + 1) ** 2,
}


@pytest.mark.parametrize("name", SURROGATES)
def test_spikes_have_the_gradient_of_their_surrogate(name):
    """It is computed from the input as it was, though the op computes in place."""
    out, (grad,) = support.gradients("custom.ops", name, [X], G, slope=5.0)
    torch.testing.assert_close(out, (X >= 0).float())
    torch.testing.assert_close(grad, SURROGATES[name](X, G))


@pytest.mark.parametrize("name", SURROGATES)
def test_what_an_op_does_in_place_may_be_seen_by_its_gradient_op(name):
    """As on an IPU, if the options ask for it: the input then holds the spikes."""
    options = poptorch.Options().customOpsInPlace(True)
    out, (grad,) = support.gradients("custom.ops", name, [X], G, options=options, slope=5.0)
    spikes = (X >= 0).float()
    torch.testing.assert_close(out, spikes)
    torch.testing.assert_close(grad, SURROGATES[name](spikes, G))


def test_spikes_in_half_precision():
    out = support.infer("custom.ops", "Heaviside", X.half())
    torch.testing.assert_close(out, (X >= 0).half())


def test_a_gradient_that_goes_to_another_input():
    out, grads = support.gradients("ai.graphcore", "AutogradProxy", [X, X + 1], G)
    torch.testing.assert_close(out, X)
    torch.testing.assert_close(grads[0], torch.zeros_like(X))
    torch.testing.assert_close(grads[1], G)


def test_the_gradient_op_may_be_popart_s():
    out, (grad,) = support.gradients("ai.graphcore", "CopyTensor", [X], G)
    torch.testing.assert_close(out, X)
    torch.testing.assert_close(grad, G)


def test_a_copy_with_a_tile_mapping_of_its_own():
    x = torch.randn(6, 5)
    torch.testing.assert_close(support.infer("test.programs", "Remap", x), x)


def test_attention_by_blocks_in_a_loop():
    x = torch.randn(2, 8, 3)
    out = support.infer("test.programs", "BlockAttention", x)
    torch.testing.assert_close(out, torch.softmax(x @ x.mT, -1) @ x)


def test_views_are_written_to():
    x = torch.arange(12.0).view(3, 4)
    wanted = x.flip(0).clone()
    wanted[:, 1:3] *= 2
    wanted[1, 0] = 100
    wanted[0, 0] = -1
    torch.testing.assert_close(support.infer("test.programs", "Views", x), wanted)


def test_largest_of_each_row():
    x = torch.tensor([[1.0, 5.0, 2.0], [7.0, 0.0, 3.0]])
    best, at = support.infer("test.programs", "RowMax", x, outputs=[x[:, 0], x[:, 0].int()])
    assert best.tolist() == [5, 7] and at.tolist() == [1, 0]


def test_an_op_without_opx_is_named():
    with pytest.raises(poptorch.Error, match="Could not create opx for 'test.programs.NoOpx:1'"):
        support.infer("test.programs", "NoOpx", X)


def test_near_names_are_those_that_programs_may_call():
    support.gradients("custom.ops", "LeakyRelu", [X], G, alpha=0.25)
    with pytest.raises(poptorch.Error, match="Near names: custom.ops.LeakyRelu") as error:
        support.infer("custom.ops", "LeakyReluu", X)
    assert "'" not in str(error.value).partition("Near names")[2].partition("Libraries")[0]


def test_the_larger_versions_are_not_taken():
    out = support.infer("custom.ops", "LeakyRelu", X, version=9, alpha=0.5)
    torch.testing.assert_close(out, torch.nn.functional.leaky_relu(X, 0.5))


def test_the_example_builds_by_its_makefile_and_learns(tmp_path):
    for name in ("leaky_relu.cpp", "leaky_relu.py", "Makefile"):
        shutil.copy(support.EXAMPLE / name, tmp_path / name)
    subprocess.run(["make", "-s"], cwd=tmp_path, env={**os.environ, **SDK}, check=True)
    done = subprocess.run(
        [sys.executable, "leaky_relu.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("loss ")


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "#include <gcl/Collectives.hpp>\nint x = gcl::allReduceWithinReplica(1);\n",
            "allReduceWithinReplica is not supported",
        ),
        ("#include <popsparse/MatMul.hpp>\n", "popsparse is not supported"),
    ],
)
def test_what_is_not_there_is_named_by_the_compiler(tmp_path, text, said):
    source = tmp_path / "x.cpp"
    source.write_text(text)
    with pytest.raises(AssertionError, match=said):
        compiler(["-c", source, "-o", tmp_path / "x.o"], **SDK)
