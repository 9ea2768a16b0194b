# SPDX-License-Identifier: Apache-2.0
"""The models of the benchmarks as tests use them: with a loss inside (forward returns (output,
loss)), the transformers small."""

import pathlib
import sys

ROOT = str(pathlib.Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from bench.models import (  # noqa: E402, F401
    MLP,
    LstmClassifier,
    TutorialCNN,
    UNet,
    WithLoss,
    bert,
    gpt2,
    resnet18,
    resnet50,
    vit,
)

TINY = {"layers": 2, "hidden": 32, "heads": 2}


def tiny_bert(dropout=0.0):
    return bert(**TINY, vocab=100, dropout=dropout, positions=64)


def tiny_gpt2(dropout=0.0):
    return gpt2(**TINY, vocab=100, dropout=dropout, positions=64)


def tiny_vit(dropout=0.0):
    return vit(**TINY, image=32, patch=8, classes=10, dropout=dropout)
