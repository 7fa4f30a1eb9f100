"""The cloud's notice that it takes this machine away: asked for in every worker, and passed on to Ray as a node drain.

In: the metadata service of AWS (IMDSv2) or Google Cloud, where there is one. Out: a drained node with the cloud's
deadline, which Ray Train tells all workers of (orchestration/group.py). Knows nothing of training.

One question at the start, in a thread and of a second at most, finds out whether there is such a service; where there
is none, or AWS_EC2_METADATA_DISABLED=true, none is asked again. A container that the service does not answer (on AWS a
hop limit of 1) counts as none: Ray's own drains (`ray drain-node`, KubeRay, `ray start --block` at SIGTERM) still come.
Source: AWS, "Spot Instance interruption notices"; Google Cloud, "Preemptible VM instances", detecting preemption.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import datetime
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import ray
from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]

logger = logging.getLogger(__name__)

PROBE_SECONDS = 1.0
POLL_SECONDS = 5.0  # AWS advises this; its notice comes 2 minutes ahead
TOKEN_SECONDS = 21_600
GOOGLE_SECONDS_LEFT = 30.0  # from the notice to the end
PREEMPTION = 2  # DRAIN_NODE_REASON_PREEMPTION of Ray's autoscaler.proto: never refused

# Seconds since the epoch at which the machine goes; None: it stays.
Ask = Callable[[], float | None]


def watch_node() -> None:
    """Ask in a thread of this process until the cloud takes the machine, then drain its node. Returns at once."""
    threading.Thread(target=_watch, args=(drain_this_node,), daemon=True, name="cloze-spot").start()


def _watch(drain: Callable[[float], bool]) -> None:
    ask = service()
    while ask:
        try:
            if (ends := ask()) is not None and drain(ends):
                return
        except Exception as error:  # a thread that ended would miss the notice: whatever it is, ask again
            logger.warning("the machine's metadata service: %s: %s", type(error).__name__, error)
        time.sleep(POLL_SECONDS)


def service() -> Ask | None:
    """How to ask this machine's cloud; None where no metadata service answers."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    for ask in (_amazon(), _google()):
        try:
            ask()
            return ask
        except OSError:  # nobody there, or another cloud
            continue
    return None


def _amazon() -> Ask:
    """IMDSv2: a token, then the notice, which is 404 until there is one."""
    root = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
    token, ends_at = "", 0.0

    def ask() -> float | None:
        nonlocal token, ends_at
        if time.monotonic() >= ends_at:
            wanted = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
            token, ends_at = _get(f"{root}/latest/api/token", wanted, "PUT"), time.monotonic() + TOKEN_SECONDS / 2
        try:
            notice = _get(f"{root}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
        except HTTPError as error:
            if error.code == 404:
                return None
            ends_at = 0.0  # 401: the token is no longer good
            raise
        return datetime.fromisoformat(json.loads(notice)["time"]).timestamp()

    return ask


def _google() -> Ask:
    """The metadata server says TRUE once the machine is being preempted."""
    host = os.environ.get("GCE_METADATA_HOST", "169.254.169.254")

    def ask() -> float | None:
        answer = _get(f"http://{host}/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
        return time.time() + GOOGLE_SECONDS_LEFT if answer.strip() == "TRUE" else None

    return ask


def _get(address: str, headers: dict[str, str], method: str = "GET") -> str:
    """The text at an address of this machine: never through a proxy. Raises OSError."""
    opener = build_opener(ProxyHandler({}))
    with opener.open(Request(address, headers=headers, method=method), timeout=PROBE_SECONDS) as answer:
        return answer.read(10_000).decode()


def drain_this_node(ends: float) -> bool:
    """Tell Ray that this process's node goes at `ends` (seconds since the epoch); whether Ray took it."""
    context = ray.get_runtime_context()
    logger.warning("the cloud takes this machine in %.0f s: its node is drained", ends - time.time())
    accepted, why = GcsClient(address=context.gcs_address).drain_node(
        context.get_node_id(), PREEMPTION, "the cloud's notice", int(ends * 1000)
    )
    if not accepted:
        logger.warning("Ray does not drain the node: %s", why)
    return accepted
