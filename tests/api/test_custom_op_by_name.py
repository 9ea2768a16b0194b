# SPDX-License-Identifier: Apache-2.0
"""`poptorch.custom_op` by name: its arguments, what is refused and with which words."""

import poptorch
import pytest
import torch
from function_model import Call

X = torch.tensor([[1.0, -2.0], [0.5, 3.0]])


def named(name, domain="ai.onnx", version=11, outputs=1, inputs=1, **attributes):
    def run(x):
        given = [x] * inputs
        return poptorch.custom_op(given, name, domain, version, [x] * outputs, attributes)

    return run


def infer(function, opts, *args):
    return poptorch.inferenceModel(Call(function), opts)(*(args or (X,)))


def test_results_are_a_list_whatever_the_example_is(opts):
    y = infer(named("ReduceSum", keepdims=0), opts)
    assert isinstance(y, list) and torch.equal(y[0], X.sum())  # the example has two dimensions


def test_an_empty_domain_is_onnx(opts):
    assert torch.equal(infer(named("Relu", ""), opts)[0], X.relu())


def test_the_list_of_one_op_is_the_input_of_the_next(opts):
    def run(x):
        first = poptorch.custom_op([x], "Abs", "ai.onnx", 6, [x], None)
        return poptorch.custom_op(first, "Sqrt", "ai.onnx", 6, (x,), {})[0]

    assert torch.allclose(infer(run, opts), X.abs().sqrt())


def test_the_version_chooses_the_definition(opts):
    x = torch.randn(2, 3, 4)
    old, new = (infer(named("Softmax", version=v), opts, x)[0] for v in (11, 13))
    torch.testing.assert_close(old, x.flatten(1).softmax(1).reshape(x.shape))
    torch.testing.assert_close(new, x.softmax(-1))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_example_decides_between_the_integer_types(opts, dtype):
    seen = []

    def run(x):
        example = torch.zeros(1, dtype=dtype)
        (index,) = poptorch.custom_op([x], "ArgMax", "ai.onnx", 11, [example], {"axis": 1})
        seen.append(index.dtype)
        return x.gather(1, index.long())

    assert torch.equal(infer(run, opts), X.amax(1, keepdim=True))
    assert seen == [dtype]


def test_half_precision_stays(opts):
    def run(x):
        names = ("Softplus", "Erf", "LpNormalization", "HardSigmoid", "ThresholdedRelu", "Softmax")
        return [poptorch.custom_op([x], n, "ai.onnx", 11, [x])[0] for n in names]

    assert {y.dtype for y in infer(run, opts, X.half())} == {torch.float16}


def test_ops_are_fused_with_the_rest_of_the_model(opts):
    def run(x):
        (y,) = poptorch.custom_op([x * 2], "Swish", "ai.graphcore", 1, [x])
        return y + 1

    model = poptorch.inferenceModel(Call(run), opts)
    torch.testing.assert_close(model(X), torch.nn.functional.silu(X * 2) + 1)
    assert not model.getProgramSummary()["host_calls"]


def reshaped(x, shape):
    return poptorch.custom_op([x, shape], "Reshape", "ai.onnx", 5, [x])[0]


def test_a_shape_that_forward_knows(opts):
    assert infer(lambda x: reshaped(x, torch.tensor([-1])), opts).shape == (4,)


REFUSED = {
    "unknown name": (named("Sofmax"), "No class for ai.onnx.Sofmax:11.*ai.onnx.Softmax"),
    "libraries": (named("Qbx", "a.b", 1), "No class for a.b.Qbx:1.*Libraries loaded"),
    "wrong domain": (named("Gelu", "ai.grapcore", 1), "ai.grapcore.Gelu:1.*ai.graphcore.Gelu"),
    "too old": (named("Where", version=6), "No class for ai.onnx.Where:6.*begins with version 9"),
    "count": (named("Relu", outputs=2), "gives 1 results, but 2 example outputs"),
    "missing input": (named("Add"), r"ai.onnx.Add: input 1 is missing, 1 given"),
    "missing attribute": (named("Concat"), "ai.onnx.Concat: attribute axis must be given"),
    "attribute type": (named("Elu", alpha="x"), "attribute alpha must be of type Float, not 'x'"),
    "int": (named("Softmax", axis=1.5), "attribute axis must be of type Int, not 1.5"),
    "axis": (named("Softmax", axis=2), "axis 2 is out of range for a tensor of 2 dimensions"),
    "choice": (named("DepthToSpace", blocksize=1, mode="XYZ"), "mode must be one of DCR, CRD"),
    "type": (named("Cast", to=8), "to is 8, which is no type"),
    "shapes": (lambda x: poptorch.custom_op([x, x[:, :1].reshape(1, 2, 1)[:, :, [0, 0, 0]]], "Add",
               "ai.onnx", 7, [x]), "ai.onnx.Add: "),
    "unknown shape": (lambda x: reshaped(x, x[0].int()),
                      r"input 1 \(shape\) must be known when the model is compiled"),
    "bad shape": (lambda x: reshaped(x, torch.tensor([3])), r"can not be given the shape \[3\]"),
    "data decide": (named("NonZero"), r"input 0 \(X\) must be known"),
    "gather ranks": (lambda x: poptorch.custom_op([x, x[0].int()], "FastGatherLastDim",
                     "poptorch.custom_ops", 1, [x]), "equal ranks"),
    "gather sizes": (lambda x: poptorch.custom_op([x, x[:1].int()], "FastGatherLastDim",
                     "poptorch.custom_ops", 1, [x]), "equal sizes but for the last"),
    "high": (named("Elu", alpha=1.7976931348623157e308),
             r"1.79769e\+308 is too high for a Popart float attribute"),
    "low": (named("Op", "a", values=[0.0, -1e300]),
            r"-1e\+300 is too low for a Popart float attribute"),
    "infinite": (named("Elu", alpha=float("inf")), "inf is too high for a Popart float attribute"),
    "wide": (named("Op", "a", k=1 << 63), "does not fit into a 64-bit attribute"),
    "empty list": (named("Transpose", perm=[]), "attribute perm is an empty list"),
    "zero byte": (named("Op", "a", names=["x\0y"]), "text of attribute 'names' has a zero byte"),
    "no dict": (lambda x: poptorch.custom_op([x], "Relu", "", 6, [x], "alpha"),
                "attributes must be a dict, not str"),
    "no list": (lambda x: poptorch.custom_op(x, "Relu", "", 6, [x]), "inputs must be a list"),
    "no name": (lambda x: poptorch.custom_op([x], 3, "", 6, [x]), "must be strings"),
    "no version": (lambda x: poptorch.custom_op([x], "Relu", "", "6", [x]), "an int, not"),
    "no tensor": (lambda x: poptorch.custom_op([1.0], "Relu", "", 6, [x]), "custom_op: .*float"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what, opts):
    function, words = REFUSED[what]
    with pytest.raises(poptorch.Error, match=words):
        infer(function, opts)


def test_unlike_names_are_not_near(opts):
    with pytest.raises(poptorch.Error, match="No class for ai.graphcore.Zzz:1") as caught:
        infer(named("Zzz", "ai.graphcore", 1), opts)
    assert "Near" not in str(caught.value)


def test_an_error_names_the_line(opts):
    with pytest.raises(poptorch.Error, match="test_custom_op_by_name.py:"):
        infer(named("Concat"), opts)


ATTRIBUTES = {
    "key": ({1: 2}, "All attribute keys must be strings."),
    "none": ({"a": None}, "Attribute values must be floats, ints, strings"),
    "nested": ({"a": [[1]]}, "Attribute values must be floats, ints, strings"),
    "tensor": ({"a": X}, "Attribute values must be floats, ints, strings"),
    "mixed": ({"a": (1, 2.0)}, "must all be the same"),
    "text": ({"a": "\u00fc"}, "contains non-ASCII characters"),
    "texts": ({"a": ["b", "\u00fc"]}, "contains non-ASCII characters"),
}


@pytest.mark.parametrize("what", ATTRIBUTES)
def test_attributes_are_checked_inside_a_model_and_outside(what, opts):
    attributes, words = ATTRIBUTES[what]

    def run(x):
        return poptorch.custom_op([x], "Relu", "ai.onnx", 6, [x], attributes)

    with pytest.raises(ValueError, match=words):
        run(X)
    with pytest.raises(ValueError, match=words):
        infer(run, opts)


def test_an_attribute_that_the_op_has_not_is_named(opts, log):
    assert torch.equal(infer(named("Elu", alpa=2.0), opts)[0], torch.nn.functional.elu(X))
    assert "ai.onnx.Elu has no attribute alpa: it is ignored. Did you mean alpha?" in log.text


def test_outside_a_model_the_examples_are_zeros():
    example = torch.ones(3, requires_grad=True)
    (y,) = poptorch.custom_op([X], "No such op", "", 1, [example])
    assert torch.equal(y, torch.zeros(3))
