# SPDX-License-Identifier: Apache-2.0
"""``import popart`` in PopTorch programs: values for ``_Popart.set``, and errors for the rest."""

import importlib
import os
import pickle
import subprocess
import sys
from importlib.metadata import version

import popart
import poptorch
import pytest
import torch
from packaging.version import parse
from poptorch.options import backend_keys

HERE = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(popart.__file__))}
NOT_PART = "PopART's own API is not part of this package"


def test_members_have_popart_s_numbers():
    assert list(map(int, popart.AccumulateOuterFragmentSchedule)) == [0, 1, 2, 3]
    assert popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized == 3
    assert popart.SyntheticDataMode.RandomNormal.value == 2
    assert popart.SubgraphCopyingStrategy.JustInTime.name == "JustInTime"
    assert int(popart.RecomputationType.RecomputeAll) == 4
    assert int(popart.VirtualGraphMode.ExecutionPhases) == 3
    assert int(popart.BatchSerializationBatchSchedule.OverlapOnCompute) == 3
    assert (popart.TensorStorage.OffChip, popart.TensorStorage.OnChip) == (0, 1)
    assert popart.ReplicatedTensorSharding.On == 1
    assert parse(popart.versionString()) > parse("2.6")


def test_every_enumeration_of_the_backend_s_keys_is_there_with_all_its_members():
    for name, count in backend_keys.ENUMS.values():
        assert [int(member) for member in getattr(popart, name)] == list(range(count)), name


def test_anchor_return_types():
    every = popart.AnchorReturnType("EveryN", 3)
    assert int(every) == int(poptorch.OutputMode.EveryN) and every.rp() == 3
    assert popart.AnchorReturnType("ALL").id().name == "All"
    with pytest.raises(ValueError, match="one of Final, EveryN, All, Sum, not 'Some'"):
        popart.AnchorReturnType("Some")
    with pytest.raises(ValueError, match="must be positive"):
        popart.AnchorReturnType("EveryN")
    with pytest.raises(ValueError, match="takes no period"):
        popart.AnchorReturnType("All", 2)


def test_other_names_say_that_they_are_not_part_of_this():
    assert not hasattr(popart, "Builder")
    with pytest.raises(AttributeError, match=f"popart.Builder: {NOT_PART}"):
        popart.Builder()
    for module in ("popart.ir", "popart.ir.ops", "popart_core"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(module)


@pytest.mark.parametrize(
    "line",
    [
        "import popart.ir",
        "import popart.ir as pir",
        "from popart.ir import Ir",
        "from popart import Builder",
        "from popart import SyntheticDataMode, Session",
        "import popart; popart.PyStepIO",
    ],
)
def test_imports_of_popart_s_own_api_fail_with_the_reason(line):
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, env=HERE)
    assert done.returncode and NOT_PART in done.stderr.splitlines()[-1]


def test_popart_needs_no_other_package_and_star_imports_work():
    code = "import sys; from popart import *; versionString(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-S", "-c", code], env=HERE, check=True)


def applications_options():
    """What Graphcore's applications set together, in their ways of writing it."""
    opts = poptorch.Options().showCompilationProgressBar(False)
    schedule = popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized
    opts._Popart.set("accumulateOuterFragmentSettings.schedule", int(schedule))
    opts._Popart.set("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0"])
    opts._Popart.set("disableGradAccumulationTensorStreams", True)
    opts._Popart.set("subgraphCopyingStrategy", int(popart.SubgraphCopyingStrategy.JustInTime))
    opts._Popart.set("scheduleNonWeightUpdateGradientConsumersEarly", True)
    opts._Popart.set("decomposeGradSum", True)
    opts._Popart.set("outlineThreshold", 10.0)
    opts._Popart.set("enableOutlining", False)
    opts._Popart.set("autoRecomputation", popart.RecomputationType.RecomputeAll)
    opts._Popart.set("virtualGraphMode", popart.VirtualGraphMode.Manual)
    opts._Popart.set("batchSerializationSettings.factor", 1)
    opts._Popart.set(
        "batchSerializationSettings.batchSchedule",
        popart.BatchSerializationBatchSchedule.Isomorphic,
    )
    opts._Popart.set("hardwareInstrumentations", {int(popart.Instrumentation.Outer)})
    opts._Popart.setPatterns({"TiedGather": True, "UpdateInplacePrioritiesForIpu": True})
    return opts


def test_options_with_popart_s_members_train_and_say_what_has_no_effect(regression, batch, log):
    model = poptorch.trainingModel(regression, applications_options())
    loss = [model(*batch)[-1].item() for _ in range(3)]
    assert loss[2] < loss[0]
    said = [r.getMessage() for r in log.records if "no effect on virtual IPUs" in r.getMessage()]
    assert len(said) == 1
    for key in ("accumulateOuterFragmentSettings.schedule", "decomposeGradSum", "patterns"):
        assert key in said[0]
    assert "autoRecomputation" not in said[0] and "rearrangeAnchorsOnHost" not in said[0]
    assert "virtualGraphMode forced by the user from default" in log.text


def test_members_are_stored_as_numbers():
    opts = poptorch.Options()
    opts._Popart.set("syntheticDataMode", popart.SyntheticDataMode.Zeros)
    assert type(opts._Popart.options["syntheticDataMode"]) is int
    copy = pickle.loads(pickle.dumps(opts.clone()))
    assert copy._Popart.options["syntheticDataMode"] == 1


def test_synthetic_data_is_said_to_be_missing(regression, batch, log):
    opts = poptorch.Options().showCompilationProgressBar(False)
    opts._Popart.set("syntheticDataMode", int(popart.SyntheticDataMode.RandomNormal))
    poptorch.inferenceModel(regression, opts)(batch[0])
    assert "the inputs of the call are used" in log.text


def test_half_partials_of_convolutions_alone_are_said_to_be_missing(log):
    opts = poptorch.Options().showCompilationProgressBar(False)
    opts._Popart.set("convolutionOptions", {"partialsType": "half"})
    poptorch.inferenceModel(torch.nn.Conv1d(1, 1, 1), opts)(torch.ones(1, 1, 3))
    assert "only if matrix products do" in log.text


def test_a_backend_key_that_is_an_option_is_refused(regression, batch):
    opts = poptorch.Options().showCompilationProgressBar(False)
    opts._Popart.set("device_iterations", 4)
    with pytest.raises(AssertionError, match="Can't merge dictionaries"):
        poptorch.inferenceModel(regression, opts)(batch[0])


def test_the_version_of_poptorch_is_known_to_packaging_and_to_importlib():
    assert version("poptorch") == poptorch.__version__
    assert parse(poptorch.__version__).release == (3, 4, 0)
    assert parse(poptorch.__version__) >= parse("2.6")
