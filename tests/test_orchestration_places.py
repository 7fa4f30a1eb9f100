"""places: a model is found by folder, by a run's or a sweep's name, what the verb needs first."""

from pathlib import Path

import pytest

from data.config import UserError
from orchestration.places import blaming, find_model


@pytest.fixture
def storage(tmp_path, monkeypatch) -> Path:
    for folder in ("runs/law/export", "runs/law-sweep/best", "runs/law-sweep", "mine", "runs/other-sweep/best"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        if folder != "runs/law-sweep":
            (tmp_path / folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "inside", "found"),
    [
        ("law", ("best", "export"), "runs/law-sweep/best"),
        ("law", ("export", "best"), "runs/law/export"),
        ("law-sweep", ("export", "best"), "runs/law-sweep/best"),
        ("other", ("export", "best"), "runs/other-sweep/best"),
        ("runs/law", ("best", "export"), "runs/law/export"),
        ("runs/law/export", ("best", "export"), "runs/law/export"),
        ("mine", ("best", "export"), "mine"),
        ("nowhere", ("best", "export"), "nowhere"),
    ],
)
def test_a_model_is_found(name, inside, found, storage):
    assert find_model(name, "runs", inside) == storage / found
    assert find_model(str(storage / found), "elsewhere", inside) == storage / found


def test_a_fault_names_the_folder_once():
    for text in ("is broken", "/a/b: is broken"):
        with pytest.raises(UserError, match=r"^/a/b: is broken$"), blaming(Path("/a/b")):
            raise ValueError(text)
