"""The door of a cluster for those outside it: its dashboard's HTTP interface, found, asked who it is, and entered.

In: --address, or the environment. Out: a Door that a job can be handed through, or a UserError within 20 seconds that
says what is wrong with the address, the token or the versions. Starts and joins no Ray.
"""

import logging
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from data.config import UserError
from orchestration.credentials import masked

DEFAULT = "http://127.0.0.1:8265"
TIMEOUT_S = 6
LOOKUP_S = 10
REPORT_S = 10  # a head that has just begun tells of itself after some seconds
GIVE = "give --address=http://HOST:8265 of a Ray dashboard"
TOKEN = (
    "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN=TOKEN (or RAY_AUTH_TOKEN_PATH=FILE, or keep it in ~/.ray/auth_token); "
    "`ray get-auth-token` on the head prints the cluster's"
)


@dataclass(frozen=True)
class Door:
    """A cluster that answers, is of our versions and lets us in."""

    url: str
    client: Any
    """ray.job_submission.JobSubmissionClient."""


def address_of(given: str | None) -> tuple[str, str]:
    """(address, where it was given): the option, else the environment in Ray's order, else this machine's."""
    for name, value in (
        ("--address", given),
        ("RAY_API_SERVER_ADDRESS", os.environ.get("RAY_API_SERVER_ADDRESS")),
        ("RAY_ADDRESS", os.environ.get("RAY_ADDRESS")),
    ):
        if value:
            return value.rstrip("/"), name
    return DEFAULT, "the default, this machine"


def entered(given: str | None) -> Door:
    """Find the dashboard, check who answers, its versions and our token. Raises UserError, one line."""
    _quieten()
    address, where = address_of(given)
    shown = f"{where}={address}" if where != "the default, this machine" else f"{address} ({where})"
    url = _url_of(address, shown)
    _use_token_if_asked(url)
    version = ask(url, "/api/version", shown)
    if not isinstance(version, dict) or "ray_version" not in version:
        raise UserError(f"{shown}: what answers there is no Ray dashboard; {GIVE}")
    facts = ask(url, "/api/v0/cluster_metadata", shown).get("data", {})
    _check_versions(shown, version["ray_version"], facts.get("pythonVersion"))
    # Ray's client prefers its variables to the address that it is handed.
    os.environ["RAY_API_SERVER_ADDRESS"] = url
    from ray.job_submission import JobSubmissionClient

    return Door(url, JobSubmissionClient(url))


def _quieten() -> None:
    """Leave out Ray's own word on tokens and uploads: its modules set their loggers' levels when imported."""
    from ray._private.authentication import authentication_token_setup
    from ray.dashboard.modules import dashboard_sdk
    from ray.dashboard.modules.job import sdk

    for module in (authentication_token_setup, dashboard_sdk, sdk):
        module.logger.setLevel(logging.ERROR)


def ask(url: str, path: str, shown: str | None = None) -> Any:
    """GET a JSON answer. Raises UserError where nobody answers, something else does, or the token is wrong."""
    import requests
    from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled
    from ray.exceptions import AuthenticationError

    shown = shown or url
    try:
        headers = get_auth_headers_if_auth_enabled({})
    except AuthenticationError:
        raise UserError(f"{shown}: token mode is on here (RAY_AUTH_MODE), and there is no token; {TOKEN}") from None
    try:
        answer = requests.get(url + path, headers=headers, timeout=TIMEOUT_S)
    except requests.exceptions.ConnectionError as error:
        raise UserError(
            f"{shown}: no Ray dashboard answers there ({_cause(error)}); start a cluster (`ray start --head`), open "
            f"the way to it (`ray dashboard cluster.yaml`), or give --address=http://HOST:8265"
        ) from None
    except requests.exceptions.Timeout:
        raise UserError(
            f"{shown}: no answer within {TIMEOUT_S} s: the host cannot be reached, or what listens is no Ray; {GIVE}"
        ) from None
    except (requests.exceptions.RequestException, ValueError) as error:
        raise UserError(f"{shown}: not an address ({_cause(error)}); {GIVE}") from None
    if answer.status_code == 401:
        raise UserError(f"{shown}: the cluster wants a token and got none (401); {TOKEN}")
    if answer.status_code == 403:
        raise UserError(f"{shown}: the token is not this cluster's (403); {TOKEN}")
    try:
        return answer.json()
    except ValueError:
        raise UserError(f"{shown}: what answers is no Ray dashboard (HTTP {answer.status_code}); {GIVE}") from None


def interpreter_of(url: str) -> str:
    """The Python that Ray runs with on the head, where the driver of a job is started.

    `python` of a job is whatever the PATH of `ray start` finds, if anything; the raylet's own command line names the
    interpreter of its workers.
    """
    for _ in range(REPORT_S):
        for node in ask(url, "/nodes?view=summary").get("data", {}).get("summary", []):
            for word in node.get("cmdline", []) if node.get("raylet", {}).get("isHeadNode") else []:
                option, _, command = word.partition("=")
                if option == "--python_worker_command" and command:
                    return command.split(" ")[0]
        time.sleep(1)
    return "python"


def _url_of(address: str, shown: str) -> str:
    """The dashboard's URL for any address that Ray knows."""
    if address.startswith("ray://"):
        host = address.removeprefix("ray://").partition(":")[0]
        raise UserError(f"{shown}: the port of Ray Client takes no jobs; give --address=http://{host}:8265")
    if address.startswith(("http://", "https://")):
        return address
    if "://" in address:
        raise UserError(f"{shown}: not an address of a cluster; {GIVE}")
    if address != "auto":
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise UserError(f"{shown}: not an address of a cluster; {GIVE}")
        try:
            socket.create_connection((host, int(port)), timeout=TIMEOUT_S).close()
        except (OSError, ValueError, OverflowError) as error:
            raise UserError(f"{shown}: nothing answers there ({_cause(error)}); {GIVE}") from None
        if _speaks_http(address):
            return f"http://{address}"
    return _looked_up(address, shown)


def _speaks_http(address: str) -> bool:
    """Whether HOST:PORT is a dashboard's; the port of GCS answers no HTTP."""
    import requests

    try:
        return requests.get(f"http://{address}/api/authentication_mode", timeout=TIMEOUT_S).status_code < 500
    except requests.exceptions.RequestException:
        return False


def _looked_up(address: str, shown: str) -> str:
    """Ask GCS where the dashboard is. It waits for ever where the address is no GCS: a thread is left to it."""
    found: list[str] = []
    failed: list[Exception] = []

    def look() -> None:
        from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
        from ray.dashboard.utils import ray_address_to_api_server_url

        try:
            maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
            found.append(ray_address_to_api_server_url(address))
        except Exception as error:  # handed to the waiting thread
            failed.append(error)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(LOOKUP_S)
    if found:
        return found[0]
    cause = _cause(failed[0]) if failed else f"no answer within {LOOKUP_S} s"
    if "authtoken" in cause.lower() or "unauthenticated" in cause.lower():
        raise UserError(f"{shown}: the token is missing, or not this cluster's; {TOKEN}")
    raise UserError(f"{shown}: no Ray cluster answers there ({cause}); {GIVE}")


def _use_token_if_asked(url: str) -> None:
    """Switch token mode on where the cluster is in it, the user has said nothing about it, and there is a token."""
    import requests

    if os.environ.get("RAY_AUTH_MODE"):
        return
    try:
        mode = requests.get(f"{url}/api/authentication_mode", timeout=TIMEOUT_S).json()["authentication_mode"]
    except (requests.exceptions.RequestException, ValueError, KeyError, TypeError):
        return  # the next question tells what is wrong
    if mode == "token":
        from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def _check_versions(shown: str, ray_there: str, python_there: str | None) -> None:
    """Refuse a cluster on which what is pickled here could not be read. Raises UserError."""
    import ray

    python_here = ".".join(map(str, sys.version_info[:3]))
    same_python = python_there is None or python_there.split(".")[:2] == python_here.split(".")[:2]
    if ray_there != ray.__version__ or not same_python:
        raise UserError(
            f"{shown}: the cluster runs Ray {ray_there} on Python {python_there or 'unknown'}, this is Ray "
            f"{ray.__version__} on Python {python_here}; use the same here and there (`cloze cluster aws` prints a "
            f"cluster that does)"
        )


def _cause(error: BaseException) -> str:
    """What is wrong, without the library's wrapping."""
    text = masked(str(error)).splitlines()[0] if str(error) else type(error).__name__
    known = ("connection refused", "name or service not known", "no route to host", "timed out", "connection reset")
    return next((word for word in known if word in text.lower()), text[:160])

