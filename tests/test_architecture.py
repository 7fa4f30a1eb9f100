"""The rules of the house, read from the sources: who may import whom, which door a library comes through, and form.

*/config.py -> orchestration/config -> data/*, model/* (never each other) -> orchestration/* -> tuning/* -> cli
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("data", "model", "orchestration", "tuning")
LEAVES = ("data.config", "model.config", "tuning.config")
ENTRANCES = tuple(
    f"orchestration.{name}"
    for name in ("cli", "verbs", "sweep_verbs", "row_verbs", "cluster_verbs", "job_verbs", "use_verbs", "__main__")
)
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for room in ROOMS
    for path in sorted((ROOT / room).rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}
WITH_RAY = tuple(f"data.{name}" for name in ("docstrings", "passes", "prepare"))  # the tasks of Ray Data
# They run on one GPU, or in a test, without Ray.
WITHOUT_RAY = (
    *(name for name in FILES if name.startswith("data.") and name not in WITH_RAY),
    *(f"orchestration.{name}" for name in ("config", "recipe", "identity", "plan", "budget", "progress", "metrics")),
    *(f"orchestration.{name}" for name in ("steps", "engine", "checkpoint", "run", "clock", "pulse", "status")),
    *(f"orchestration.{name}" for name in ("plain_engine", "optimizer", "universal", "gate", "bad_steps", "schedule")),
    *(f"orchestration.{name}" for name in ("fill", "inference", "lease", "output", "places", "terminal")),
    *(f"tuning.{name}" for name in ("config", "space", "search", "searchers", "scores", "leaderboard", "charts")),
    *(f"tuning.{name}" for name in ("report", "analysis")),
    *(name for name in FILES if name.startswith("model.")),
)
LONGEST_FILE_LINES = 300
VAGUE = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc", "core"}


def imports_of(name: str) -> dict[str, set[str]]:
    """Every module that a module imports, wherever in it, with the names taken from it."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.setdefault(alias.name, set())
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: a relative import hides which room it enters"
            found.setdefault(node.module or "", set()).update(alias.name for alias in node.names)
    return found


def modules_of(name: str) -> set[str]:
    """Modules of ours that a module imports; `from orchestration import metrics` is orchestration.metrics."""
    ours: set[str] = set()
    for module, names in imports_of(name).items():
        if module.split(".")[0] in ROOMS:
            inside = {f"{module}.{taken}" for taken in names} & FILES.keys()
            ours |= inside or {module}
    return ours


def libraries_of(name: str) -> set[str]:
    """Modules of others, and every dotted name that could be one: `from ray import tune` is ray.tune too."""
    found = imports_of(name)
    theirs = {module: names for module, names in found.items() if module.split(".")[0] not in ROOMS}
    return set(theirs) | {f"{module}.{taken}" for module, names in theirs.items() for taken in names}


def enters(name: str, library: str) -> bool:
    """Does a module import a library or a part of it?"""
    return any(module == library or module.startswith(library + ".") for module in libraries_of(name))


def allowed(name: str, module: str) -> bool:
    """May `name` import `module`?"""
    room, target = name.split(".")[0], module.split(".")[0]
    if name in LEAVES:
        return False
    if name == "orchestration.config":
        return module in LEAVES
    if name in ENTRANCES:
        return True
    if module in ENTRANCES:
        return False
    return (
        target
        in {
            "data": ("data",),
            "model": ("model",),
            "orchestration": ("data", "model", "orchestration"),
            "tuning": ROOMS,
        }[room]
    )


@pytest.mark.parametrize("name", FILES)
def test_imports_go_one_way(name):
    wrong = sorted(module for module in modules_of(name) if not allowed(name, module))
    assert not wrong, f"{name} may not import {wrong}"


def test_rooms_are_not_imported_whole():
    """`import model` would hide the package behind the local variable of that name."""
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                rooms = [alias.name for alias in node.names if alias.name.split(".")[0] in ROOMS]
                assert not rooms, f"{name}:{node.lineno}: write `from {rooms[0]} import ...`"


@pytest.mark.parametrize(
    ("library", "doors"),
    [
        ("deepspeed", r"orchestration\.(engine|universal)"),
        ("ray.tune", r"tuning\..*"),
        ("ray.train", r"(orchestration|tuning)\..*"),
        ("ray", r"(data|orchestration|tuning)\..*"),
        ("torch", r"(model|orchestration|tuning)\..*"),
        ("peft", r"model\..*"),
        ("rich", r"orchestration\.(progress|(sweep_|row_|cluster_|job_)?verbs)"),
        ("matplotlib", r"tuning\.drawing"),
        ("sklearn", r"tuning\.scores"),
        ("optuna", r"tuning\.searchers"),
        ("pydantic", r"(.*\.)?(config|recipe)"),
    ],
)
def test_libraries_come_through_their_doors(library, doors):
    wrong = [name for name in FILES if enters(name, library) and not re.fullmatch(doors, name)]
    assert not wrong, f"{library} may be imported in {doors} only, not in {wrong}"


def test_data_takes_only_tokenizers_from_transformers():
    for name in FILES:
        if name.startswith("data."):
            for module, names in imports_of(name).items():
                if module.split(".")[0] == "transformers":
                    others = [taken for taken in names if "Token" not in taken]
                    assert names and not others, f"{name} takes {others or module} from transformers"


def test_what_runs_without_ray_does_not_import_it():
    """In the sources, and in fact: whatever these modules import in their turn leaves Ray out too."""
    assert not [name for name in WITHOUT_RAY if enters(name, "ray")]
    source = f"import sys, importlib\nfor name in {WITHOUT_RAY!r}: importlib.import_module(name)\n"
    source += "assert 'ray' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_reading_a_config_or_asking_for_help_loads_nothing_heavy():
    heavy = ("ray", "torch", "transformers", "deepspeed", "pyarrow", "pandas", "rich", "matplotlib", "sklearn")
    for name in ("orchestration.config", "orchestration.progress", "orchestration.cli"):
        source = f"import sys, {name}; print([m for m in {heavy!r} if m in sys.modules])"
        done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.stdout == "[]\n", f"{name}: {done.stdout}{done.stderr}"


@pytest.mark.parametrize("name", FILES)
def test_form(name):
    path = FILES[name]
    source = path.read_text(encoding="utf-8")
    assert ast.get_docstring(TREES[name]) or not source.strip(), f"{name}: no docstring"
    assert source.count("\n") <= LONGEST_FILE_LINES, f"{name}: a file this long does two things: split it"
    assert path.stem not in VAGUE, f"{name}: name it after what it holds"
    assert path.stem not in sys.stdlib_module_names, f"{name}: the name of a module of Python"
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", source), f"{name}: file an issue, or do it"
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            bare = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
            assert not bare and node.returns is not None, f"{name}:{node.lineno}: {node.name}: types are missing"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            assert name in ENTRANCES, f"{name}:{node.lineno}: only the command line prints"


def test_tests_lie_flat_and_name_their_room():
    for path in (ROOT / "tests").glob("test_*.py"):
        room = path.stem.split("_")[1]
        assert room in (*ROOMS, "architecture", "install", "road", "conftest"), f"{path.name}: test_<room>_<file>.py"
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{path.name}: no docstring"


def test_the_rules_above_catch_what_they_forbid():
    """A rule that cannot fail guards nothing: each is shown a sinner."""
    sins = {
        "data.sin": "from model.encoder import build_encoder\nimport torch\nfrom ray import tune\n",
        "model.sin": "import ray.data\nimport deepspeed\nfrom data import config\n",
        "orchestration.sin": "from tuning import sweep\nfrom orchestration import cli\n",
    }
    for name, source in sins.items():
        TREES[name] = ast.parse(source)
    try:
        assert not allowed("data.sin", "model.encoder")
        assert modules_of("data.sin") == {"model.encoder"}
        assert enters("data.sin", "torch")
        assert enters("data.sin", "ray.tune")
        assert enters("model.sin", "ray")
        assert enters("model.sin", "deepspeed")
        assert modules_of("model.sin") == {"data.config"}
        assert not [module for module in modules_of("orchestration.sin") if allowed("orchestration.sin", module)]
    finally:
        for name in sins:
            del TREES[name]
