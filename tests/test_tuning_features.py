"""Cached features: every pooling from one pass, equal to the encoder alone, in order, found again by content."""

import json
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_encoder import GOAL, make_examples, read, write_encoder

from data.alignment import encode_examples
from data.examples import Encoded, Examples
from model.heads.states import open_encoder, pooled_states
from tuning import features as module
from tuning.features import Request, cache_features, encoder_fingerprint, load_features, with_features
from tuning.finetune import Part

POOLINGS = ("cls", "mean", "max", "tokens")


def quiet(text: str, fraction: float | None) -> None:
    """Progress that nobody reads."""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"))


def request_for(encoder: Path, longest: int = 14, poolings: tuple[str, ...] = ("cls",)) -> Request:
    examples = {"train": make_examples(700, 1, longest=longest), "validation": make_examples(31, 2)}
    splits = {name: read(one, encoder).encoded for name, one in examples.items()}
    return Request(encoder, encoder_fingerprint(encoder), splits, poolings)


def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def test_one_pass_makes_every_pooling_row_by_row(ray_4_cpus, encoder, tmp_path) -> None:
    other = write_encoder(tmp_path / "other", seed=9)
    requests = [request_for(encoder, poolings=POOLINGS), request_for(other, poolings=("mean",))]
    seen = []
    found = cache_features(requests, tmp_path, 1, 0, lambda text, fraction: seen.append(fraction))
    assert seen[-1] == 1.0 and seen == sorted(seen)
    assert [tuple(sorted(one)) for one in found] == [tuple(sorted(POOLINGS)), ("mean",)]
    for request, folders in zip(requests, found, strict=True):
        alone = open_encoder(request.encoder)
        for name, split in request.splits.items():
            starts = np.cumsum(split.lengths) - split.lengths
            for pooling, folder in folders.items():
                cached = load_features(folder, name, pooling)
                assert cached.shape == (split.lengths.sum() if pooling == "tokens" else len(split), 16)
                assert cached.dtype == np.float32
                for row in (0, 1, 17, len(split) - 1):  # one by one: other batches than the cache had
                    tokens = {key: torch.from_numpy(array) for key, array in split.tokens(np.array([row])).items()}
                    with torch.no_grad():
                        expected = pooled_states(alone, tokens, (pooling,))[pooling].numpy()
                    begin = starts[row] if pooling == "tokens" else row
                    np.testing.assert_allclose(cached[begin : begin + len(expected)], expected, atol=1e-5)
        (folder,) = set(folders.values())
        assert manifest(folder)["encoder_rows"] == 731 and manifest(folder)["rows"] == {"train": 700, "validation": 31}
    assert not list(tmp_path.glob("*.part"))

    # Again: nothing is read. Another pooling: one pass for that one, and what was there stays.
    folders = [request.folder(tmp_path) for request in requests]
    stamps = [(folder / "train.mean.npy").stat().st_mtime_ns for folder in folders]
    assert cache_features(requests, tmp_path, 1, 0, quiet) == found
    more = [requests[0], request_for(other, poolings=("mean", "cls", "max"))]
    assert set(cache_features(more, tmp_path, 1, 0, quiet)[1]) == {"mean", "cls", "max"}
    assert [(folder / "train.mean.npy").stat().st_mtime_ns for folder in folders] == stamps
    assert [manifest(folder)["encoder_rows"] for folder in folders] == [731, 2 * 731]
    assert manifest(folders[1])["poolings"] == ["cls", "max", "mean"]

    # A killed pass leaves no manifest: computed again.
    os.remove(folders[0] / "manifest.json")
    (folders[0] / "train.cls.npy").write_bytes(b"half")
    assert cache_features([request_for(encoder)], tmp_path, 1, 0, quiet) == [{"cls": folders[0]}]
    assert load_features(folders[0], "train", "cls").shape == (700, 16)


def test_rows_of_pairs_choices_windows_and_passages_are_told_apart(ray_4_cpus, encoder, tmp_path) -> None:
    """Parts with their features give the same vectors as the encoder, whatever a unit is."""
    texts = [f"w{i % 50} " * (i % 20 + 1) for i in range(24)]
    choices = Examples("multiple_choice", texts[:8], choices=[[f"w{i}", f"w{i} w3"] for i in range(8)], targets=[1] * 8)
    pairs = Examples("embedding", texts[:8], pairs=["w7 w8", *texts[9:15], "w7 w8"], targets=[None] * 8)
    windows = Examples("classification", texts, targets=["first"] * 24)
    passages = encode_examples(Examples("embedding", texts[:5]), (), encoder, 8)
    parts = {
        "choices": Part(choices, encode_examples(choices, (), encoder, 12, segments=True)),
        "pairs": Part(pairs, encode_examples(pairs, (), encoder, 12)),
        "windows": Part(windows, encode_examples(windows, GOAL.labels, encoder, 8, 2)),
    }
    assert len(parts["windows"].encoded) > 24 and parts["choices"].encoded.segments is not None
    for name, part in parts.items():
        both = {"train": part, "validation": Part(part.examples, part.encoded, passages)}
        request = Request(encoder, encoder_fingerprint(encoder), module.readings(both), ("mean",))
        (folders,) = cache_features([request], tmp_path, 1, 0, quiet)
        ready = with_features(both, folders["mean"], "mean")
        assert ready["train"].passages is None
        alone = open_encoder(encoder)
        for encoded in (ready["train"].encoded, ready["validation"].encoded, ready["validation"].passages):
            assert encoded is not None
            units = np.arange(len(encoded))[::-1].copy()
            tokens = Encoded.batch(read_again(encoded), units)
            with torch.no_grad():
                inputs = {key: torch.from_numpy(tokens[key]) for key in tokens if key != "labels"}
                expected = pooled_states(alone, inputs, ("mean",))["mean"].numpy()
            np.testing.assert_allclose(encoded.batch(units)["features"], expected, atol=1e-5, err_msg=name)


def read_again(encoded: Encoded) -> Encoded:
    """Without its features."""
    return Encoded(**{**vars(encoded), "features": None, "starts": None})


def test_other_weights_or_texts_are_another_folder(encoder, tmp_path) -> None:
    folder = request_for(encoder).folder(tmp_path)
    assert request_for(encoder).folder(tmp_path) == folder
    assert request_for(encoder, longest=10).folder(tmp_path) != folder
    moved = tmp_path / "moved"
    shutil.copytree(encoder, moved)
    assert request_for(moved).folder(tmp_path) == folder  # by content, not by path
    write_encoder(moved, seed=5)
    assert request_for(moved).folder(tmp_path) != folder


def test_too_large_and_broken_fall_back_aloud(ray_4_cpus, encoder, tmp_path, monkeypatch) -> None:
    said = []
    request = request_for(encoder, poolings=("tokens", "cls"))
    tokens = sum(int(split.lengths.sum()) for split in request.splits.values())
    assert [request.estimated_bytes(pooling) for pooling in ("cls", "tokens")] == [731 * 16 * 4, tokens * 16 * 4]
    monkeypatch.setattr(module, "LARGEST_BYTES", (731 + tokens) * 16 * 4 - 1)
    found = cache_features([request], tmp_path, 1, 0, lambda text, _: said.append(text))
    assert found == [{"cls": request.folder(tmp_path)}]  # what fits is kept
    assert "(of all tokens) would take 0.0 GiB: frozen trials run it" in said[0]
    monkeypatch.undo()
    broken = write_encoder(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"not weights")
    said.clear()
    sound = request_for(write_encoder(tmp_path / "sound", seed=3))
    dead = tmp_path / f"features-x.part-{socket.gethostname()}-{2**22 + 1}"
    dead.mkdir()  # of a process that was killed: above the largest pid there is
    asked = [request_for(broken), sound]
    found = cache_features(asked, tmp_path, 1, 0, lambda text, _: said.append(text))
    assert found == [{}, {"cls": sound.folder(tmp_path)}]  # a broken encoder takes none of another's
    assert f"features of {broken} could not be computed" in " ".join(said)
    assert not list(tmp_path.glob("features-*.part*"))


def test_features_of_other_examples_are_refused(encoder) -> None:
    encoded = read(make_examples(9, 1), encoder).encoded
    for values, on_tokens in ((np.ones((8, 4)), False), (np.ones((9, 4)), True)):
        with pytest.raises(ValueError, match="of other examples"):
            encoded.with_features(values, on_tokens)
