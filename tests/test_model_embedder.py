"""embedder: how a folder's vectors are made is read from it, and what is not known here is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_encoder import write_encoder
from transformers import AutoModel, AutoTokenizer

from model.embedder import Role, check_embedder, load_embedder
from model.heads.loading import load_head
from orchestration.embed import embed_texts
from orchestration.inference import Loaded, load


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


def open_embedder(folder: Path, role: Role | None = None) -> Loaded:
    module, about, prefix, _ = load_embedder(folder, role)
    return load(module, about, folder, prefix)


def by_hand(folder: Path, text: str, pooling: str) -> np.ndarray:
    with torch.inference_mode():
        inputs = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt", truncation=True, max_length=32)
        hidden = AutoModel.from_pretrained(folder)(**inputs).last_hidden_state[0]
    vector = {"mean": hidden.mean(0), "cls": hidden[0], "max": hidden.max(0).values}[pooling]
    return (vector / vector.norm()).numpy()


def test_a_plain_encoder_is_averaged_and_says_so(folder):
    assert "mean over all tokens" in str(load_embedder(folder).note)
    loaded = open_embedder(folder)
    texts = ["w1 w2 w3", "w4", "w5 " * 1000]
    found = embed_texts(loaded, [(text,) for text in texts], "cpu")
    for text, vector in zip(texts, found, strict=True):
        assert np.abs(vector.numbers - by_hand(folder, text, "mean")).max() < 1e-6
    assert [vector.cut for vector in found] == [False, False, True]


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_pooling_as_the_folder_tells(pooling, folder):
    write_modules(folder, "Transformer", "Pooling", "Normalize", pooling_mode=pooling)
    assert load_embedder(folder).note is None
    found = embed_texts(open_embedder(folder), [("w1 w2 w3",), ("w1 w2 w3 w4 w5 w6",)], "cpu")
    assert np.abs(found[0].numbers - by_hand(folder, "w1 w2 w3", pooling)).max() < 1e-6
    write_modules(folder, "Transformer", "Pooling", **{f"pooling_mode_{pooling}_token{'s' * (pooling != 'cls')}": True})
    assert load_embedder(folder).about.head.pooling == pooling


def test_an_embedding_that_we_wrote(folder, tmp_path):
    """With a projection behind the mean, and prefixes."""
    from model.config import Head
    from model.heads.building import build_head
    from model.heads.description import Description
    from model.heads.exporting import export_head

    head = Head(kind="embedding", pooling="mean", layers="linear", query_prefix="w7 ", passage_prefix="w8 ")
    module = build_head(folder, head, [], seed=1).eval()
    export_head(module, folder, tmp_path / "best", {}, Description("embedding", (), 24, head))
    for role, prefix in (("query", "w7 "), ("passage", "w8 "), (None, "")):
        found = embed_texts(open_embedder(tmp_path / "best", role), [("w1 w2",)], "cpu")[0].numbers
        ids = AutoTokenizer.from_pretrained(folder)(f"{prefix}w1 w2", return_tensors="pt")
        with torch.inference_mode():
            assert np.abs(module.outputs(dict(ids))["vectors"][0].numpy() - found).max() < 1e-6


def test_prefixes_by_role(folder):
    with pytest.raises(ValueError, match="it tells no prefix for a query; leave out --as"):
        load_embedder(folder, "query")
    write_modules(folder, "Transformer", "Pooling", pooling_mode="mean")
    prompts = {"query": "w7 ", "document": "w8 ", "other": "w9 "}
    told = folder / "config_sentence_transformers.json"
    told.write_text(json.dumps({"prompts": prompts, "default_prompt_name": "other"}))
    plain = write_encoder(folder.with_name("plain"))
    for role, prefix in (("query", "w7 "), ("passage", "w8 "), (None, "w9 ")):
        found = embed_texts(open_embedder(folder, role), [("w1",)], "cpu")[0].numbers
        assert np.array_equal(found, embed_texts(open_embedder(plain), [(prefix + "w1",)], "cpu")[0].numbers)


def test_pairs_have_the_default_prompt_where_the_folder_tells_none_for_their_sides(folder):
    write_modules(folder, "Transformer", "Pooling", pooling_mode="mean")
    prompts = {"clustering": "w7 ", "passage": "w8 "}
    write_json(folder, "config_sentence_transformers.json", prompts=prompts, default_prompt_name="clustering")
    head = load_head(folder)[1].head
    assert (head.query_prefix, head.passage_prefix) == ("w7 ", "w8 ")


def test_a_prompt_of_null_is_none(folder):
    write_modules(folder, "Transformer", "Pooling", pooling_mode="mean")
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": null, "document": null}}')
    assert (load_embedder(folder, "query").prefix, load_embedder(folder).about.head.query_prefix) == ("", "")


def write_json(folder: Path, name: str, **content: object) -> None:
    (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: write_modules(f, "Transformer", "Pooling", "Dense", pooling_mode="mean"), "Dense"),
        (lambda f: write_modules(f, "Transformer", "Pooling", pooling_mode="lasttoken"), "one of cls, mean and max"),
        (lambda f: write_json(f, "sentence_bert_config.json", do_lower_case=True), "folds case before the tokenizer"),
        (lambda f: (write_json(f, "1_Pooling/config.json", pooling_mode="mean", include_prompt=False),
                    write_json(f, "config_sentence_transformers.json", prompts={"query": "w7 "})), "out of the mean"),
        (lambda f: (f / "head.json").write_text('{"kind": "embedding"}'), "head.json cannot be used"),
        (lambda f: (f / "modules.json").write_text("{}"), "modules.json cannot be read: it holds no JSON list"),
        (lambda f: (f / "modules.json").write_text("[1]"), "modules.json cannot be read: it holds no list of modules"),
        (lambda f: (f / "modules.json").write_text("[" * 100_000), "modules.json cannot be read"),
        (lambda f: write_json(f, "sentence_bert_config.json", max_seq_length=[1]), r"max_seq_length is \[1\]"),
        (lambda f: write_json(f, "sentence_bert_config.json", max_seq_length=-4), "max_seq_length is -4"),
        (lambda f: write_json(f, "config_sentence_transformers.json", prompts=[1]), "are no texts"),
        (lambda f: write_json(f, "config_sentence_transformers.json", prompts={"query": 5}), "are no texts"),
        (lambda f: write_json(f, "config_sentence_transformers.json", default_prompt_name={}), "are no texts"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(change, message, folder):
    write_modules(folder, "Transformer", "Pooling", pooling_mode="mean")
    change(folder)
    for opened in (load_embedder, load_head):  # cloze embed, cloze predict
        with pytest.raises(ValueError, match=message) as caught:
            opened(folder)
        assert "\n" not in str(caught.value)


def test_a_prefix_is_told_without_reading_weights(folder):
    write_modules(folder, "Transformer", "Pooling", pooling_mode="mean")
    write_json(folder, "config_sentence_transformers.json", prompts={"query": "w7 "})
    (folder / "model.safetensors").write_bytes(b"none")
    assert [check_embedder(folder, role) for role in ("query", None)] == ["w7 ", ""]
    with pytest.raises(ValueError, match="it tells no prefix for a passage"):
        check_embedder(folder, "passage")


def test_vectors_do_not_depend_on_their_neighbours(folder):
    loaded = open_embedder(folder)
    texts = [("w1 w2",), ("w3 w4 w5 w6 w7 w8",), ("w9",)]
    together = np.stack([vector.numbers for vector in embed_texts(loaded, texts, "cpu")])
    alone = np.stack([embed_texts(loaded, [text], "cpu")[0].numbers for text in texts])
    assert np.abs(together - alone).max() < 1e-6
    assert np.abs(np.linalg.norm(together, axis=1) - 1).max() < 1e-6
