"""Fixtures of all tests: the one Ray, the folder of real corpora, a tiny corpus with countable documents."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Set before Ray starts: its workers inherit them. Tests define functions that workers import.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
os.environ.update(
    RAY_AUTH_MODE="disabled", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", PYTHONWARNINGS="ignore",
    RAY_DATA_DISABLE_PROGRESS_BARS="1", RAY_AIR_NEW_OUTPUT="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    CLOZE_LOGICAL_GPUS="1",  # the 8 GPUs below are a number: torch sees none
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slice", metavar="K/N", help="every N-th test from the K-th on, counted from 0")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the slice that was asked for, of what the marker expression keeps."""
    if (asked := config.getoption("slice")) is None:
        return
    first, every = map(int, asked.split("/"))
    kept = [item for item in items if item.get_closest_marker("soak")][first::every]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.fixture(scope="session")
def ray_4_cpus():
    """The one Ray of all tests, with 4 logical CPUs and 8 logical GPUs; yields its address for other drivers."""
    import ray

    context = ray.init(
        "local",  # else it would join whatever Ray the machine's temporary folder speaks of
        num_cpus=4, num_gpus=8, include_dashboard=False, object_store_memory=600_000_000, log_to_driver=False,
        logging_level="ERROR",
    )  # fmt: skip
    yield context.address_info["gcs_address"]
    ray.shutdown()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real corpora and benchmark files; the test skips where it is absent (an error in CI)."""
    folder = Path(os.environ.get("CLOZE_SHARED", Path(__file__).parent.parent.parent / "shared")) / "datasets"
    if not folder.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"{folder} is absent in CI")
        pytest.skip(f"{folder} is absent")
    return folder


@pytest.fixture(scope="session")
def cloze(ray_4_cpus):
    """Run the command line in a process of its own, on the tests' Ray: cloze("pretrain", "name=x", cwd=...)."""
    import subprocess

    def run(*arguments: str, cwd: Path | None = None, timeout: float = 240, **environment: str):
        return subprocess.run(
            [sys.executable, "-m", "orchestration", *arguments],
            cwd=cwd, timeout=timeout, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            env={**os.environ, "RAY_ADDRESS": ray_4_cpus, **environment},
        )  # fmt: skip

    return run


def free_port() -> int:
    """A port that nobody listens on, for a server of a test."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, str]]:
    """A real S3 server on loopback with the bucket `cloze-test`; yields the environment that leads pyarrow to it."""
    import subprocess
    import time
    import urllib.error
    import urllib.request

    address = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", address.rpartition(":")[2]]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    signed = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"
    request = urllib.request.Request(f"{address}/cloze-test", method="PUT", headers={"Authorization": signed})
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(request, timeout=5).close()
            break
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read()) from None
        except OSError:
            assert server.poll() is None and time.monotonic() < deadline, "the S3 server did not start"
            time.sleep(0.2)
    yield {
        "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    server.terminate()
    server.wait()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Torch on one thread: where all products are tiny a second one waits, and 26 s of CPU become 85."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
