"""Credentials are recognised by their form, refused in a config, and left out of whatever is written or shown."""

import pytest

from data.config import UserError
from orchestration import credentials
from orchestration.cli import main
from orchestration.progress import run_log
from orchestration.recipe import build_config, load_config

# None of these opens anything. Put together here, so that this file holds no credential by its form.
PLANTED = {
    "AWS key": "AKIA" + "Q" * 16,
    "password in a URI": "s3://someone:" + "hunter2hunter2" + "@bucket/runs",
    "AWS secret in a URI": "s3://" + "AKIA" + "Q" * 16 + ":abc/def+ghi@bucket/runs",
    "key in a URI": "s3://bucket/runs?scheme=https&secret_key=" + "wJalrXUtnFEMI",
    "signed URL": "https://host/x.txt?X-Amz-Date=1&X-Amz-Signature=" + "0f" * 32,
    "Google's signed URL": "https://host/x.txt?X-Goog-Signature=" + "0f" * 32,
    "Azure's signed URL": "https://host/x.txt?sv=2021&sig=" + "ab%2Fcd%3D",
    "GitHub token": "ghp" + "_" + "a1B2" * 9,
    "Hugging Face token": "hf" + "_" + "a1B2" * 9,
    "private key": "-----BEGIN " + "RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
    "named secret": "aws_secret_access_key = " + "wJalrXUtnFEMI/K7MDENG",
}
HARMLESS = [
    "runs", "s3://bucket/runs", "s3://bucket/runs?scheme=http&endpoint_override=127.0.0.1:9000&region=eu-west-1",
    "https://host:8080/corpus@2024/x.txt", "/nfs/law", "docs@work.txt", "ray://head:10001", "token", "[MASK]",
    "corpus/*.jsonl.gz", "hf_transfer", "sk-learn", "key=value", "gs://bucket/a:b@c", "AKIA", "password.txt",
    '~/.ray/auth_token: "~/.ray/auth_token"', "token_path=/etc/token", "auth_token: <paste it here>",
]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_here(monkeypatch, tmp_path):
    """No secret of the machine that runs the tests."""
    for name in list(credentials.secrets_here()):
        monkeypatch.delenv(name.removeprefix("the value of "), raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "no-token"))


@pytest.mark.parametrize("what", PLANTED)
def test_each_form_is_recognised_and_masked(what):
    text = f"could not open {PLANTED[what]}, giving up"
    assert credentials.kind_of(text)
    shown = credentials.masked(text)
    assert "***" in shown and shown.startswith("could not open ") and shown.endswith("giving up")
    secret = PLANTED[what].rpartition("=")[2].rpartition("://")[2].partition("@")[0].strip()
    assert secret not in shown and credentials.kind_of(shown) is None


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_values_are_let_through(text):
    assert credentials.kind_of(text) is None
    assert credentials.masked(text) == text


def test_what_this_machine_keeps_secret_is_known_by_its_value(monkeypatch, tmp_path):
    (tmp_path / "token").write_text("d41d8cd98f00b204\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("SOME_API_KEY", "correct-horse-battery")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "not-a-secret-at-all")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/home/someone/key.json")
    monkeypatch.setenv("MY_TOKEN", "short")
    assert credentials.kind_of("x correct-horse-battery x") == "the value of SOME_API_KEY"
    assert "Ray's token" in str(credentials.kind_of("d41d8cd98f00b204"))
    assert credentials.masked("correct-horse-battery, d41d8cd98f00b204") == "***, ***"
    for text in ("not-a-secret-at-all", "/home/someone/key.json", "short"):
        assert credentials.kind_of(text) is None


@pytest.mark.parametrize("what", PLANTED)
@pytest.mark.parametrize("key", ["storage", "corpus.sources", "task.train", "encoder.init", "no.such.key"])
def test_a_config_that_holds_one_is_refused_by_key_without_its_value(what, key):
    with pytest.raises(UserError) as caught:
        build_config({"name": "x"}, {key: PLANTED[what]})
    line = str(caught.value)
    assert len(line.splitlines()) == 1 and line.startswith(f"{key}: the value holds a")
    assert "instance profile" in line and "~/.aws" in line
    assert PLANTED[what] not in line and credentials.kind_of(line) is None


def test_it_is_found_wherever_it_stands(tmp_path):
    secret = PLANTED["AWS key"]
    (tmp_path / "r.yaml").write_text(f"name: x\ncorpus: {{sources: [{{path: a.txt, text_field: {secret}}}]}}\n")
    for recipe, words in (
        (str(tmp_path / "r.yaml"), []),
        (None, ["name=x", f"sweep.space={{finetune.mode: [{secret}]}}"]),
        (None, ["name=x", f"{secret}=1"]),
        (None, ["name=x", f"storage=[{secret}"]),  # no YAML either: the word would be quoted in that message
        (None, ["name=x", secret]),
        (None, [f"name={secret}"]),
    ):
        with pytest.raises(UserError) as caught:
            load_config(recipe, words)
        assert secret not in str(caught.value) and "holds an AWS access key" in str(caught.value)


def test_no_message_and_no_log_shows_one(tmp_path, monkeypatch, capfd):
    """Not even that of a place which does not look for them: paths on the command line, a library's traceback."""
    monkeypatch.chdir(tmp_path)
    secret = PLANTED["key in a URI"]
    words = ["report", secret, "--storage", secret]
    monkeypatch.setattr("sys.argv", ["cloze", *words])
    assert main(words) == 2
    assert main(["predict", secret, secret]) == 2
    with pytest.raises(RuntimeError), run_log(tmp_path / "run"):
        import logging

        try:
            raise OSError(f"403 for {secret}")
        except OSError:
            logging.getLogger("library").exception("no access to %s", secret)
        raise RuntimeError(f"no access to {secret}")
    log = (tmp_path / "run" / "log" / "driver.log").read_text()
    out, error = capfd.readouterr()
    assert log.count("***") >= 4 and "Traceback" in log
    for text in (log, out, error):
        assert "wJalrXUtnFEMI" not in text
