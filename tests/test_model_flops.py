"""Operations of a step against those that torch counts while it multiplies; peaks of devices."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForMaskedLM

from model.flops import peak_flops, published
from model.objectives.masked import MaskedLM


@pytest.mark.parametrize(("layers", "tokens", "targets"), [(1, 8, 3), (3, 24, 10)])
def test_a_step_multiplies_what_torch_counts(layers, tokens, targets):
    rows = 4
    shape = BertConfig(
        vocab_size=1000, hidden_size=64, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=160,
        attn_implementation="eager",  # torch counts the parts of attention, not the fused operation of CPUs
    )  # fmt: skip
    labels = torch.full((rows, tokens), -100)
    labels.view(-1)[:targets] = 5
    batch = {
        "input_ids": torch.randint(1, 1000, (rows, tokens)),
        "attention_mask": torch.ones(rows, tokens, dtype=torch.long),
        "labels": labels,
    }
    objective = MaskedLM(BertForMaskedLM(shape))
    with FlopCounterMode(display=False) as counted:
        objective(batch)[0]["mlm"].backward()
    assert objective.flops(rows * tokens, {"mlm": targets}, tokens) == counted.get_total_flops()


def test_only_known_whole_gpus_have_a_published_peak():
    assert published("NVIDIA A100-SXM4-80GB") == 312e12
    assert published("NVIDIA H100 80GB HBM3") == 989e12
    assert published("NVIDIA H100 PCIe") == 756e12
    assert published("NVIDIA H200 NVL") == 835e12
    assert published("NVIDIA A10") == 125e12
    for name in ("NVIDIA A10G", "NVIDIA L40", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "Tesla T4"):
        assert published(name) is None


def test_other_devices_are_measured():
    peak, measured = peak_flops(torch.device("cpu"), bf16=False)
    assert measured and 1e8 < peak < 1e14
