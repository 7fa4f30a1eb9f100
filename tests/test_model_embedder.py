"""embedder: how a folder's vectors are made is read from it, and what is not known here is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_encoder import write_encoder

from model.embedder import embed_rows, load_embedder, read_recipe, tokenize
from orchestration.embed import embed_texts


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_encoder(tmp_path / "model")


def write_modules(folder: Path, *kinds: str, **pooling: object) -> None:
    """What sentence-transformers writes beside an encoder."""
    parts = [{"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"models.{kind}"}
             for i, kind in enumerate(kinds)]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(parts))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def by_hand(folder: Path, text: str, pooling: str) -> np.ndarray:
    from transformers import AutoModel, AutoTokenizer

    with torch.inference_mode():
        inputs = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt", truncation=True, max_length=32)
        hidden = AutoModel.from_pretrained(folder)(**inputs).last_hidden_state[0]
    vector = {"mean": hidden.mean(0), "cls": hidden[0], "max": hidden.max(0).values}[pooling]
    return (vector / vector.norm()).numpy()


def test_a_plain_encoder_is_averaged_and_says_so(folder):
    loaded = load_embedder(folder)
    assert loaded.note and "mean over all tokens" in loaded.note
    texts = ["w1 w2 w3", "w4", "w5 " * 1000]
    found = embed_texts(loaded, [(text,) for text in texts], "cpu")
    for text, vector in zip(texts, found, strict=True):
        assert np.abs(vector.numbers - by_hand(folder, text, "mean")).max() < 1e-6
    assert [vector.cut for vector in found] == [False, False, True]


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_pooling_as_the_folder_tells(pooling, folder):
    write_modules(folder, "Transformer", "Pooling", "Normalize", pooling_mode=pooling)
    loaded = load_embedder(folder)
    assert (loaded.pooling, loaded.note) == (pooling, None)
    found = embed_texts(loaded, [("w1 w2 w3",), ("w1 w2 w3 w4 w5 w6",)], "cpu")
    assert np.abs(found[0].numbers - by_hand(folder, "w1 w2 w3", pooling)).max() < 1e-6
    write_modules(folder, "Transformer", "Pooling", **{f"pooling_mode_{pooling}_token{'s' * (pooling != 'cls')}": True})
    assert read_recipe(folder).pooling == pooling


def test_prefixes_by_role(folder):
    with pytest.raises(ValueError, match="tells no prefix for a query; leave out --as"):
        load_embedder(folder, "query")
    write_modules(folder, "Transformer", "Pooling", pooling_mode="mean")
    prompts = {"query": "w7 ", "document": "w8 ", "other": "w9 "}
    told = folder / "config_sentence_transformers.json"
    told.write_text(json.dumps({"prompts": prompts, "default_prompt_name": "other"}))
    plain = write_encoder(folder.with_name("plain"))
    for role, prefix in (("query", "w7 "), ("passage", "w8 "), (None, "w9 ")):
        found = embed_texts(load_embedder(folder, role), [("w1",)], "cpu")[0].numbers
        assert np.array_equal(found, embed_texts(load_embedder(plain), [(prefix + "w1",)], "cpu")[0].numbers)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: write_modules(f, "Transformer", "Pooling", "Dense", pooling_mode="mean"), "go through Dense"),
        (lambda f: write_modules(f, "Transformer", "Pooling", pooling_mode="lasttoken"), "'lasttoken' is not known"),
        (lambda f: write_modules(f, "Transformer", "Pooling", pooling_mode=["cls", "mean"]), "is not known here"),
        (lambda f: (f / "modules.json").write_text('{"a": 1}'), "modules.json cannot be read"),
        (lambda f: (f / "modules.json").write_text("["), "modules.json cannot be read"),
    ],
)
def test_what_is_not_known_is_refused(change, message, folder):
    change(folder)
    with pytest.raises(ValueError, match=message) as caught:
        load_embedder(folder)
    assert "\n" not in str(caught.value)


def test_a_folder_leads_nowhere_outside_of_it(folder):
    """modules.json may name any path."""
    write_modules(folder, "Transformer", "Pooling", pooling_mode="cls")
    parts = json.loads((folder / "modules.json").read_text())
    parts[1]["path"] = "../../../../1_Pooling"
    (folder / "modules.json").write_text(json.dumps(parts))
    assert read_recipe(folder).pooling == "cls"


def test_vectors_do_not_depend_on_their_neighbours(folder):
    loaded = load_embedder(folder)
    rows = tokenize(loaded, ["w1 w2", "w3 w4 w5 w6 w7 w8", "w9"]).rows
    together = embed_rows(loaded, rows, "cpu")
    alone = np.concatenate([embed_rows(loaded, [row], "cpu") for row in rows])
    assert np.abs(together - alone).max() < 1e-6
    assert np.abs(np.linalg.norm(together, axis=1) - 1).max() < 1e-6
