# SPDX-License-Identifier: Apache-2.0
"""Models that users of transformers train, small and as they come: called by keyword, one step
against eager, every op native."""

import copy

import poptorch
import pytest
import torch
import transformers as hf
from tolerances import assert_pass_close

WORDS = 60
TEXT = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}
SEQ2SEQ = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 3,
}
AUDIO = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "conv_dim": [8, 8],
    "conv_stride": [5, 2],
    "conv_kernel": [10, 3],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "apply_spec_augment": False,
}


def _text(labels="words"):
    ids = torch.randint(3, WORDS, (2, 16))
    wanted = torch.randint(3, WORDS, (2, 16)) if labels == "words" else torch.tensor([0, 1])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": wanted}


def _classes():
    return _text("classes")


def _generated():
    return {**_text(), "use_cache": False}


def _images():
    return {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])}


def _sounds():
    return {"input_values": torch.randn(2, 400), "labels": torch.tensor([0, 1])}


def _spectra():
    labels = torch.randint(3, WORDS, (2, 16))
    return {"input_features": torch.randn(2, 8, 40), "labels": labels, "use_cache": False}


def _padded():
    inputs = _text()
    inputs["attention_mask"][1, 12:] = 0
    return inputs


def _speech():
    labels = torch.tensor([[5, 9, 3, 7], [4, 2, -100, -100]])
    return {"input_values": torch.randn(2, 400), "labels": labels}


RELATIVE = {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}

# name: class, configuration, its values, batch
CASES = {
    "roberta": (hf.RobertaForMaskedLM, hf.RobertaConfig, TEXT, _text),
    "distilbert": (
        hf.DistilBertForSequenceClassification,
        hf.DistilBertConfig,
        {"vocab_size": WORDS, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
        _classes,
    ),
    "albert": (hf.AlbertForMaskedLM, hf.AlbertConfig, {**TEXT, "embedding_size": 16}, _text),
    # The next six look at values: of positions, masks and labels.
    "deberta": (hf.DebertaForMaskedLM, hf.DebertaConfig, RELATIVE, _padded),
    "deberta-v2": (
        hf.DebertaV2ForMaskedLM,
        hf.DebertaV2Config,
        {**RELATIVE, "position_buckets": 8, "conv_kernel_size": 3},
        _padded,
    ),
    "deberta-classes": (
        hf.DebertaV2ForSequenceClassification,
        hf.DebertaV2Config,
        {**RELATIVE, "num_hidden_layers": 1},
        _classes,
    ),
    "longformer-classes": (
        hf.LongformerForSequenceClassification,
        hf.LongformerConfig,
        {**TEXT, "num_hidden_layers": 1, "attention_window": 4},
        _classes,
    ),
    "longformer": (
        hf.LongformerForMaskedLM,
        hf.LongformerConfig,
        {**TEXT, "num_hidden_layers": 1, "attention_window": 4},
        _padded,
    ),
    "wav2vec2": (
        hf.Wav2Vec2ForCTC,
        hf.Wav2Vec2Config,
        {**AUDIO, "vocab_size": 20, "ctc_loss_reduction": "mean"},
        _speech,
    ),
    "bart": (hf.BartForConditionalGeneration, hf.BartConfig, SEQ2SEQ, _generated),
    "m2m100": (hf.M2M100ForConditionalGeneration, hf.M2M100Config, SEQ2SEQ, _generated),
    "t5": (
        hf.T5ForConditionalGeneration,
        hf.T5Config,
        {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2}
        | {"num_heads": 4, "decoder_start_token_id": 0},
        _generated,
    ),
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig, {**TEXT, "num_key_value_heads": 1}, _generated),
    "gptj": (
        hf.GPTJForCausalLM,
        hf.GPTJConfig,
        {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}
        | {"rotary_dim": 8},
        _generated,
    ),
    "beit": (
        hf.BeitForImageClassification,
        hf.BeitConfig,
        {**IMAGE, "use_relative_position_bias": True},
        _images,
    ),
    "swin": (
        hf.SwinForImageClassification,
        hf.SwinConfig,
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2]}
        | {"window_size": 4, "num_labels": 3},
        _images,
    ),
    "convnext": (
        hf.ConvNextForImageClassification,
        hf.ConvNextConfig,
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "num_labels": 3},
        _images,
    ),
    "hubert": (
        hf.HubertForSequenceClassification,
        hf.HubertConfig,
        {**AUDIO, "classifier_proj_size": 16},
        _sounds,
    ),
    "whisper": (
        hf.WhisperForConditionalGeneration,
        hf.WhisperConfig,
        {**SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 32}
        | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        _spectra,
    ),
    "mamba": (
        hf.MambaForCausalLM,
        hf.MambaConfig,
        {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4},
        lambda: {k: v for k, v in _generated().items() if k != "attention_mask"},
    ),
}


def _without_chance(model):
    """Dropout of all kinds off, in training mode."""
    names = ("p", "drop_prob", "dropout", "attention_dropout", "activation_dropout", "layerdrop")
    for part in (*model.modules(), model.config):
        for name in names:
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_one_step_as_in_eager(name):
    build, configuration, values, batch = CASES[name]
    torch.manual_seed(0)
    model = _without_chance(build(configuration(**values)).train())
    inputs = batch()
    eager = copy.deepcopy(model)
    options = poptorch.Options().showCompilationProgressBar(False)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    result = training(**inputs)
    assert training.getProgramSummary()["host_calls"] == []

    expected = eager(**inputs)
    assert type(result) is type(expected)
    assert_pass_close(result.loss, expected.loss.detach(), "loss")
    expected.loss.backward()
    torch.optim.SGD(eager.parameters(), lr=0.1).step()
    for key, value in eager.state_dict().items():
        assert_pass_close(model.state_dict()[key], value, key)
    eager(**inputs)  # nothing of the capture stayed in a cache of the library


def _as(dtype, inputs):
    def cast(value):
        floats = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if floats else value

    return {name: cast(value) for name, value in inputs.items()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["half", "bfloat16", "autocast"])
@pytest.mark.parametrize("name", ["distilbert", "bart", "t5", "llama", "swin", "hubert", "whisper"])
def test_trains_in_sixteen_bits(name, way):
    build, configuration, values, batch = CASES[name]
    torch.manual_seed(0)
    model = _without_chance(build(configuration(**values)).train())
    inputs = batch()
    expected = copy.deepcopy(model)(**inputs).loss.item()
    if way == "autocast":
        model.autocast()
    else:
        dtype = getattr(torch, way.replace("half", "float16"))
        model.to(dtype)
        inputs = _as(dtype, inputs)
    options = poptorch.Options().showCompilationProgressBar(False)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-3, loss_scaling=128.0)
    training = poptorch.trainingModel(model, options, optimizer)
    losses = [float(training(**inputs).loss) for _ in range(6)]
    assert abs(losses[0] - expected) < 0.01 * expected
    assert losses[-1] < losses[0]
    assert training.getProgramSummary()["host_calls"] == []
