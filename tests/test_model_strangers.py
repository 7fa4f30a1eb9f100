"""Folders of strangers given to embed and fill: refused in one line, or opened without running anything in them."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny_encoder import write_encoder

from model.blanks import fill_masks, load_filler
from model.embedder import load_embedder
from model.families import family_of
from model.opening import check_files, check_weights

BOMB = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nraise SystemExit('ran')\n"


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_encoder(tmp_path / "model")


def change_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def pickle_weights(folder: Path) -> None:
    from safetensors.torch import load_file

    torch.save(load_file(str(folder / "model.safetensors")), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: shutil.rmtree(f), "no such folder"),
        (lambda f: (f / "config.json").unlink(), "not a Hugging Face folder: it holds no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda f: (f / "config.json").write_text("[1]"), "config.json cannot be read: it holds no JSON object"),
        (lambda f: [p.unlink() for p in f.glob("tokenizer*")], "it holds no tokenizer"),
        (lambda f: (f / "model.safetensors").unlink(), "it holds no weights"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\0" * 100), "cannot be loaded"),
        (lambda f: change_config(f, num_hidden_layers=3), "weights missing"),
        (lambda f: change_config(f, hidden_size=32), "cannot be loaded|misshapen"),
        (lambda f: change_config(f, model_type="unheard"), "unheard"),
        (lambda f: change_config(f, vocab_size=64), "the tokenizer has 65 tokens, the model 64: not a pair"),
        (pickle_weights, r"pickled \(pytorch_model.bin\), and a pickle can run any code"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(damage, message, folder):
    damage(folder)
    for load in (load_embedder, load_filler):
        with pytest.raises(ValueError, match=message) as caught:
            load(folder)
        assert "\n" not in str(caught.value)


def test_pickled_weights_are_opened_where_that_is_asked_for(folder):
    before = fill_masks(load_filler(folder), "w1 [MASK]", 3)
    pickle_weights(folder)
    with pytest.raises(ValueError, match="--allow-pickle"):
        load_filler(folder)
    assert fill_masks(load_filler(folder, pickled=True), "w1 [MASK]", 3) == before


def test_code_of_a_folder_is_never_run(folder):
    """Code beside a known model: the model opens, the code stays unread. Of an unknown one: refused."""
    (folder / "bomb.py").write_text(BOMB)
    maps = {"AutoConfig": "bomb.Config", "AutoModel": "bomb.Model", "AutoModelForMaskedLM": "bomb.Model"}
    change_config(folder, auto_map=maps)
    told = json.loads((folder / "tokenizer_config.json").read_text())
    told["auto_map"] = {"AutoTokenizer": ["bomb.Tokenizer", "bomb.Tokenizer"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    assert fill_masks(load_filler(folder), "w1 [MASK]", 1)
    assert load_embedder(folder).note
    change_config(folder, model_type="of-its-own", architectures=["OfItsOwn"])
    for load in (load_embedder, load_filler):
        with pytest.raises(ValueError, match="of-its-own"):
            load(folder)
    assert not (folder / "ran").exists()


def test_an_index_beside_whole_weights_is_not_asked(folder):
    (folder / "model.safetensors.index.json").write_text('{"weight_map": null}')
    check_weights(folder)
    with pytest.raises(ValueError, match="names other files than"):
        (folder / "model.safetensors").unlink()
        check_files(folder)


def test_a_deberta_without_a_matrix_of_its_own_behind_the_last_layer(tmp_path):
    """Whose config says "legacy": false, as the original code has it."""
    from transformers import DebertaV2Config, DebertaV2ForMaskedLM

    shape = DebertaV2Config(
        vocab_size=65, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, legacy=False,
    )  # fmt: skip
    model = DebertaV2ForMaskedLM(shape).eval()
    ids = torch.randint(5, 65, (2, 8))
    with torch.no_grad():
        hidden = model.deberta(ids).last_hidden_state
        torch.testing.assert_close(family_of(shape).masked_lm_head(model, hidden), model(ids).logits)
