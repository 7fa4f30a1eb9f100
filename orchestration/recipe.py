"""How a Config comes to be: a recipe (YAML), then `key.path=value` overrides, then validation.

In: a recipe's name or path, overrides, or plain values and changes. Out: a Config, or a UserError whose message has
one line per fault: dotted key, given value, what is allowed, what to do.
Precedence: default < recipe < `key.path=value` < sweep point, all through `build_config`.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from data.config import FORMS, UserError
from orchestration import credentials
from orchestration.config import FLOAT, Config

RECIPES = Path(__file__).parent / "recipes"
LENGTHS = {"too_short": "a list of {actual_length}; give at least {min_length}",
           "too_long": "a list of {actual_length}; give at most {max_length}"}  # fmt: skip


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads 1e-3 as a number (YAML 1.1 wants 1.0e-3) and refuses a key that stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        keys = [self.construct_object(key, deep=True) for key in own]  # pyright: ignore[reportUnknownVariableType]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            cause = f"key stands twice: {', '.join(twice)}"
            raise yaml.constructor.ConstructorError(None, None, cause, node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML; a fault is a UserError with `where`, line and cause in one line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        cause = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{where}{place}: not valid YAML: {cause}; correct the file or the value") from None


def shipped_recipes() -> dict[str, Path]:
    """Files of the recipes that come with Cloze, by name: demo, claims/nsp_on, ..."""
    files = sorted(RECIPES.rglob("*.yaml"), key=lambda path: (len(path.parts), path))
    return {path.relative_to(RECIPES).with_suffix("").as_posix(): path for path in files}


def recipe_path(recipe: str) -> Path:
    """Find a recipe by its shipped name or by path; raises UserError naming the shipped ones."""
    shipped = shipped_recipes()
    if recipe in shipped:
        return shipped[recipe]
    if Path(recipe).is_file():
        return Path(recipe)
    raise UserError(f"-c {recipe}: no such recipe; give a YAML file or one of: {', '.join(shipped)}")


def load_config(recipe: str | None, overrides: Iterable[str] = ()) -> Config:
    """Read a recipe, apply `key.path=value` overrides (values are YAML), validate.

    Raises UserError, one line per fault.
    """
    values: dict[str, Any] = {}
    if recipe is not None:
        path = recipe_path(recipe)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"-c {recipe}: cannot be read: {error}") from None
        loaded = parse_yaml(text, f"-c {recipe}")
        if not isinstance(loaded, dict):
            raise UserError(f"-c {recipe}: holds {type(loaded).__name__}, not a mapping of config sections")
        values = loaded
    changes: dict[str, Any] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if faults := list(credentials.complaints({key: value})):  # before any message that quotes the word
            raise UserError("\n".join(faults))
        if not equals or not key:
            raise UserError(f"{override!r}: not an override; write key.path=value, for example pretrain.steps=500")
        changes[key] = value if key == "name" else parse_yaml(value, override)  # name=010 is a name, not 8
    return build_config(values, changes)


def build_config(values: Mapping[str, Any], changes: Mapping[str, Any]) -> Config:
    """Set dotted `changes` in nested `values` and validate: the one way a Config comes to be.

    Raises UserError, one line per fault. A value that holds a credential is one: all values are written and shown.
    """
    if faults := [*credentials.complaints(dict(values)), *credentials.complaints(dict(changes))]:
        raise UserError("\n".join(dict.fromkeys(faults)))
    tree: dict[str, Any] = copy.deepcopy(dict(values))
    for dotted, value in changes.items():
        node = tree
        *parents, last = dotted.split(".")
        if dotted.startswith("sweep.space."):  # the keys of a space are dotted themselves
            *parents, last = "sweep", "space", dotted.removeprefix("sweep.space.")
            tree.setdefault("sweep", {}).setdefault("space", Config.model_fields["sweep"].default.space.copy())
        for parent in parents:
            if node.get(parent) is None:  # `cloze show` writes null for a section that is not there
                node[parent] = {}
            if not isinstance(node[parent], dict):
                raise UserError(f"{dotted}: {parent} is {node[parent]!r}, not a section; remove one of the two")
            node = node[parent]
        node[last] = value
    if tree.get("name") is None:
        raise UserError("name: missing; give name=NAME, the run's folder under storage (the same name resumes it)")
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        faults = error.errors()
        # A fault inside a list makes the list a fault too, which says nothing more.
        inner = [fault for fault in faults if not any(_is_within(other, fault) for other in faults)]
        raise UserError("\n".join(_explain(fault) for fault in inner)) from None


def _is_within(fault: Any, other: Any) -> bool:
    """Whether a fault lies inside the value of another one."""
    return len(fault["loc"]) > len(other["loc"]) and fault["loc"][: len(other["loc"])] == other["loc"]


def _explain(fault: Any) -> str:
    """One line for one pydantic fault: key, given value, what is allowed, what to do."""
    location = [part for part in fault["loc"] if not str(part).startswith("function-") and part not in FORMS]
    key = ".".join(str(part) for part in location)
    given = repr(fault["input"])
    given = given if len(given) <= 80 else given[:77] + "..."
    if fault["type"] == "extra_forbidden":
        owner = _owner(location[:-1])
        allowed = list(owner.model_fields) if owner else []
        close = get_close_matches(str(location[-1]), allowed, n=1)
        hint = f"did you mean {close[0]}?" if close else f"allowed here: {', '.join(allowed)}"
        return f"{key}: unknown key; {hint}"
    if fault["type"] == "value_error":
        message = str(fault["ctx"]["error"])
        return f"{key}: {message}" if key else message
    if fault["type"] == "model_type":
        owned = list(_owner(location).model_fields)
        return f"{key}={given}: a section, not a value; give one of its keys, {', '.join(f'{key}.{k}' for k in owned)}"
    if fault["type"] in LENGTHS:
        fault = {**fault, "msg": LENGTHS[fault["type"]].format(**fault["ctx"])}
    if fault["type"] == "missing":
        return f"{key}: missing; give {key}=VALUE"
    way = "in the recipe" if any(isinstance(part, int) for part in location) else f"with {key}=VALUE or in the recipe"
    return f"{key}={given}: {fault['msg'][0].lower()}{fault['msg'][1:]}; change it {way}"


def _owner(location: list[Any]) -> Any:
    """The section class at a place in the config, None where there is none: a section, or one of a list of them."""
    owner: Any = Config
    for part in location:
        if isinstance(part, int):
            continue
        field = owner.model_fields.get(part) if owner else None
        owner = next(_sections_of(field.annotation), None) if field else None
    return owner


def _sections_of(annotation: Any) -> Iterator[Any]:
    """The section classes that a type speaks of: of Budget | None it is Budget."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _sections_of(inner)
