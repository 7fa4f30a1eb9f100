"""What travels is Cloze's code and the recipe, whatever else lies around; its size is told and bounded."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from data.config import UserError
from orchestration.ship import LIMIT_BYTES, RECIPE, ROOMS, shipped


@pytest.fixture
def tree(tmp_path) -> Path:
    """A checkout with one module a room, and what lies around in one."""
    for room in ROOMS:
        (tmp_path / room / "__pycache__").mkdir(parents=True)
        (tmp_path / room / "__init__.py").write_text("")
        (tmp_path / room / "logging.py").write_text("x = 1\n")
        (tmp_path / room / "__pycache__" / "logging.pyc").write_bytes(b"\x00")
    (tmp_path / "orchestration" / "recipes").mkdir()
    (tmp_path / "orchestration" / "recipes" / "demo.yaml").write_text("name: demo\n")
    (tmp_path / ".gitignore").write_text("data/\nlog*\n")
    (tmp_path / ".rayignore").write_text("*\n")
    (tmp_path / "corpus.txt").write_text("text")
    (tmp_path / ".env").write_text("RAY_AUTH_TOKEN=" + "0123456789abcdef")
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "big.bin").touch()
    os.truncate(tmp_path / "big.bin", 150_000_000)
    return tmp_path


def names(archive: Path) -> set[str]:
    with zipfile.ZipFile(archive) as file:
        return set(file.namelist())


def test_the_rooms_travel_and_nothing_else(tree):
    with shipped(source=tree) as shipment:
        assert names(shipment.archive) == {
            *(f"{room}/{name}" for room in ROOMS for name in ("__init__.py", "logging.py")),
            "orchestration/recipes/demo.yaml",
        }
        assert shipment.num_bytes == shipment.archive.stat().st_size < 10_000
        assert str(shipment) == "9 files, 0.0 MB: the rooms data, model, orchestration, tuning"
    assert not shipment.archive.exists()


def test_what_a_room_holds_and_does_not_travel_is_said(tree):
    (tree / "data" / "weights.bin").write_bytes(b"x")
    (tree / "model" / ".env").write_text("x")
    (tree / "model" / "elsewhere.json").symlink_to(tree / "corpus.txt")
    with shipped(source=tree) as shipment:
        assert shipment.left_out == ("data/weights.bin", "model/.env", "model/elsewhere.json")
        assert "left out 3" in str(shipment) and "data/weights.bin" in str(shipment)
        assert not names(shipment.archive) & set(shipment.left_out)


def test_the_recipe_travels_under_one_name(tree):
    (tree / "law.yaml").write_text("name: law\n")
    with shipped(tree / "law.yaml", source=tree) as shipment, zipfile.ZipFile(shipment.archive) as file:
        assert file.read(RECIPE) == b"name: law\n"


def test_the_same_files_give_the_same_bytes(tree):
    """Ray knows an archive by its hash: what it has is not uploaded again."""
    with shipped(source=tree) as one:
        first = one.archive.read_bytes()
    os.utime(tree / "data" / "logging.py", (1, 1))
    with shipped(source=tree) as two:
        assert two.archive.read_bytes() == first


def test_what_ray_would_not_take_is_refused_with_the_largest_files(tree):
    with (tree / "data" / "vectors.json").open("wb") as file:  # random bytes: they do not shrink
        for _ in range(LIMIT_BYTES // 2**20 + 1):
            file.write(os.urandom(2**20))
    (tree / "model" / "second.json").write_bytes(os.urandom(2**20))
    with pytest.raises(UserError) as caught, shipped(source=tree):
        pass
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    assert "Ray takes 104.9 MB; the largest: data/vectors.json (105.9 MB), model/second.json (1.0 MB), " in line
    assert line.count(" MB)") == 5 and "move what is no code out of" in line


@pytest.mark.parametrize("name", ["data/settings.py", "recipe"])
def test_a_file_that_holds_a_credential_does_not_travel(tree, name):
    path = tree / ("law.yaml" if name == "recipe" else name)
    path.write_text("x: 1\n# the bucket's: " + "AKIA" + "Z" * 16 + "\n")
    with pytest.raises(UserError) as caught, shipped(tree / "law.yaml" if name == "recipe" else None, source=tree):
        pass
    shown = path if name == "recipe" else name
    assert str(caught.value).startswith(f"{shown}, line 2: holds an AWS access key (it is not shown)")
    assert "AKIA" not in str(caught.value)


def test_this_tree_runs_from_its_archive_alone(tmp_path):
    """Modules, shipped recipes and all: from a place where nothing else of Cloze can be imported."""
    with shipped() as shipment:
        assert shipment.num_bytes < 1_000_000
        assert not shipment.left_out, shipment.left_out
        with zipfile.ZipFile(shipment.archive) as file:
            file.extractall(tmp_path)
    program = (
        "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f)]\n"
        "from orchestration import cli; raise SystemExit(cli.main(['show', '-c', 'pretrain_base', 'name=x']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "name: x" in done.stdout
