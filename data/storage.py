"""Where runs are kept: a folder that every node mounts, or a bucket (s3://, gs://) behind a mirror on each node.

In: the user's `storage`. Out: a local path, the same on every node, that all other code reads and writes; `publish`
carries what was written to the bucket, `fetch` brings what another node wrote. The bucket is the truth, the mirror a
copy. For a mounted folder there is nothing to carry, and these functions return at once. So libraries that know only
local files (DeepSpeed, safetensors, numpy's memory maps) work on both. Knows pyarrow.fs only.

Credentials come from where AWS and Google keep them (instance profile, environment, ~/.aws), another endpoint from
AWS_ENDPOINT_URL: never from a config.
"""

import fcntl
import io
import os
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from data.config import UserError
from data.retries import patiently

SCHEMES = ("s3", "gs")
_MIRROR = re.compile(r"/tmp/cloze-mirror-\d+/(s3|gs)/([^/]+)/?(.*)")
_KEY = re.compile(r"(?!.*(?:^|/)\.\.?(?:/|$))[\w.!@=+,~/-]+", re.ASCII)  # others have to be quoted here and not there
_THREADS = 8
GS_RETRY_SECONDS = 30  # Google's own limit is 15 minutes, which it also takes to say that there are no credentials
_READ_BYTES = 1 << 18  # asked of a disk or a bucket at once; 8 kB, Python's own, is a request per page on NFS


def place(storage: str) -> Path:
    """The local path of a storage: itself, absolute, or the mirror of its bucket. Raises UserError for other URIs."""
    scheme, separator, rest = storage.partition("://")
    if not separator:
        return Path(storage).expanduser().absolute()
    if scheme not in SCHEMES or not rest.strip("/") or not _KEY.fullmatch(rest):
        raise UserError(
            f"storage={storage}: neither a folder nor a bucket; give a path that all nodes mount, s3://BUCKET/FOLDER "
            f"or gs://BUCKET/FOLDER, of letters, digits and ._-/ (another endpoint: AWS_ENDPOINT_URL)"
        )
    return mirrors() / scheme / rest.strip("/")


def mirrors() -> Path:
    """The folder of this node's mirrors."""
    return Path(f"/tmp/cloze-mirror-{os.getuid()}")


def mirror_id() -> str:
    """Which mirrors a process sees: equal for those that share them, be they of one Ray node or of two."""
    return id_of(mirrors())


def id_of(folder: Path) -> str:
    """Equal for processes that see the same folder of a node, which is made where it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    boot = Path("/proc/sys/kernel/random/boot_id")  # of the machine, also in its containers
    machine = boot.read_text().strip() if boot.exists() else socket.gethostname()
    status = folder.stat()
    return f"{machine} {status.st_dev} {status.st_ino}"


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Fill a folder of a bucket while no other process of this node does: their mirror is the same."""
    if not is_remote(path):
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def shown(path: str | Path) -> str:
    """A path as the user knows it: the URI of what lies in a bucket, else the path."""
    match = _MIRROR.fullmatch(str(path))
    return f"{match[1]}://{match[2]}/{match[3]}".rstrip("/") if match else str(path)


def is_remote(path: str | Path) -> bool:
    """Whether a path is the mirror of a bucket."""
    return _MIRROR.fullmatch(str(path)) is not None


@lru_cache
def _filesystem(scheme: str, bucket: str) -> Any:
    from pyarrow import fs

    limit = f"?retry_limit_seconds={GS_RETRY_SECONDS}" if scheme == "gs" else ""
    return fs.FileSystem.from_uri(f"{scheme}://{bucket}{limit}")[0]


def _remote(path: Path | str) -> tuple[Any, str] | None:
    """The filesystem and key behind a mirror's path or a URI (never quoted); None for a mounted path."""
    scheme, separator, rest = shown(path).partition("://")
    return (_filesystem(scheme, rest.partition("/")[0]), rest.rstrip("/")) if separator and scheme in SCHEMES else None


def publish(path: Path, last: str | None = None, keep: bool = True, at: Path | None = None) -> None:
    """Carry a file, or all files of a folder, to the bucket. Raises OSError.

    `last`: the file in a folder whose presence says that the rest is there. keep=False: the local copy is not needed.
    `at`: where in the bucket, if not at its own place.
    """
    remote = _remote(at or path)
    if remote is None:
        return
    if path.is_file():
        _upload(*remote, path)
    elif not path.is_dir():
        raise FileNotFoundError(f"{shown(path)}: nothing of it is on this node")
    else:
        names = [file.relative_to(path).as_posix() for file in sorted(path.rglob("*")) if file.is_file()]
        filesystem, key = remote
        first = [name for name in names if name != last and not name.endswith(".part")]
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda name: _upload(filesystem, f"{key}/{name}", path / name), first))
        if last in names:
            _upload(filesystem, f"{key}/{last}", path / last)
    if not keep:
        forget(path)


def forget(path: Path) -> None:
    """Delete this node's copy of what lies in a bucket; what lies in a mounted folder stays."""
    if is_remote(path):
        _remove_local(path)


def fetch(path: Path, delete: bool = True) -> None:
    """Make the local copy of a file or folder equal to the bucket's; what is not there is removed. Raises OSError.

    delete=False: nothing is removed, for those who only look, perhaps beside a process that has yet to publish.
    """
    remote = _remote(path)
    if remote is None:
        return
    from pyarrow import fs

    filesystem, key = remote
    info = patiently(shown(path), lambda: filesystem.get_file_info(key))
    if info.type == fs.FileType.File:
        _download(filesystem, info, path)
        return
    files = {name: info for name, info in _files(filesystem, key).items() if not _is_same(path / name, info)}
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda item: _download(filesystem, item[1], path / item[0]), files.items()))
    there = _files(filesystem, key)
    if not delete:
        return
    for file in path.rglob("*") if path.is_dir() else ():
        if file.is_file() and not file.name.endswith(".part") and file.relative_to(path).as_posix() not in there:
            file.unlink(missing_ok=True)
    if not there:
        _remove_local(path)


def fetch_once(path: Path) -> Path:
    """Fetch a file that never changes, such as a shard's tokenizer, unless it is here already; returns `path`."""
    if not path.exists():
        fetch(path)
    return path


def source(path: Path | str) -> Any:
    """What pyarrow reads: the path, or an open file of the bucket, of which only the needed part is read."""
    remote = _remote(path)
    return path if remote is None else remote[0].open_input_file(remote[1])


def open_stream(path: Path | str) -> IO[bytes]:
    """Open a file, also one of a bucket (s3://, gs://), to be read from its start. Raises OSError.

    Its own bytes: pyarrow would unpack what its name says is packed.
    """
    remote = _remote(path)
    if remote is None:
        return open(path, "rb", buffering=_READ_BYTES)
    return io.BufferedReader(remote[0].open_input_stream(remote[1], compression=None), _READ_BYTES)


def list_bucket(uri: str, deep: bool = True) -> tuple[dict[str, Any], bool]:
    """The file at a URI and True, or all files below it (deep=False: in that folder only) and False.

    pyarrow's FileInfo (size, mtime_ns) by URI; nothing there is no error. Raises OSError: no bucket, not permitted.
    """
    from pyarrow import fs

    remote = _remote(uri)
    assert remote is not None, uri
    scheme, (filesystem, key) = uri.partition("://")[0], remote
    info = filesystem.get_file_info(key)
    if info.type == fs.FileType.File:
        return {f"{scheme}://{key}": info}, True
    infos = filesystem.get_file_info(fs.FileSelector(key, recursive=deep, allow_not_found="/" in key))
    bucket = key.partition("/")[0]
    if not infos and filesystem.get_file_info(bucket).type == fs.FileType.NotFound:
        raise FileNotFoundError(f"there is no bucket {bucket}")
    return {f"{scheme}://{info.path}": info for info in infos if info.type == fs.FileType.File}, False


def remove(path: Path) -> None:
    """Delete a file or folder, where it lies and here; nothing there is no error."""
    remote = _remote(path)
    if remote is not None:
        patiently(shown(path), lambda: _remove_remote(*remote))
    _remove_local(path)


def _remove_remote(filesystem: Any, key: str) -> None:
    from pyarrow import fs

    kind = filesystem.get_file_info(key).type
    if kind == fs.FileType.File:
        filesystem.delete_file(key)
    elif kind == fs.FileType.Directory:
        filesystem.delete_dir(key)


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of every file below a folder, by name relative to it."""
    remote = _remote(folder)
    if remote is not None:
        return {name: info.size for name, info in _files(*remote).items()}
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}


def children(folder: Path) -> list[str]:
    """Names of the files and folders in a folder, sorted; none where there is no folder."""
    remote = _remote(folder)
    if remote is None:
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    from pyarrow import fs

    filesystem, key = remote
    infos = patiently(shown(folder), lambda: filesystem.get_file_info(fs.FileSelector(key, allow_not_found=True)))
    return sorted({info.base_name for info in infos})


def _files(filesystem: Any, key: str) -> dict[str, Any]:
    """Every file below a key, by relative name."""
    from pyarrow import fs

    selector = fs.FileSelector(key, recursive=True, allow_not_found=True)
    infos = patiently(key, lambda: filesystem.get_file_info(selector))
    return {info.path[len(key) + 1 :]: info for info in infos if info.type == fs.FileType.File}


def _upload(filesystem: Any, key: str, path: Path) -> None:
    from pyarrow import fs

    def carry() -> None:
        fs.copy_files(str(path), key, source_filesystem=fs.LocalFileSystem(), destination_filesystem=filesystem)
        _stamp(path, filesystem.get_file_info(key))

    patiently(key, carry)


def _download(filesystem: Any, info: Any, path: Path) -> None:
    """Whole or not at all: other processes of this node may read or fetch the same file."""
    from pyarrow import fs

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    places = {"source_filesystem": filesystem, "destination_filesystem": fs.LocalFileSystem()}
    patiently(info.path, lambda: fs.copy_files(info.path, str(part), **places))
    _stamp(part, info)
    part.replace(path)


def _stamp(path: Path, info: Any) -> None:
    """Give a copy the bucket's time: a later fetch of its folder then knows that it is the same."""
    seconds = int(info.mtime.timestamp())
    os.utime(path, (seconds, seconds))


def _is_same(path: Path, info: Any) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_size == info.size and int(status.st_mtime) == int(info.mtime.timestamp())


def _remove_local(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
