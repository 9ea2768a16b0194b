# SPDX-License-Identifier: Apache-2.0
"""Whole models: the captured text computes what eager does, and everything in it is native."""

import models
import pytest
import torch
from harness import captured, check, evaluate
from torch import nn


def _labels(batch, classes):
    return torch.arange(batch) % classes


def test_tutorial_cnn():
    torch.manual_seed(0)
    model = models.WithLoss(models.TutorialCNN(), nn.NLLLoss())
    check(model, (torch.randn(8, 1, 28, 28), _labels(8, 10)))


def test_mlp():
    torch.manual_seed(0)
    check(models.WithLoss(models.MLP()), (torch.randn(8, 784), _labels(8, 10)))


@pytest.mark.parametrize("build", [models.resnet18, models.resnet50])
def test_resnet_trains_with_all_running_statistics(build):
    torch.manual_seed(0)
    model = models.WithLoss(build(10))
    c, graph = check(model, (torch.randn(4, 3, 64, 64), _labels(4, 10)), rtol=2e-3, atol=2e-4)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(graph.updates) == 3 * len(norms)


def test_resnet_inference_reads_running_statistics():
    torch.manual_seed(0)
    model = models.resnet18(10).eval()
    _, graph = check(model, (torch.randn(2, 3, 64, 64),), training=False)
    assert not graph.updates and not graph.grads


def _tokens():
    torch.manual_seed(1)
    ids = torch.randint(0, 100, (2, 16))
    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[1, 11:] = 0
    return ids, mask


def test_bert_trains():
    model = models.tiny_bert().train()
    ids, mask = _tokens()
    kwargs = {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1])}
    _, graph = check(model, (), kwargs)
    assert graph.ops().count("sdpa") == 2 and graph.ops().count("sdpa_backward") == 2


def test_bert_inference():
    ids, mask = _tokens()
    model = models.tiny_bert().eval()
    check(model, (), {"input_ids": ids, "attention_mask": mask}, training=False)


def test_gpt2_trains():
    model = models.tiny_gpt2().train()
    ids, _ = _tokens()
    c, graph = check(model, (), {"input_ids": ids, "labels": ids})
    assert graph.ops().count("sdpa") == 2
    tied = next(p for p in c.params if len(p.all_names) == 2)
    assert set(tied.all_names) == {"transformer.wte.weight", "lm_head.weight"}


@pytest.mark.parametrize("build", [models.tiny_bert, models.tiny_gpt2])
def test_dropout_draws_from_the_device_generator(build):
    model = build(dropout=0.1).train()
    ids, _ = _tokens()
    labels = torch.tensor([0, 1]) if build is models.tiny_bert else ids
    kwargs = {"input_ids": ids, "labels": labels}
    c = captured(model, (), kwargs)
    assert c.uses_rng and not c.host_ops
    assert "uniform(%" in c.text
    _, raw = evaluate(c, (), kwargs)
    assert torch.isfinite(raw.loss)
    streams = [
        line.split("uniform(")[1].split(")")[0]
        for line in c.text.splitlines()
        if " = uniform(" in line
    ]
    assert len(set(streams)) == len(streams)
