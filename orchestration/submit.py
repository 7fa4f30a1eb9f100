"""A verb as a job of a Ray cluster: checked here, described, shipped.

In: a verb with its words and config. Out: the Job that Ray is asked to run, and its submission id; or a UserError
before anything is uploaded. What travels is orchestration/ship.py's business, who answers orchestration/dashboard.py's.
"""

import argparse
import importlib.metadata
import json
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.config import UserError
from orchestration.cluster import QUIET
from orchestration.config import Cluster, Config
from orchestration.credentials import complaints, is_secret
from orchestration.recipe import RECIPES, load_config, parse_yaml, recipe_path
from orchestration.ship import RECIPE
from orchestration.task_configs import task_configs

STOP_SECONDS = 60  # what a stopped job has for saving; Ray's own default is 3
# Verb -> the keys that name files or folders which it reads or writes.
PATHS = {
    "prepare": ("storage", "corpus.sources", "corpus.held_out_sources", "tokenizer.path"),
    "pretrain": (
        "storage", "corpus.sources", "corpus.held_out_sources", "tokenizer.path", "encoder.init", "objective.teacher",
    ),
    "sweep": ("storage", "task.train", "task.validation", "task.test", "task.passages", "sweep.encoders"),
    "predict": (),
    "embed": (),
    "doctor": ("storage",),
}
WITHOUT_CONFIG = ("predict", "embed")
NO_PATHS = ("docstrings", "pretrained", "random")


@dataclass(frozen=True)
class Job:
    """What Ray is asked to run."""

    submission_id: str
    entrypoint: str
    runtime_env: dict[str, Any]
    metadata: dict[str, str]


@dataclass(frozen=True)
class Request:
    """A verb that could run as a job: checked, and not yet bound to a cluster."""

    verb: str
    words: list[str]
    config: Config | None
    """None: predict and embed have none."""
    cluster: Cluster
    recipe: Path | None
    """A recipe of the user; a shipped one travels with the code."""
    recipe_name: str
    packages: list[str]
    """What its nodes install where they lack it."""

    @property
    def brings_python(self) -> bool:
        """Whether `python` is the job's own: of its virtual environment, or of its image."""
        return bool(self.packages) or self.cluster.image is not None


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The job's words, and the `cluster.*` settings for a verb that takes no config. Raises UserError."""
    if not words or words[0] not in PATHS:
        given = f"{words[0]}: no verb that can be a job" if words else "nothing to run"
        raise UserError(f"submit: {given}; give one of: {', '.join(PATHS)}")
    own = {"--detach", "--env", "--address"}
    if misplaced := [word for word in words[1:] if word.partition("=")[0] in own]:
        raise UserError(f"submit: {misplaced[0].partition('=')[0]} stands behind {words[0]}; give it before the verb")
    if faults := list(complaints(list(words), "submit")):
        raise UserError("\n".join(dict.fromkeys(faults)))
    if words[0] not in WITHOUT_CONFIG:
        return list(words), []
    settings = [word for word in words if word.startswith("cluster.") and "=" in word]
    return [word for word in words if word not in settings], settings


def requested(words: list[str], options: argparse.Namespace, settings: Sequence[str]) -> Request:
    """Check words, which `options` were parsed from, as the job would. Raises UserError."""
    verb = words[0]
    if verb in WITHOUT_CONFIG:
        places = {"MODEL": str(options.model), "INPUT": str(options.input)}
        if options.output is not None:
            places["-o"] = str(options.output)
        check_paths(verb, None, places)
        cluster = load_config(None, [f"name={verb}", *settings]).cluster
        return Request(verb, words, None, cluster, None, "none", requirements(cluster))
    overrides = list(options.overrides)
    if verb == "doctor" and options.recipe is None and not any(word.startswith("name=") for word in overrides):
        overrides.append("name=doctor")
    config = load_config(options.recipe, overrides)
    check_paths(verb, config, {"--dump-batches": getattr(options, "dump_batches", None)})
    path = recipe_path(options.recipe) if options.recipe is not None else None
    own = path if path is not None and not path.is_relative_to(RECIPES) else None
    extras = ("chinese",) if config.rows.word_segmenter == "rjieba" else ()
    packages = requirements(config.cluster, extras)
    return Request(verb, words, config, config.cluster, own, options.recipe or "none", packages)


def check_paths(verb: str, config: Config | None, places: Mapping[str, str | None]) -> None:
    """Refuse relative paths: a job starts in a disposable folder on one node. Raises UserError, one line each.

    `places` are further paths, by the name of their option.
    """
    values: dict[str, Any] = dict(places)
    wholes = {"": config, **task_configs(config)} if config is not None else {}
    for name, whole in wholes.items():
        for key in PATHS[verb]:
            value: Any = whole
            for part in key.split("."):
                value = getattr(value, part)
            if key not in values or value != values[key]:  # what all tasks have in common is told once
                values[f"sweep.tasks.{name}.{key}" if name else key] = value
    faults = [
        f"{key}={path}: in a job a relative path is a disposable folder on one node"
        + (
            f"; {path} lies here and does not travel (Cloze's code does, no other file, whatever .gitignore says)"
            if Path(path).exists()
            else ""
        )
        + "; give a folder that all nodes mount, as an absolute path, or a URI such as s3://bucket/folder"
        for key, value in values.items()
        for each in (value if isinstance(value, list | tuple) else [value])
        for path in [getattr(each, "path", each)]  # corpus.sources name more than a path
        if path is not None and path not in NO_PATHS and "://" not in path and not Path(path).is_absolute()
    ]
    if faults:
        raise UserError("\n".join(faults))


def environment(given: Sequence[str]) -> dict[str, str]:
    """The job's environment: what a quiet job that stops gracefully needs, then NAME=VALUE as given, which wins.

    Raises UserError for a credential: Ray shows a job's environment to everyone who may see its dashboard.
    """
    variables = {
        **QUIET,
        "RAY_JOB_STOP_SIGNAL": "SIGINT",
        "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS),
    }
    for word in given:
        name, equals, value = word.partition("=")
        if faults := list(complaints({name: value})):
            raise UserError("\n".join(f"--env {fault}" for fault in faults))
        if is_secret(name, value):
            raise UserError(f"--env {name}: Ray shows a job's environment to all; set it on the nodes instead")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UserError(f"--env {name}: write --env NAME=VALUE")
        variables[name] = value
    return variables


def requirements(cluster: Cluster, extras: Sequence[str] = ()) -> list[str]:
    """The packages that a job installs where a node lacks them. Raises UserError for a file that cannot be read."""
    if cluster.requirements is None or cluster.image is not None:
        return []
    if cluster.requirements == "pinned":
        return pinned(extras)
    try:
        text = Path(cluster.requirements).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cluster.requirements={cluster.requirements}: cannot be read ({error}); give a requirements file, "
            f'"pinned", or null where the nodes have what is needed'
        ) from None
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if faults := list(complaints(lines, f"cluster.requirements={cluster.requirements}")):
        raise UserError("\n".join(faults))
    return lines


def pinned(extras: Sequence[str] = ()) -> list[str]:
    """Cloze's packages, those of its `extras` too, and theirs, at the versions installed here; without Ray, which the
    cluster runs already.

    From what is installed, not from constraints.txt: a job gets the versions that its user runs, of a checkout or not.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    try:
        wanted = [Requirement(text) for text in importlib.metadata.requires("cloze") or ()]
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            "cluster.requirements=pinned: Cloze is not installed here, so its packages are not known; "
            "`make install` it, or give cluster.requirements=FILE or null"
        ) from None
    wanted = [
        need for need in wanted
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]  # fmt: skip
    seen: set[tuple[str, str]] = set()
    lines: set[str] = set()
    while wanted:
        need = wanted.pop()
        name = canonicalize_name(need.name)
        for extra in need.extras or {""}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                package = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue  # needed on another platform only
            if name not in ("ray", "pip", "setuptools"):
                lines.add(f"{name}=={package.version.partition('+')[0]}")  # 2.13.0+cpu is 2.13.0 on a GPU node
            inner = [Requirement(text) for text in package.requires or ()]
            wanted += [r for r in inner if r.marker is None or r.marker.evaluate({"extra": extra})]
    return sorted(lines)


def described(request: Request, variables: dict[str, str], archive: Path, python: str) -> Job:
    """The job of a request, started by `python`."""
    cluster, words = request.cluster, list(request.words)
    runtime_env: dict[str, Any] = {"env_vars": variables}
    if request.recipe is not None:
        words = _without_recipe(words)
    if cluster.image is not None:  # Ray takes nothing but variables beside an image, and starts it by a shell
        if unfit := [name for name, value in variables.items() if "'" in value or "\n" in value]:
            raise UserError(f"--env {unfit[0]}: cluster.image can be handed no quote or new line; leave it out")
        runtime_env["image_uri"] = cluster.image
        if request.recipe is not None:
            values = parse_yaml(request.recipe.read_text(encoding="utf-8"), str(request.recipe))
            words[1:1] = [f"{key}={value if key == 'name' else json.dumps(value)}" for key, value in values.items()]
    else:
        runtime_env["working_dir"] = str(archive)
        if request.recipe is not None:
            words[1:1] = ["-c", RECIPE]
    if request.packages:  # Ray then makes a virtual environment over the node's own, and puts it first in PATH
        runtime_env["pip"] = {"packages": request.packages, "pip_check": False}
    name = request.config.name if request.config is not None else request.verb
    what = f"{request.verb}-{name}" if name != request.verb else name
    return Job(
        submission_id=f"{what}-{time.strftime('%m%d-%H%M%S')}-{os.urandom(2).hex()}",
        entrypoint=shlex.join([python, "-m", "orchestration", *words]),
        runtime_env=runtime_env,
        metadata={
            "job_name": f"{name}-sweep" if request.verb == "sweep" else name,
            "run": name,
            "verb": request.verb,
            "recipe": request.recipe_name,
        },
    )


def _without_recipe(words: list[str]) -> list[str]:
    """The words without -c FILE."""
    for number, word in enumerate(words):
        if word in ("-c", "--recipe"):
            return words[:number] + words[number + 2 :]
        if word.startswith("--recipe=") or word.startswith("-c") and not word.startswith("--"):
            return words[:number] + words[number + 1 :]
    raise UserError("submit: write -c FILE for a recipe")
