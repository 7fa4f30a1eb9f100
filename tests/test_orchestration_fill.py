"""fill: runs by name, generators of replaced-token detection, hints, nothing raw on a terminal."""

import json
import shutil
from pathlib import Path

import pytest
from tiny_encoder import write_encoder

from data.config import UserError
from orchestration.cli import main
from orchestration.fill import fill
from orchestration.terminal import printable, printable_json


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run's folder with an export in it."""
    folder = tmp_path_factory.mktemp("fill")
    write_encoder(folder / "runs" / "demo" / "export")
    return folder


def write_electra(folder: Path, classes: str) -> Path:
    """A discriminator or a generator of random weights in the place of the folder's model."""
    import transformers

    config = transformers.ElectraConfig(
        vocab_size=65, embedding_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32,
    )  # fmt: skip
    write_encoder(folder)
    getattr(transformers, classes)(config).save_pretrained(folder)
    return folder


def test_a_run_is_named_or_its_folder_given(run, monkeypatch, capfd):
    monkeypatch.chdir(run)
    asked = ["w1 [MASK] w3", "--top", "3"]
    answers = []
    for model in ("demo", "runs/demo", "runs/demo/export", str(run / "runs" / "demo")):
        assert main(["fill", model, *asked]) == 0
        answers.append(capfd.readouterr())
    assert len({out for out, _ in answers}) == 1
    lines = answers[0].out.splitlines()
    expected = fill(run / "runs/demo/export", "w1 [MASK] w3", 3)[0]
    assert [line.split()[1] for line in lines] == [one.token for one in expected]
    assert all(line.endswith(one.text) for line, one in zip(lines, expected, strict=True))
    assert answers[0].err == ""
    assert main(["fill", "demo", "<mask> w1 [MASK]", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert [len(guesses) for guesses in told] == [5, 5]
    assert set(told[0][0]) == {"token", "probability", "text"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["demo", "no mask here"], "no mask in 'no mask here'; write [MASK]"),
        (["demo", "  "], "the text is blank"),
        (["demo", "w1 [MASK]", "--top", "0"], "--top 0: give a number from 1"),
        (["demo", "w1 [MASK]", "--top", "many"], "--top many: give a number from 1"),
        (["nowhere", "w1 [MASK]"], "no such folder"),
        (["runs", "w1 [MASK]"], "holds no config.json"),
    ],
)
def test_a_mistake_is_one_line(words, message, run, monkeypatch, capfd):
    monkeypatch.chdir(run)
    assert main(["fill", *words]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1 and message in captured.err


def test_the_generator_answers_for_its_discriminator(tmp_path):
    export = write_electra(tmp_path / "export", "ElectraForPreTraining")
    with pytest.raises(UserError, match="without what guesses tokens .* export/generator") as caught:
        fill(export, "w1 [MASK]")
    assert "\n" not in str(caught.value)
    write_electra(export / "generator", "ElectraForMaskedLM")
    assert fill(export, "w1 [MASK]", 3) == fill(export / "generator", "w1 [MASK]", 3)


def test_a_classifier_and_an_encoder_without_a_head_are_refused_with_a_hint(run, tmp_path):
    from transformers import BertForSequenceClassification, BertModel

    folder = tmp_path / "best"
    shutil.copytree(run / "runs/demo/export", folder)
    BertForSequenceClassification.from_pretrained(folder).save_pretrained(folder)
    with pytest.raises(UserError, match="BertForSequenceClassification, which labels texts: `cloze predict` does"):
        fill(folder, "w1 [MASK]")
    BertModel.from_pretrained(run / "runs/demo/export").save_pretrained(folder)
    with pytest.raises(UserError, match="BertModel, without what guesses tokens"):
        fill(folder, "w1 [MASK]")


def test_a_run_that_never_saw_a_mask_is_refused(run, tmp_path):
    """Its folder is a masked language model's; the run's config tells how it was trained."""
    shutil.copytree(run / "runs/demo/export", tmp_path / "export")
    (tmp_path / "config.yaml").write_text("objective:\n  name: mlm\n")
    assert fill(tmp_path / "export", "w1 [MASK]")
    (tmp_path / "config.yaml").write_text("objective:\n  name: clm\n")
    with pytest.raises(UserError, match="trained from left to right"):
        fill(tmp_path / "export", "w1 [MASK]")


def test_control_characters_are_written_out():
    label = "evil\x1b[31m\r\n\x9b2J\u202eright\U000e0041 苹果\u3000ñ"
    assert printable(label) == "evil\\u001b[31m\\r\\n\\u009b2J\\u202eright\\udb40\\udc41 苹果\u3000ñ"
    assert json.loads(printable_json({label: [label]})) == {label: [label]}
    assert not set(printable_json(label)) & set("\x1b\x9b\u202e")


def test_a_name_in_a_folder_of_others_reaches_the_terminal_written_out(run, tmp_path, capfd):
    folder = tmp_path / "best"
    shutil.copytree(run / "runs/demo/export", folder)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["\x1b[2JForSequenceClassification\nsecond line"]
    (folder / "config.json").write_text(json.dumps(config))
    assert main(["fill", str(folder), "w1 [MASK]"]) == 2
    error = capfd.readouterr().err
    assert "\\u001b[2JForSequenceClassification" in error
    assert "\x1b" not in error and len(error.splitlines()) == 1
