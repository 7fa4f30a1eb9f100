"""Fixtures of all tests: the one Ray, the folder of real corpora, a tiny corpus with countable documents."""

import os
import sys
from pathlib import Path

import pytest

# Set before Ray starts: its workers inherit them. Tests define functions that workers import.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
os.environ.update(
    RAY_AUTH_MODE="disabled", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", PYTHONWARNINGS="ignore",
    RAY_DATA_DISABLE_PROGRESS_BARS="1", RAY_AIR_NEW_OUTPUT="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
)  # fmt: skip


@pytest.fixture(scope="session")
def ray_4_cpus():
    """The one Ray of all tests, with 4 logical CPUs and 8 logical GPUs; yields its address for other drivers."""
    import ray

    context = ray.init(
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
