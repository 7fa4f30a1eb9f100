"""Cached features: equal to the encoder in the loop, in order, computed once, found again by content."""

import os
import shutil

import numpy as np
import pytest
import torch
from tiny_encoder import make_examples, read, write_encoder

from model.config import Head
from model.heads.building import build_head
from tuning import features as module
from tuning.features import Request, cache_features, encoder_fingerprint, load_features
from tuning.finetune import tensors


def quiet(text: str, fraction: float | None) -> None:
    """Progress that nobody reads."""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"))


def request_for(encoder, longest: int = 14) -> Request:
    examples = {"train": make_examples(700, 1, longest=longest), "validation": make_examples(31, 2)}
    splits = {name: read(one, encoder).encoded for name, one in examples.items()}
    return Request(encoder, encoder_fingerprint(encoder), splits)


def test_features_equal_the_encoder_in_the_loop_row_by_row(ray_4_cpus, encoder, tmp_path) -> None:
    other = write_encoder(tmp_path / "other", seed=9)
    requests = [request_for(encoder), request_for(other)]
    seen = []
    folders = cache_features(requests, tmp_path, 1, 0, lambda text, fraction: seen.append(fraction))
    assert seen[-1] == 1.0 and seen == sorted(seen)
    for request, folder in zip(requests, folders, strict=True):
        objective = build_head(request.encoder, Head(), ["a", "b", "c"], mode="frozen", seed=3).eval()
        for name, split in request.splits.items():
            cached = load_features(folder, name)
            assert cached.shape == (len(split), 16) and cached.dtype == np.float32
            with torch.no_grad():
                for row in (0, 1, 17, len(split) - 1):  # one by one: other batches than the cache had
                    expected = objective.logits(tensors(split, np.array([row])))
                    actual = objective.logits({"features": torch.from_numpy(cached[row : row + 1].copy())})
                    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
    assert not list(tmp_path.glob("*.part"))

    stamps = [(folder / "train.npy").stat().st_mtime_ns for folder in folders]
    assert cache_features(requests, tmp_path, 1, 0, quiet) == folders
    assert [(folder / "train.npy").stat().st_mtime_ns for folder in folders] == stamps  # once

    # A killed pass leaves no manifest: computed again.
    os.remove(folders[0] / "manifest.json")
    (folders[0] / "train.npy").write_bytes(b"half")
    assert cache_features(requests, tmp_path, 1, 0, quiet) == folders
    assert load_features(folders[0], "train").shape == (700, 16)


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
    monkeypatch.setattr(module, "LARGEST_BYTES", 731 * 16 * 4 - 1)
    assert request_for(encoder).estimated_bytes() == 731 * 16 * 4
    assert cache_features([request_for(encoder)], tmp_path, 1, 0, lambda text, _: said.append(text)) == [None]
    assert "frozen trials run it" in said[0]
    monkeypatch.undo()
    broken = write_encoder(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"not weights")
    said.clear()
    assert cache_features([request_for(broken)], tmp_path, 1, 0, lambda text, _: said.append(text)) == [None]
    assert "could not be computed" in said[-1]
