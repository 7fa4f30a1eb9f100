"""The file of `ray up`, read before a machine is paid for; and the files that Cloze has to offer.

In: a path; or the kind of cluster that is wanted. Out: one line per fault (key, value, what is allowed, what to do); or
the text of a file. Asks no network. What a fault is stands in launcher_machines.py and launcher_commands.py; Ray's own
schema and validation have the last word.
"""

import contextlib
import importlib.util
import io
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from data.config import UserError
from orchestration.launcher_commands import FULL
from orchestration.launcher_machines import GIVEN, Tree
from orchestration.recipe import parse_yaml

CLUSTERS = Path(__file__).parent / "clusters"
KINDS = tuple(sorted(path.stem for path in CLUSTERS.glob("*.yaml")))
# What `ray up` calls on this machine, by provider; None: all of them. The module is imported, the others are run.
TOOLS: tuple[tuple[str | None, str, str], ...] = (
    (None, "rsync", "Ray copies file_mounts with it; install it (apt install rsync, brew install rsync)"),
    (None, "ssh", "Ray reaches the machines with it; install it (apt install openssh-client)"),
    ("aws", "boto3", "Ray asks AWS for machines with it; pip install boto3"),
)
# Keys that Ray's schema does not know, and why they are written all the same.
LEGACY = {
    "head_node": "Ray no longer reads it; move it to available_node_types.HEAD.node_config",
    "worker_nodes": "Ray no longer reads it; move it to available_node_types.WORKER.node_config",
    "initial_workers": "Ray no longer reads it; give available_node_types.WORKER.min_workers",
    "autoscaling_mode": "Ray no longer reads it; give upscaling_speed",
    "target_utilization_fraction": "Ray no longer reads it; give upscaling_speed",
}


def example(kind: str) -> str:
    """The text of a cluster file that Cloze offers; `kind` is one of KINDS."""
    return (CLUSTERS / f"{kind}.yaml").read_text(encoding="utf-8")


def find_faults(path: Path) -> list[str]:
    """All that can be found wrong with a cluster file, and with this machine, without asking anybody."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return [f"{path}: cannot be read ({error}); give the file of `ray up`, or print one: cloze cluster aws"]
    try:
        given = parse_yaml(text, str(path))
    except UserError as error:
        return [str(error)]
    if not isinstance(given, dict):
        return [f"{path}: holds {type(given).__name__}, not a mapping of keys; print a whole one: cloze cluster aws"]
    if "apiVersion" in given:
        return [f"{path}: a manifest of Kubernetes; check it there: kubectl apply --dry-run=server -f {path}"]
    provider = given.get("provider")
    kind = provider.get("type") if isinstance(provider, dict) else None
    missing = [f"{tool}: not found on this machine; {why}" for tool, why in _missing_tools(kind)]
    return list(dict.fromkeys([*_faults(given), *missing]))


def _faults(given: Tree) -> Iterator[str]:
    """Ray's schema first: the other checks may then rely on the shape of things."""
    shape = list(_schema_faults(given))
    yield from shape
    if shape:
        return
    faults = [fault for check in GIVEN for fault in check(given)]
    yield from faults
    try:
        full = _prepared(given)
    except Exception as error:  # Ray raises whatever it likes here; ours above say the same with a remedy
        if not faults:
            yield f"Ray refuses the file: {_line(error)}; compare with: cloze cluster aws"
        return
    for check in FULL:
        yield from check(given, full)


def _schema_faults(given: Tree) -> Iterator[str]:
    """What Ray's own JSON schema says, each fault in one line."""
    import jsonschema
    import ray.autoscaler

    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text(encoding="utf-8"))
    # `min_workers` on top is read for own machines and dropped for the cloud, before Ray looks at its schema.
    known = {key: value for key, value in given.items() if key not in ("min_workers", *LEGACY)}
    yield from (f"{key}: {LEGACY[key]}" for key in given if key in LEGACY)
    for error in sorted(jsonschema.Draft7Validator(schema).iter_errors(known), key=lambda e: str(e.absolute_path)):
        where = ".".join(str(part) for part in error.absolute_path)
        yield from _EXPLAIN.get(str(error.validator), _other)(where, error)


def _missing_keys(where: str, error: Any) -> Iterator[str]:
    for key in error.validator_value:
        if key not in error.instance:
            yield f"{where}.{key}: missing; Ray needs it".lstrip(".")


def _unknown_keys(where: str, error: Any) -> Iterator[str]:
    allowed = sorted(error.schema.get("properties", ()))
    for key in error.instance:
        if key not in allowed:
            close = get_close_matches(str(key), allowed, n=1)
            hint = f"did you mean {close[0]}?" if close else f"allowed here: {', '.join(allowed)}"
            yield f"{where}.{key}: Ray knows no such key; {hint}".lstrip(".")


def _wrong_type(where: str, error: Any) -> Iterator[str]:
    kinds = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
    names = {"object": "a mapping", "array": "a list", "string": "a text", "integer": "a whole number"}
    yield f"{where}={_shown(error.instance)}: must be {' or '.join(names.get(kind) or str(kind) for kind in kinds)}"


def _other(where: str, error: Any) -> Iterator[str]:
    yield f"{where}={_shown(error.instance)}: {_line(error.message)}"


_EXPLAIN: dict[str, Callable[[str, Any], Iterator[str]]] = {
    "required": _missing_keys,
    "additionalProperties": _unknown_keys,
    "type": _wrong_type,
}


def _prepared(given: Tree) -> Tree:
    """The file as Ray will use it: with its defaults, and past its own validation. Raises what Ray raises."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    logging.getLogger("ray.autoscaler._private.util").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        full = prepare_config(json.loads(json.dumps(given)))
        validate_config(full)
    return full


def _missing_tools(provider: object) -> Iterator[tuple[str, str]]:
    """Programs and modules that `ray up` will call and this machine lacks."""
    for needed_by, tool, why in TOOLS:
        if needed_by is None and shutil.which(tool) is None:
            yield tool, why
        if needed_by is not None and needed_by == provider and importlib.util.find_spec(tool) is None:
            yield tool, why


def _line(error: object) -> str:
    """The first line of a message, cut."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
