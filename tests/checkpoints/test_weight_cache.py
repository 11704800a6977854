"""The cache of dequantised weights: used, checked, rebuilt when damaged, and never required."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from detharness.checkpoints import weight_cache
from detharness.checkpoints.weight_cache import CacheKey, cache_folder, cached_weights
from detharness.checkpoints.weights import Weights

KEY = CacheKey("ab" * 32, torch.bfloat16)
TENSORS = {"b": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), "a": torch.ones(4, dtype=torch.bfloat16)}
SHAPES = {"b": (2, 3), "a": (4,)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DETHARNESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "weights"


class Builds:
    """Counts how often the weights are computed."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> dict[str, torch.Tensor]:
        self.count += 1
        return {name: tensor.clone() for name, tensor in TENSORS.items()}


def load(builds: Builds, key: CacheKey = KEY) -> tuple[Weights, str]:
    weights, notes = cached_weights(key, SHAPES, builds)
    assert list(weights) == list(SHAPES)
    assert all(torch.equal(weights[name], tensor) for name, tensor in TENSORS.items())
    assert all(weights[name].dtype == key.dtype for name in TENSORS)
    return weights, "\n".join(notes)


def test_second_load_computes_nothing(folder: Path) -> None:
    builds = Builds()
    assert load(builds)[1] == ""
    assert load(builds)[1] == ""
    assert builds.count == 1
    assert len(list(folder.iterdir())) == 1


def test_each_digest_dtype_library_and_layout_has_its_own_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = Builds()
    load(builds)
    load(builds, CacheKey("cd" * 32, torch.bfloat16))
    monkeypatch.setattr(weight_cache, "LAYOUT_VERSION", 99)
    load(builds)
    monkeypatch.setattr(weight_cache, "version", lambda _: "0.0.1")
    load(builds)
    assert builds.count == len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("position", [0, 9, 100, -1, -9])
def test_one_flipped_byte_is_seen_and_mended(folder: Path, position: int) -> None:
    builds = Builds()
    load(builds)
    (path,) = folder.iterdir()
    sound = path.read_bytes()
    damaged = bytearray(sound)
    damaged[position] ^= 0x10
    path.write_bytes(damaged)
    assert "cached weights rebuilt" in load(builds)[1]
    assert builds.count == 2
    assert path.read_bytes() == sound
    assert load(builds)[1] == ""


@pytest.mark.parametrize("size", [0, 5, 60, -4])
def test_a_file_cut_short_is_seen_and_mended(folder: Path, size: int) -> None:
    builds = Builds()
    load(builds)
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:size])
    assert "cached weights rebuilt" in load(builds)[1]
    assert load(builds)[1] == ""
    assert builds.count == 2


def test_a_file_under_another_key_is_not_taken(folder: Path) -> None:
    builds = Builds()
    load(builds)
    (path,) = folder.iterdir()
    other = CacheKey("cd" * 32, torch.bfloat16)
    path.rename(folder / f"{other.name()}.safetensors")
    assert "cached weights rebuilt" in load(builds, other)[1]


def test_a_folder_that_cannot_be_made_costs_a_note_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("DETHARNESS_CACHE", str(tmp_path / "file"))
    builds = Builds()
    assert "weights not cached" in load(builds)[1]
    assert "weights not cached" in load(builds)[1]
    assert builds.count == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_disk_costs_a_note_only(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(weight_cache, "save_file", fail)
    assert os.strerror(code) in load(Builds())[1]
    assert list(folder.iterdir()) == []


def test_an_interrupted_write_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load(Builds())
    assert list(folder.iterdir()) == []


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DETHARNESS_CACHE", "/a")
    assert cache_folder() == Path("/a/weights")
    monkeypatch.delenv("DETHARNESS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder() == Path("/b/detharness/weights")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/c")
    assert cache_folder() == Path("/c/.cache/detharness/weights")
    monkeypatch.setattr(weight_cache, "cache_folder", lambda: None)
    assert "no home folder" in load(Builds())[1]
