"""Where a source points -> the files there: one file, a folder, a glob, on disk or in a bucket.

In: a path or URI. Out: names, sizes and times, sorted. A folder that `datasets.save_to_disk` wrote gives the files that
its state.json lists, and no others. Knows nothing of formats; what is wrong is a UserError that its caller completes
with the key.
"""

import glob
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple

import pyarrow as pa

from data.config import UserError
from data.lines import READ_ERRORS, open_bytes
from data.storage import SCHEMES, list_bucket

STATE, SPLITS = "state.json", "dataset_dict.json"  # beside the files of a datasets.Dataset, above the splits


class Found(NamedTuple):
    """A file, its size and the time of its last change."""

    path: str
    size_bytes: int
    mtime_ns: int


def list_files(path: str) -> tuple[list[Found], bool]:
    """Files at `path`, sorted, and whether it is the path of one file.

    In folders and globs no file whose name begins with "." or "_" is taken; folders below whose name begins with "."
    are left out, and none is read twice through links. Raises UserError where there is nothing, or nothing permitted.
    """
    scheme, separator, rest = path.partition("://")
    if not separator:
        return _list_local(os.path.abspath(os.path.expanduser(path)))
    if scheme not in SCHEMES or not rest.partition("/")[0]:
        raise UserError(
            "neither a path nor a bucket's; give a file, folder or glob, s3://BUCKET/KEY or gs://BUCKET/KEY"
        )
    try:
        return _list_remote(path.rstrip("/"))
    except (OSError, pa.ArrowException) as error:  # pyarrow has the latter where Google says what it does not know
        cause = " ".join(str(error).split())[:200]
        raise UserError(
            f"the bucket cannot be listed ({cause}); give one that exists and credentials that may list and read it "
            f"(instance profile, environment, ~/.aws; another endpoint: AWS_ENDPOINT_URL)"
        ) from None


def one_file(key: str, path: str) -> str:
    """The path of a file, or its URI in a bucket. Raises UserError, beginning with `key`, for anything else."""
    if "://" not in path:
        local = os.path.expanduser(path)
        if not os.path.isfile(local):
            raise UserError(f"{key}: no such file; correct the path")
        return local
    try:
        is_file = list_files(path)[1]
    except UserError as error:
        raise UserError(f"{key}: {error}") from None
    if not is_file:
        raise UserError(f"{key}: a folder or glob, not one file; give the URI of a file")
    return path


def _list_local(path: str) -> tuple[list[Found], bool]:
    if os.path.isfile(path):
        return [_look(path)], True
    if os.path.isdir(path):
        names = [os.path.join(folder, name) for folder, names in _walk(path) for name in names]
    else:
        names = _glob(path)
        if not names:
            what = "the glob matches no file" if glob.has_magic(path) else "no such file or folder"
            raise UserError(f"{what} (looked for {path}); correct the path")
    return [_look(name) for name in _chosen(names, os.path.exists)], False


def _list_remote(uri: str) -> tuple[list[Found], bool]:
    infos, is_file = list_bucket(uri)
    names = list(infos)
    if not names and glob.has_magic(uri):
        parts = uri.split("/")
        fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
        base = "/".join(parts[:fixed])
        infos, _ = list_bucket(base, deep=fixed < len(parts) - 1 or parts[-1] == "**")
        pattern = _pattern(uri)
        names = [name for name in infos if pattern.fullmatch(name)]
        if not names:
            raise UserError("the glob matches no file; correct the path")
        inside = len(base) + 1
    else:
        if not names:
            raise UserError("no such file or folder in the bucket; correct the path")
        inside = len(uri) + 1
    if not is_file:
        shown = [name for name in names if not any(part.startswith(".") for part in name[inside:].split("/")[:-1])]
        names = _chosen(shown, infos.__contains__)
    return [Found(name, infos[name].size, infos[name].mtime_ns) for name in names], is_file


def _pattern(uri: str) -> re.Pattern[str]:
    """A glob as `glob.glob` means it: * and ? stay in one folder, ** stands for any folders."""
    whole = "".join(
        ".*" if part == "**" else "(?:[^/]+/)*" if part == "**/" else "[^/]*" if part == "*" else "[^/]" if part == "?"
        else part.replace("[!", "[^") if part.startswith("[") else re.escape(part)
        for part in re.findall(r"\*\*/|\*\*|\*|\?|\[[^]/]+\]|[^*?[]+|\[", uri)
    )  # fmt: skip
    return re.compile(whole)


def _chosen(names: Iterable[str], exists: Callable[[str], bool]) -> list[str]:
    """What is data among the files of folders and globs, sorted. Raises UserError for a folder of several splits."""
    exists = cache(exists)

    @cache
    def parts_of(folder: str) -> frozenset[str] | None:
        """Names of the files of a datasets.Dataset; None for any other folder."""
        if exists(f"{folder}/{SPLITS}"):
            splits = _read_object(f"{folder}/{SPLITS}").get("splits") or ["SPLIT"]
            raise UserError(f"{folder} is a DatasetDict of {', '.join(splits)}; give path={folder}/{splits[0]}")
        listed = _read_object(f"{folder}/{STATE}").get("_data_files") if exists(f"{folder}/{STATE}") else None
        if listed is None:
            return None
        parts = frozenset(file["filename"] for file in listed)
        if lost := [part for part in sorted(parts) if not exists(f"{folder}/{part}")]:
            raise UserError(f"{folder} lacks {', '.join(lost[:3])}, which its {STATE} lists; copy it again")
        return parts

    chosen: list[str] = []
    for name in sorted(names):
        folder, _, file = name.rpartition("/")
        parts = parts_of(folder)
        if not file.startswith((".", "_")) and (parts is None or file in parts):
            chosen.append(name)
    return chosen


def _read_object(path: str) -> dict[str, list]:
    try:
        with open_bytes(path) as opened:
            read = json.loads(opened.read())
    except (*READ_ERRORS, ValueError) as error:
        raise UserError(f"{path} cannot be read ({str(error)[:100]}); repair it, or give the files beside it") from None
    return read if isinstance(read, dict) else {}


def _look(name: str) -> Found:
    try:
        status = os.stat(name)
    except OSError as error:
        raise _unreadable(error, name) from None
    return Found(name, status.st_size, status.st_mtime_ns)


def _walk(path: str) -> Iterator[tuple[str, list[str]]]:
    """A folder and those below it, each with the names of its files. Raises UserError where one cannot be listed."""

    def refuse(error: OSError) -> None:
        raise _unreadable(error, str(error.filename)) from None

    seen = {os.path.realpath(path)}
    for folder, folders, names in os.walk(path, followlinks=True, onerror=refuse):
        yield folder, names
        below = sorted(name for name in folders if not name.startswith("."))
        folders.clear()
        for name in below:
            real = os.path.realpath(os.path.join(folder, name))
            if real not in seen:
                seen.add(real)
                folders.append(name)


def _glob(path: str) -> list[str]:
    """Files that a glob matches, each by its shortest way if links lead to its folder by several."""
    head, deep, tail = f"{path}/*".partition("/**/") if path.endswith("/**") else path.partition("/**/")
    if deep:  # not left to `glob`, which runs through links in circles
        folders = [folder for base in filter(os.path.isdir, glob.glob(head or "/")) for folder, _ in _walk(base)]
        matches = [name for folder in folders for name in _glob(os.path.join(glob.escape(folder), tail))]
    else:
        matches = [name for name in glob.glob(path) if not os.path.isdir(name)]
    real = cache(os.path.realpath)
    found: dict[tuple[str, str], str] = {}
    for name in sorted(matches, key=lambda name: (name.count(os.sep), name)):
        found.setdefault((real(os.path.dirname(name)), os.path.basename(name)), name)
    return list(found.values())


def _unreadable(error: OSError, name: str) -> UserError:
    what = "is a link to nothing" if os.path.islink(name) else f"cannot be read ({error.strerror})"
    return UserError(f"{name} {what}; repair or remove it")
