# SPDX-License-Identifier: Apache-2.0
"""``import popdist`` in programs that run as one instance, with and without a launcher."""

import copy
import pickle

import popdist
import popdist.poptorch
import poptorch
import pytest
import torch


@pytest.fixture
def launched(monkeypatch):
    def launch(total, local, offset, ipus=1):
        for name, value in (
            ("NUM_TOTAL_REPLICAS", total),
            ("NUM_LOCAL_REPLICAS", local),
            ("REPLICA_INDEX_OFFSET", offset),
            ("NUM_IPUS_PER_REPLICA", ipus),
        ):
            monkeypatch.setenv(f"POPDIST_{name}", str(value))

    return launch


def test_without_a_launcher_there_is_one_instance_with_one_replica():
    assert not popdist.isPopdistEnvSet()
    assert (popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas()) == (1, 1)
    assert (popdist.getNumInstances(), popdist.getInstanceIndex()) == (1, 0)
    assert (popdist.getLocalInstanceIndex(), popdist.getReplicaIndexOffset()) == (0, 0)
    popdist.init()
    popdist.synchronize()
    assert popdist.execute_on_instances({0}, max, 1, 2) == 2
    assert popdist.execute_on_instances([1], max, 1, 2) is None


def test_instances_are_counted_from_the_environment(launched, monkeypatch):
    launched(8, 2, 6, ipus=4)
    assert popdist.isPopdistEnvSet() and popdist.getNumIpusPerReplica() == 4
    assert (popdist.getNumInstances(), popdist.getInstanceIndex()) == (4, 3)
    for call in (popdist.init, popdist.synchronize):
        with pytest.raises(RuntimeError, match="with 4 instances is not available yet"):
            call()
    with pytest.raises(RuntimeError, match="uses 2 IPUs per replica, but the launcher gave it 4"):
        popdist.poptorch.Options(2)
    opts = popdist.poptorch.Options(ipus_per_replica=4)
    assert (opts.Distributed.numProcesses, opts.Distributed.processId) == (4, 3)
    assert opts.replication_factor == 2 and opts.ipus_per_replica == 4
    monkeypatch.setenv("POPDIST_NUM_TOTAL_REPLICAS", "many")
    with pytest.raises(RuntimeError, match="POPDIST_NUM_TOTAL_REPLICAS must be a number"):
        popdist.getNumInstances()


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda o: o.replicationFactor(2), "replicationFactor"),
        (lambda o: o.useIpuId(1), "useIpuId"),
        (lambda o: o.Distributed.disable(), "Distributed.disable"),
        (lambda o: o.Distributed.setEnvVarNames("A", "B"), "Distributed.setEnvVarNames"),
        (lambda o: o.Distributed.configureProcessId(0, 1), "Distributed.configureProcessId"),
    ],
)
def test_what_the_launcher_decides_cannot_be_set(call, name):
    opts = popdist.poptorch.Options()
    for each in (opts, opts.clone(), pickle.loads(pickle.dumps(opts)), copy.deepcopy(opts)):
        with pytest.raises(RuntimeError, match=f"Cannot call `{name}` with popdist.poptorch.Opt"):
            call(each)


def test_default_options_cannot_set_it_either(monkeypatch):
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"replicationFactor": 2}')
    with pytest.raises(RuntimeError, match="Cannot call `replicationFactor`"):
        popdist.poptorch.Options()


def test_a_model_trains_with_the_replicas_of_one_instance(launched, regression, batch):
    launched(2, 2, 0)
    popdist.init()
    opts = popdist.poptorch.Options(ipus_per_replica=1)
    opts.showCompilationProgressBar(False).outputMode(poptorch.OutputMode.All)
    twin = copy.deepcopy(regression)
    eager = torch.optim.SGD(twin.parameters(), lr=0.1)
    model = poptorch.trainingModel(regression, opts, torch.optim.SGD(regression.parameters(), 0.1))
    assert model(*batch)[1].shape == (2,)
    twin(*batch)[1].backward()
    eager.step()
    torch.testing.assert_close(dict(regression.state_dict()), dict(twin.state_dict()))
    loader = poptorch.DataLoader(opts, torch.utils.data.TensorDataset(*batch), batch_size=2)
    assert loader.combinedBatchSize == 4
