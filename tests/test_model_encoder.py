"""Encoders: built as their family says, counted, the same from the same seed."""

import pytest
import torch
from transformers import BertConfig

from model.config import Encoder
from model.encoder import build_encoder, check_folder, encoder_config, num_parameters

TOKENIZER = {"vocab_size": 99, "pad_id": 0}
TINY = Encoder(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, dropout=0.2)


def test_every_field_arrives_in_the_family_config():
    config = encoder_config(TINY, {"vocab_size": 99, "pad_id": 7})
    assert isinstance(config, BertConfig)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (32, 2, 2)
    assert (config.intermediate_size, config.max_position_embeddings) == (64, 512)
    assert (config.vocab_size, config.pad_token_id) == (99, 7)
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.2


def test_same_seed_same_weights_and_the_caller_keeps_its_random_state():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two, other = (build_encoder(TINY, TOKENIZER, seed)[0] for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    same = [torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(one.get_input_embeddings().weight, other.get_input_embeddings().weight)


def test_parameters_are_counted_without_building():
    assert num_parameters(TINY, 99) == sum(p.numel() for p in build_encoder(TINY, TOKENIZER, 0)[0].parameters())
    base = Encoder(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
    assert num_parameters(base, 30522) == 109_514_298  # BertForMaskedLM, bert-base-uncased


def test_a_folder_gives_its_weights_and_its_vocabulary_must_fit(tmp_path):
    built = build_encoder(TINY, TOKENIZER, 1)[0]
    built.save_pretrained(tmp_path)
    loaded = build_encoder(Encoder(init=str(tmp_path)), TOKENIZER, 5)[0]
    assert torch.equal(loaded.get_input_embeddings().weight, built.get_input_embeddings().weight)
    with pytest.raises(ValueError, match="99 tokens, the tokenizer 100"):
        build_encoder(Encoder(init=str(tmp_path)), {"vocab_size": 100, "pad_id": 0}, 5)


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no config.json"):
        check_folder(tmp_path)
    encoder_config(TINY, {"vocab_size": 99, "pad_id": 0}).save_pretrained(tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="safetensors"):
        check_folder(tmp_path)
