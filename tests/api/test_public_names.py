# SPDX-License-Identifier: Apache-2.0
"""Every public name exists with PopTorch's parameters; what is not there yet says so, and the
generated pages are those of the tables."""

import enum
import importlib
import importlib.util
import inspect
import pathlib
import re

import poptorch
import pytest
import torch
from poptorch.options.table import OPTIONS
from surface_table import ENUMS, NAMES

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = load(ROOT / "tools/dev/write_docs.py").PAGES


def lines(table):
    return re.sub(r"\n\s+", " ", table.strip()).splitlines()


def find(name):
    module, *path = name.split(".")
    try:
        found = importlib.import_module(f"poptorch.{module}")
    except ImportError:
        found, path = poptorch, [module, *path]
    for part in path:
        found = getattr(found, part)
    return found


def parameters(function, bound):
    """The parameters as text; ``bound`` leaves the first out."""
    found = list(inspect.signature(function).parameters.values())[bound:]
    plain = []
    for p in found:
        default = p.default
        if isinstance(default, enum.Enum):
            text = f"{type(default).__name__}.{default.name}"
            default = type("Shown", (), {"__repr__": lambda self, text=text: text})()
        plain.append(p.replace(annotation=p.empty, default=default))
    return str(inspect.Signature(plain))


@pytest.mark.parametrize("line", lines(NAMES))
def test_a_name_exists_with_its_parameters(line):
    name = re.match(r"[\w.]+", line).group()
    expected = line[len(name) :].strip()
    found = find(name)
    if expected == "data":
        return
    if expected == "class":
        assert inspect.isclass(found)
    elif expected.startswith("property"):
        assert isinstance(found, property)
        assert (found.fset is not None) == expected.endswith("settable")
    elif inspect.isclass(found):
        assert parameters(found.__init__, 1) == expected
    else:
        static = expected.startswith("static ")
        owner = find(name.rpartition(".")[0]) if "." in name else None
        method = inspect.isclass(owner) and not static
        assert parameters(found, method) == expected.removeprefix("static ")


@pytest.mark.parametrize("line", lines(ENUMS))
def test_an_enumeration_has_its_members(line):
    head, _, members = line.partition(": ")
    name, base = head.split()
    found = find(name)
    assert issubclass(found, enum.IntEnum) == (base == "IntEnum")
    assert ", ".join(f"{m.name}={m.value}" for m in found) == members


def test_import_star_brings_the_public_names():
    missing = {line.split("(")[0] for line in lines(NAMES) if re.match(r"[a-zA-Z]\w*\(", line)}
    assert missing <= set(poptorch.__all__)
    assert all(hasattr(poptorch, name) for name in poptorch.__all__)
    assert set(poptorch.ops.__all__) <= set(poptorch.__all__)


def test_the_class_of_executors_is_found_where_programs_look_for_it():
    from poptorch._poplar_executor import PoplarExecutor

    assert PoplarExecutor is poptorch.PoplarExecutor


def test_names_of_older_releases():
    opts = poptorch.Options()
    assert poptorch.AnchorMode is poptorch.OutputMode
    assert opts.anchorMode(poptorch.AnchorMode.EveryN, 2) is opts
    assert (opts.output_mode, opts.output_return_period) == (1, 2)
    assert not opts.defaultAnchorMode()
    assert opts.Popart is opts._Popart
    opts.Training.accumulationReductionType(poptorch.ReductionType.Sum)
    assert opts.Training.accumulation_and_replication_reduction_type == poptorch.ReductionType.Sum
    opts.Precision.runningVarianceAlwaysFloat(True)


# Not yet ------------------------------------------------------------------------------------------


def test_ops_do_outside_what_poptorch_does_on_the_cpu():
    x = torch.ones(2)
    assert torch.equal(poptorch.CPU(torch.exp, "exp")(x), x.exp())
    assert torch.equal(poptorch.custom_op([x], "a", "b", 1, [x])[0], torch.zeros(2))
    shapes = [
        t.shape for t in poptorch.ctc_beam_search_decoder(torch.zeros(4, 3, 2), torch.ones(3))
    ]
    assert shapes == [(3, 1), (3, 1), (3, 1, 4)]


SET = {
    "syntheticDataMode": lambda o: o.enableSyntheticData(True),
    "engineOptions": lambda o: o.enableProfiling(),
}


@pytest.mark.parametrize("row", [r for r in OPTIONS if r.pending], ids=lambda r: r.shown_setter)
def test_a_pending_option_is_warned_about(row, regression, batch, opts, log):
    SET[row.key](opts)
    poptorch.inferenceModel(regression, opts)(batch[0])
    assert f"{row.shown_setter}: {row.pending}" in log.text


def test_no_warning_without_pending_options(regression, batch, opts, log):
    opts.Precision.setPartialsType(torch.float)
    opts.Training.setAutomaticLossScaling(False)
    poptorch.inferenceModel(regression, opts)(batch[0])
    assert not [r for r in log.records if r.levelname == "WARNING"]


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(name):
    assert (ROOT / "docs" / name).read_text() == PAGES[name](), "run: tools/dev/write_docs.py"
