# SPDX-License-Identifier: Apache-2.0
"""The named ops of ai.onnx against the cases that the package onnx has for its operators.

Not compiled: the functions of the tables run in eager torch. Making the cases takes onnx ten
seconds, so it is not among the requirements: `pip install onnx` to run this.
"""

import warnings

import numpy as np
import pytest
import torch
from poptorch.capture.custom.named import TABLES, run_named

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
ROWS = TABLES["ai.onnx"]
# Drawn by numpy's generator, or of types that an IPU has not.
SKIPPED = {"Bernoulli"}
WORDS = ("uint16", "uint32", "uint64", "training_dropout", "_ui64_", "test_bitwise_not_3d")
#: Reductions of nothing; Constant with a whole tensor as attribute; ties, which torch.topk breaks
#: as it likes (the core takes the first).
OTHERS = {
    "test_constant", "test_reduce_max_empty_set", "test_reduce_max_empty_set_bool",
    "test_reduce_min_empty_set", "test_top_k_same_values", "test_top_k_same_values_2d",
    "test_top_k_same_values_largest",
}  # fmt: skip


def cases():
    """By op: (name, version, node, inputs, outputs)."""
    from onnx.backend.test.case.node import collect_testcases

    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collected = collect_testcases(None)
    for case in collected:
        node = case.model.graph.node[0]
        if len(case.model.graph.node) > 1 or node.domain or not case.data_sets:
            continue
        if case.name in OTHERS or any(word in case.name for word in WORDS):
            continue
        version = next(o.version for o in case.model.opset_import if not o.domain)
        found.setdefault(node.op_type, []).append((case.name, version, node, *case.data_sets[0]))
    return found


def tensor(array):
    return torch.from_numpy(np.array(array))


def attributes_of(node):
    found = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            value = onnx.numpy_helper.to_array(value).item()
        elif isinstance(value, bytes):
            value = value.decode()
        elif not isinstance(value, (int, float)):
            value = [v.decode() if isinstance(v, bytes) else v for v in value]
        found[attribute.name] = value
    return found


def check(name, version, node, arrays, expected):
    given = iter(arrays)
    try:
        inputs = [tensor(next(given)) if n else torch.empty(0) for n in node.input]
        wanted = [tensor(array) for array in expected]
    except TypeError:
        return  # a type that torch has not
    types = iter(wanted)
    examples = [torch.empty(0, dtype=next(types).dtype if n else None) for n in node.output]
    row, op = ROWS[node.op_type], f"ai.onnx.{node.op_type}"
    got = run_named(row, op, version, inputs, attributes_of(node), examples)
    got = [result for result, n in zip(got, node.output, strict=True) if n]
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-3, atol=1e-4, equal_nan=True, msg=lambda m: f"{name}: {m}"
        )


def test_node_cases():
    """One test, because collecting the cases takes longer than running them."""
    failed, passed = [], 0
    for op, found in cases().items():
        for case in found if op in ROWS and op not in SKIPPED else ():
            try:
                check(*case)
                passed += 1
            except Exception as error:
                failed.append(f"{case[0]}: {error}")
    assert not failed, "\n".join(failed)
    assert passed > 800
