"""Credentials, recognised by their form, so that none is written, shown or shipped.

In: a text, such as a config value, a file's lines or an error message. Out: what kind of credential it holds, or the
text without it; never the credential. Knows forms, and the values that this process's environment calls secret.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# What it is called in a message -> its form. Each form is written so that it does not match itself.
FORMS: dict[str, re.Pattern[str]] = {
    what: re.compile(form, re.IGNORECASE if form.startswith("[?") or "password" in form else 0)
    for what, form in {
        "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY(?:-----[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----|-----)",
        "an AWS access key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
        "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,})",
        "a GitLab token": r"\bglpat-[A-Za-z0-9_-]{20,}",
        "a Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}",
        "a Google key": r"\b(?:AIza[0-9A-Za-z_-]{35}|ya29\.[0-9A-Za-z_-]{20,})",
        "a Slack token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
        "an API key": r"\bsk-[A-Za-z0-9_-]{20,}",
        "a web token": r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}",
        "an Azure key": r"\bAccountKey=[A-Za-z0-9+/=]{40,}",
        "a key in a URI": (
            r"[?&;](?:access_key(?:_id)?|secret(?:_access)?_key|session_token|security_token|access_token|auth_token"
            r"|token|password|api_?key|account_key|sig|signature|AWSAccessKeyId"
            r"|X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token))=[^&;\s\"']+"
        ),
        "a password in a URI": r"(?<=:/{2})(?:[^\s/@:\"']*:[^\s/@\"']+|[A-Z0-9]{16,}:[^\s@\"']+)(?=@)",
        "a secret with its name": (
            r"\b(?:aws_)?(?:secret_access_key|session_token)[\"']?\s*[:=]\s*[\"']?[A-Za-z0-9/+=_-]{12,}"
            r"|\b(?:\w+_)?(?:auth_token|api_key|access_token|password|passwd)[\"']?\s*[:=]\s*[\"']?(?![~/.$<])[^\s\"'{}()\[\],;$]{8,}"
        ),
    }.items()
}
# Variables of the environment that hold a secret, by their name (those that name a file of it do not).
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:token|secret|credentials?|passphrase|pass|pwd|(?:api|access|secret|private|account)?key)(?:_|$)"
    r"|passw(?:or)?d",
    re.IGNORECASE,
)
_SHORTEST = 12  # shorter values are words of the language
INSTEAD = (
    "leave it out: what reads it takes credentials from the node's instance profile, its environment or ~/.aws; "
    "and where it has been seen by others, make a new one"
)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable of the environment is a secret by its name; one that names a file of it is not."""
    return bool(_SECRET_NAME.search(name)) and not value.startswith(("/", "~"))


def secrets_here() -> dict[str, str]:
    """Where this machine keeps a secret of its own -> its value: variables of the environment, and Ray's token."""
    found = {
        f"the value of {name}": value.strip()
        for name, value in os.environ.items()
        if is_secret(name, value) and len(value.strip()) >= _SHORTEST
    }
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path("~/.ray/auth_token").expanduser())
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError, RuntimeError):  # no token, or no home
        token = ""
    if len(token) >= _SHORTEST:
        found[f"Ray's token of {path}"] = token
    return found


def kind_of(text: str, secrets: Mapping[str, str] | None = None) -> str | None:
    """What kind of credential a text holds; None: none that is recognised. `secrets`: those of this machine, where the
    caller has many texts and asked before."""
    for what, form in FORMS.items():
        if form.search(text):
            return what
    here = secrets_here() if secrets is None else secrets
    return next((what for what, value in here.items() if value in text), None)


def masked(text: str) -> str:
    """The text with *** for every credential in it."""
    for form in FORMS.values():
        text = form.sub("***", text)
    for value in secrets_here().values():
        text = text.replace(value, "***")
    return text


def lines_with(text: str) -> Iterator[tuple[int, str]]:
    """(number, kind) of each line that holds a credential."""
    if kind_of(text) is None:
        return
    secrets = secrets_here()
    for number, line in enumerate(text.splitlines(), 1):
        kind = next((what for what, form in FORMS.items() if form.search(line)), None)
        kind = kind or next((what for what, value in secrets.items() if value in line), None)
        if kind:
            yield number, kind


def complaints(values: Any, key: str = "", secrets: Mapping[str, str] | None = None) -> Iterator[str]:
    """One line for each text in nested plain values, or name in it, that holds a credential: the key, not the value.
    `secrets`: as in kind_of."""
    secrets = secrets_here() if secrets is None else secrets
    if isinstance(values, dict):
        for name, child in values.items():
            dotted = f"{key}.{name}" if key else str(name)
            if kind := kind_of(str(name), secrets):
                yield f"{masked(dotted)}: the key holds {kind}; {INSTEAD}"
            yield from complaints(child, dotted, secrets)
    elif isinstance(values, list | tuple):
        for child in values:
            yield from complaints(child, key, secrets)
    elif isinstance(values, str) and (
        kind := kind_of(f"{key.rpartition('.')[2]}={values}", secrets) or kind_of(values, secrets)
    ):
        yield f"{masked(key)}: the value holds {kind} (it is not shown); {INSTEAD}"
