# SPDX-License-Identifier: Apache-2.0
"""Models of transformers keep caches and flags in Python: nothing is said of them."""

import logging

import poptorch
import pytest
import torch
import transformers as hf

IDS = torch.randint(0, 90, (2, 8), generator=torch.Generator().manual_seed(0))
SMALL = {"vocab_size": 99, "num_attention_heads": 2, "num_hidden_layers": 2, "hidden_size": 16}
MODELS = {
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(intermediate_size=32, **SMALL)),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=99, n_embd=16, n_layer=2, n_head=2)
    ),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(intermediate_size=32, **SMALL)),
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=99,
            d_model=16,
            d_kv=8,
            d_ff=32,
            num_layers=2,
            num_heads=2,
            decoder_start_token_id=0,
        )
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_models_of_transformers(name, training, caplog):
    model = MODELS[name]().train(training)
    wrap = poptorch.trainingModel if training else poptorch.inferenceModel
    executor = wrap(model, poptorch.Options().showCompilationProgressBar(False))
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        for _ in range(3):
            executor(input_ids=IDS, labels=IDS)
    texts = [r.getMessage() for r in caplog.records if r.name == "poptorch::python"]
    assert texts == []
