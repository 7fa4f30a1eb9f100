"""The exported folder: loads where Cloze is not installed, with equal logits, tied, and whole or not at all."""

import json
import subprocess
import sys

import pytest
import torch
from stranger import PRELUDE
from tiny_encoder import write_encoder, write_tokenizer
from transformers import AutoModelForMaskedLM, AutoTokenizer

from model.config import Encoder, Objective
from model.export import export_folder, export_objective
from model.families import FAMILIES
from model.objectives.catalogue import build_objective

TEXT = "w1 w2 w3 w4"
# Runs in an empty folder, isolated.
STRANGER = PRELUDE + """
import json, torch, transformers
folder, auto, text = sys.argv[1:]
model = getattr(transformers, auto).from_pretrained(folder).eval()
tokens = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
with torch.no_grad():
    print(json.dumps(model(**tokens).logits.tolist()))
"""


def logits_elsewhere(folder, auto: str, text: str, cwd) -> torch.Tensor:
    """Logits of the folder in a process that cannot import Cloze."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", STRANGER, str(folder), auto, text],
        cwd=cwd, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return torch.tensor(json.loads(done.stdout))


@pytest.fixture
def trained(tmp_path):
    return AutoModelForMaskedLM.from_pretrained(str(write_encoder(tmp_path / "trained", seed=3))).eval()


def test_the_folder_loads_without_cloze_with_equal_logits(trained, tmp_path) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    export_folder(trained, tmp_path / "tokenizer", tmp_path / "export", {"title": "Tiny", "masked loss": 5.12345})
    tokens = AutoTokenizer.from_pretrained(str(tmp_path / "tokenizer"))(TEXT, return_tensors="pt")
    tokens.pop("token_type_ids", None)
    with torch.no_grad():
        expected = trained(**tokens).logits
    actual = logits_elsewhere(tmp_path / "export", "AutoModelForMaskedLM", TEXT, tmp_path)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    card = (tmp_path / "export" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: fill-mask\n---\n")
    assert "# Tiny" in card and "| masked loss | 5.123 |" in card
    assert not list(tmp_path.glob("export.*"))


def test_gathered_weights_replace_empty_ones_and_the_decoder_stays_tied(trained, tmp_path) -> None:
    gathered = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    for parameter in trained.parameters():
        parameter.data = torch.empty(0)  # as ZeRO stage 3 leaves them
    export_folder(trained, tmp_path / "trained", tmp_path / "export", {}, state_dict=gathered)
    loaded = AutoModelForMaskedLM.from_pretrained(str(tmp_path / "export"))
    assert loaded.cls.predictions.decoder.weight is loaded.bert.embeddings.word_embeddings.weight
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, gathered[name]), name


def test_gathered_weights_must_be_whole_and_ours(trained, tmp_path) -> None:
    export_folder(trained, tmp_path / "trained", tmp_path / "export", {"title": "first"})
    state = dict(trained.state_dict())
    lost = state.pop("bert.encoder.layer.0.output.dense.weight")
    with pytest.raises(RuntimeError, match="layer.0.output.dense"):
        export_folder(trained, tmp_path / "trained", tmp_path / "export", {}, state_dict=state)
    state["bert.encoder.layer.0.output.dense.weight"] = lost
    state["someone.else"] = lost
    with pytest.raises(RuntimeError, match="someone.else"):
        export_folder(trained, tmp_path / "trained", tmp_path / "export", {}, state_dict=state)
    assert "# first" in (tmp_path / "export" / "README.md").read_text()  # the old folder stays


def test_an_export_replaces_the_older_one_whole(trained, tmp_path) -> None:
    export_folder(trained, tmp_path / "trained", tmp_path / "export", {"title": "first"})
    (tmp_path / "export" / "stale.txt").write_text("old")
    (tmp_path / "export.part").mkdir()
    (tmp_path / "export.part" / "half.txt").write_text("left by a killed export")
    export_folder(trained, tmp_path / "trained", tmp_path / "export", {"title": "second"})
    names = {file.name for file in (tmp_path / "export").iterdir()}
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    assert not names & {"stale.txt", "half.txt"}
    assert "# second" in (tmp_path / "export" / "README.md").read_text()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokenizer_of_a_folder_gives_what_its_model_takes(family: str, tmp_path) -> None:
    """Two texts through plain transformers, as the card says: with segments where the family has them."""
    write_tokenizer(tmp_path / "tokenizer")
    encoder = Encoder(
        family=family, hidden_size=16, num_attention_heads=2, intermediate_size=32, max_position_embeddings=32
    )  # type: ignore[arg-type]
    ids = {"vocab_size": 65, "pad_id": 0, "cls_id": 2, "sep_id": 3, "mask_id": 4}
    objective = build_objective(Objective(), encoder, ids, 0)[0]
    export_objective(objective, objective.state_dict(), tmp_path / "tokenizer", tmp_path / "export", {})
    tokens = AutoTokenizer.from_pretrained(tmp_path / "export")("w1 w2", "w3", return_tensors="pt")
    assert ("token_type_ids" in tokens) == FAMILIES[family].segments
    with torch.no_grad():
        logits = AutoModelForMaskedLM.from_pretrained(tmp_path / "export")(**tokens).logits
    assert logits.shape == (1, tokens["input_ids"].shape[1], 65)
