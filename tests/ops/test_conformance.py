# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operator samples, a few of each op: results and gradients as in eager, and what the
documentation calls native has no host call. `make conformance` runs all of them."""

import warnings

import conformance
import coverage_table
import poptorch
import pytest

OPS = {conformance.title(op): op for op in conformance.ops()}
STATIC = [name for name in OPS if name.partition(":")[0] not in conformance.NOT_STATIC]
# bincount is refused or not by its minlength: test_sorting.py
REFUSED = [n for n in OPS if "sparse" not in n and n != "bincount" and n not in STATIC]
TABLE = coverage_table.read()
# Samples per type: float32 shows most of what can go wrong, the other types that they are handled.
SAMPLES = {"float32": 3}


@pytest.mark.parametrize("name", STATIC)
def test_op(name):
    op = OPS[name]
    for dtype in conformance.types_of(op, all_types=False):
        kind = conformance.short(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = conformance.check_op(op, dtype, SAMPLES.get(kind, 1))
        assert not outcome.wrong + outcome.errors, f"{kind}: {outcome.wrong + outcome.errors}"
        if TABLE[name] == "native":
            assert not outcome.host, f"{kind}: host calls {outcome.host}"


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_static_is_refused_with_the_line(name):
    op = OPS[name]
    dtype = conformance.types_of(op, all_types=False)[0]
    for sample in conformance.spread(op.sample_inputs("cpu", dtype), 3):
        model = conformance.Call(op, sample, training=False)
        if not model.where:
            continue
        with pytest.raises(poptorch.Error) as caught:
            conformance.run_ours(model, conformance.quiet().valuesReadInForward("error"))
        assert "captured once" in str(caught.value)
        assert "conformance.py:" in str(caught.value)


def test_every_op_is_in_the_table():
    assert set(TABLE) == set(STATIC) | set(conformance.NOT_STATIC)
