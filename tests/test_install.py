"""What `make install` installs: exact versions of everything, wheels of any index, nothing of one machine."""

import os
import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
PINS = {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in LINES}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OWN = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]


@pytest.mark.parametrize("line", LINES)
def test_a_pin_is_a_name_and_a_public_version(line):
    """No local version (+cpu), hash, address, path or marker: the same file serves CPU and CUDA machines."""
    assert re.fullmatch(r"[A-Za-z0-9._-]+==\d[A-Za-z0-9.]*", line)


def test_no_name_stands_twice():
    assert len(PINS) == len(LINES)


def test_everything_that_is_needed_is_pinned():
    """Also what the dependencies need in their turn, as installed here."""
    build = [Requirement(text) for text in PROJECT["build-system"]["requires"]]
    wanted = [*build, *(Requirement(text) for group in (OWN, *EXTRAS.values()) for text in group)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while wanted:
        need = wanted.pop()
        name, key = canonicalize_name(need.name), (canonicalize_name(need.name), frozenset(need.extras))
        if key in seen:
            continue
        seen.add(key)
        if name == "triton" or name.startswith(("nvidia-", "cuda-")):  # torch's CUDA build pins these itself
            continue
        assert name in PINS, f"{name} is needed and not in constraints.txt"
        assert need.specifier.contains(PINS[name]), f"{name}=={PINS[name]} does not satisfy {need}"
        try:
            inner = [Requirement(text) for text in distribution(name).requires or ()]
        except PackageNotFoundError:  # the tools of `make check` are not installed for the tests
            assert name in {canonicalize_name(Requirement(text).name) for text in EXTRAS["check"]} | {"setuptools"}
            continue
        for extra in need.extras or {""}:
            wanted += [r for r in inner if r.marker is None or r.marker.evaluate({"extra": extra})]


def test_what_is_installed_here_is_what_is_pinned():
    for name, version in PINS.items():
        try:
            installed = distribution(name).version
        except PackageNotFoundError:
            continue
        if name not in ("pip", "setuptools"):
            assert installed.split("+")[0] == version, name


def test_every_room_is_packaged():
    rooms = ("data", "model", "orchestration", "tuning")
    folders = {path.parent for room in rooms for path in (ROOT / room).rglob("*.py")}
    named = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == named
    for folder in folders:
        assert (folder / "__init__.py").is_file(), f"{folder} would not travel with a submitted job"


def test_the_stamp_is_the_last_thing_an_install_does():
    makefile = (ROOT / "Makefile").read_text()
    recipe = makefile.split("\n.venv/installed:")[1].split("\n\n")[0].splitlines()
    commands = [line for line in recipe if line.startswith("\t") and "echo" not in line]
    assert commands[-1] == "\t@touch $@"
    assert all("--clear" in line for line in recipe if "-m venv" in line), "half an old .venv/ is no start"
    assert not re.search(r"(?<!\w)/(opt|work|root|home)/", makefile)


def test_ci_is_executable_and_runs_the_tests_and_the_road():
    path = ROOT / ".ci" / "run"
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in path.read_text()
    assert "stage make test" in path.read_text()
    assert "stage make demo" in path.read_text()
