"""What the doctor's actor does on a node: look, write and read in the storage, tell the time, join an all-reduce.

In: plain values. Out: plain values. Sent to the nodes by value, as a node may lack Cloze, or have another one, and
shall answer all the same: so nothing of ours is imported here, and torch and pyarrow only where they are needed.
"""

import glob
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

WORDS = b"cloze doctor"
REDUCED_BYTES = 32 * 2**20  # the gradients of 8 million parameters: large enough for bandwidth to outweigh latency
SEEN_SECONDS = 3.0  # NFS answers from a cache for that long before it looks again (nfs(5), acregmin)


class Facts(TypedDict):
    """What one node, or the driver, is like."""

    host: str
    python: str
    packages: dict[str, str | None]
    torch_gpus: int | None
    """GPUs that torch sees; None: not asked, as Ray has none and the machine has no NVIDIA device."""
    torch_cuda: str | None
    """The CUDA that torch was built for; None: a CPU build, or not asked."""
    storage: str | None
    """What went wrong with the storage; None: nothing."""
    shared_memory_bytes: int
    session_space: tuple[int, int]
    """Free and all bytes of the disk where Ray keeps objects that memory has no room for."""
    storage_space: tuple[int, int] | None
    """The same of the storage; None: a bucket, or not there."""
    interfaces: tuple[str, ...]
    """Network interfaces that have an address, the loopback left out."""
    prometheus: str | None
    """RAY_PROMETHEUS_HOST."""


def filesystem(storage: str) -> tuple[Any, str]:
    """The file system of a storage and the path in it: a folder, or a URI such as s3://bucket/runs."""
    from pyarrow import fs

    return fs.FileSystem.from_uri(storage) if "://" in storage else (fs.LocalFileSystem(), storage)


def look(packages: Sequence[str], storage: str, folder: str, own: str | None, gpus: float | None) -> Facts:
    """Facts of this machine, which Ray knows.

    `folder`, `own`: see `try_storage`; own=None leaves the storage alone. `gpus`: those that Ray counts here; None:
    torch is not asked.
    """
    from ray._private import worker

    node: Any = worker._global_node
    seen, cuda = None, None
    if gpus is not None and (gpus or glob.glob("/dev/nvidia[0-9]*")):
        import torch

        seen, cuda = torch.cuda.device_count(), torch.version.cuda
    return Facts(
        host=socket.gethostname(),
        python=platform.python_version(),
        packages={name: _version(name) for name in packages},
        torch_gpus=seen,
        torch_cuda=cuda,
        storage=try_storage(storage, folder, own) if own else None,
        shared_memory_bytes=shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else 0,
        session_space=_space(node.get_temp_dir_path()),
        storage_space=_space(storage) if os.path.isdir(storage) else None,
        interfaces=_interfaces(),
        prometheus=os.environ.get("RAY_PROMETHEUS_HOST"),
    )


def try_storage(storage: str, folder: str, own: str) -> str | None:
    """Read the driver's file in `folder` (inside the storage), write `own` there, write another and delete it again.

    Returns what went wrong, None if nothing. Where the driver's file is not found, nothing is left behind.
    """
    system, root = filesystem(storage)
    place = f"{root}/{folder}"

    def read() -> None:
        with system.open_input_stream(f"{place}/driver") as stream:
            if stream.read() != WORDS:
                raise OSError("the driver's file has other words")

    def write(name: str) -> None:
        with system.open_output_stream(f"{place}/{name}") as stream:
            stream.write(WORDS + own.encode())

    try:
        if not found(system, f"{place}/driver"):
            there = found(system, root, seconds=0)
            return f"not the driver's: {'what the driver wrote is not there' if there else 'no such folder'}"
    except Exception as error:
        return f"not reachable: {_cause(error)}"
    steps: tuple[tuple[str, Callable[[], None]], ...] = (
        ("readable", read),
        ("writable", lambda: write(own)),
        ("writable", lambda: write(f"{own}.gone")),
        ("deletable", lambda: system.delete_file(f"{place}/{own}.gone")),
    )
    for what, step in steps:
        try:
            step()
        except Exception as error:  # whatever it is, it is the finding
            return f"not {what}: {_cause(error)}"
    return None


def found(system: Any, path: str, seconds: float = SEEN_SECONDS) -> bool:
    """Whether something lies at `path`, waiting for caches of a network's file system."""
    from pyarrow import fs

    until = time.monotonic() + seconds
    while system.get_file_info(path).type == fs.FileType.NotFound:
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


class Probe:
    """The actor: one on every node."""

    def look(self, *arguments: Any) -> Facts:
        return look(*arguments)

    def clock(self) -> float:
        """Seconds since the epoch, as this machine has it."""
        return time.time()

    def meeting_point(self) -> str:
        """Where the others find this process: tcp://address:port."""
        import ray

        with socket.socket() as listener:
            listener.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{listener.getsockname()[1]}"

    def all_reduce(self, backend: str, point: str, rank: int, ranks: int, seconds: float) -> float:
        """Seconds of one all-reduce of REDUCED_BYTES over all ranks, the best of three."""
        from datetime import timedelta

        import torch
        from torch import distributed

        device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
        distributed.init_process_group(
            backend, init_method=point, rank=rank, world_size=ranks, timeout=timedelta(seconds=seconds)
        )
        try:
            tensor = torch.ones(REDUCED_BYTES // 4, device=device)
            best = float("inf")
            for _ in range(4):  # the first makes the connections
                begun = time.perf_counter()
                distributed.all_reduce(tensor)
                if device.type == "cuda":
                    torch.cuda.synchronize()
                best = min(best, time.perf_counter() - begun)
            return best
        finally:
            distributed.destroy_process_group()

    def ask(self, url: str) -> tuple[int, str]:
        """Status and text of a page as this node sees it, with Ray's token; status 0: nobody answers."""
        from urllib.error import HTTPError
        from urllib.request import ProxyHandler, Request, build_opener

        from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled

        opener = build_opener(ProxyHandler({}))  # a proxy does not know the nodes of a cluster
        try:
            with opener.open(Request(url, headers=get_auth_headers_if_auth_enabled({})), timeout=10) as answer:
                return answer.status, answer.read(500).decode(errors="replace")
        except HTTPError as error:
            return error.code, error.read(500).decode(errors="replace")
        except OSError as error:
            return 0, _cause(error)


def _version(package: str) -> str | None:
    """The installed version, without the part that tells CPU from CUDA builds; None: not installed."""
    try:
        return importlib.metadata.version(package).split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def _space(folder: str) -> tuple[int, int]:
    usage = shutil.disk_usage(folder)
    return usage.free, usage.total


def _interfaces() -> tuple[str, ...]:
    import psutil

    return tuple(
        name
        for name, addresses in psutil.net_if_addrs().items()
        if name != "lo" and any(address.family == socket.AF_INET for address in addresses)
    )


def _cause(error: BaseException) -> str:
    """What the system says, in one line."""
    number = getattr(error, "errno", None)
    if isinstance(number, int):
        return os.strerror(number)
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
