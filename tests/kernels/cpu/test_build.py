"""The build cache: built once, believed only when whole, and every failure is one sentence with a way out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from detharness.kernels.cpu import build
from detharness.kernels.cpu.build import BuildError, Recipe, built_library, cache_folder, host_vector_bits, recipe
from detharness.kernels.cpu.library import Library

# A compiler that notes each run, waits a little and writes what it was told to: the cache's behaviour, without a build.
COMPILER = """#!/bin/sh
[ "$1" = --version ] && { echo "fake 1.0"; exit 0; }
echo run >> "$FAKE_LOG"
while [ "$1" != -o ]; do shift; done
echo "half a library" > "$2"
sleep 0.3
[ -n "$FAKE_KILL" ] && { kill -9 $PPID; exit; }
[ -n "$FAKE_FAIL" ] && { echo "line 7: what a mess" >&2; exit 3; }
echo "a library" > "$2"
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A recipe whose compiler is the script above; (recipe, log of its runs)."""
    script, log = tmp_path / "fake++", tmp_path / "log"
    script.write_text(COMPILER)
    script.chmod(0o755)
    log.touch()
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("FAKE_LOG", str(log))
    monkeypatch.setenv("DETHARNESS_CACHE", str(tmp_path / "cache"))
    return recipe(), log


def runs(log: Path) -> int:
    return len(log.read_text().splitlines())


def test_built_once_and_reused(fake):
    wanted, log = fake
    library = built_library(wanted)
    assert library.read_text() == "a library\n"
    assert built_library(wanted) == library
    assert runs(log) == 1
    # Nothing but the library, its digest and the lock stays behind.
    assert sorted(path.suffix for path in cache_folder().iterdir()) == [".lock", ".sha256", ".so"]


def test_a_damaged_library_is_built_anew(fake):
    wanted, log = fake
    library = built_library(wanted)
    for damage in (b"", b"a librarx\n"):
        library.write_bytes(damage)
        assert built_library(wanted).read_text() == "a library\n"
    library.with_suffix(".sha256").write_bytes(b"\xff\xfe")
    built_library(wanted)
    assert runs(log) == 4


BUILD = "from detharness.kernels.cpu.build import built_library, recipe; print(built_library(recipe()).read_text())"


def test_a_killed_build_leaves_nothing_that_is_believed(fake):
    wanted, log = fake
    run = subprocess.run([sys.executable, "-c", BUILD], env={**os.environ, "FAKE_KILL": "1"})
    assert run.returncode == -9
    assert runs(log) == 1
    assert built_library(wanted).read_text() == "a library\n"
    assert runs(log) == 2
    assert sorted(path.suffix for path in cache_folder().iterdir()) == [".lock", ".sha256", ".so"]


def test_of_several_processes_one_builds(fake):
    _, log = fake
    processes = [subprocess.Popen([sys.executable, "-c", BUILD], stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in processes] == [b"a library"] * 3
    assert runs(log) == 1


def test_a_compiler_that_fails_is_quoted_in_a_note(fake, monkeypatch):
    monkeypatch.setenv("FAKE_FAIL", "1")
    with pytest.raises(BuildError, match=r"fake\+\+ failed on the C\+\+ kernels \(exit 3\)") as caught:
        built_library(fake[0])
    assert caught.value.__notes__ == ["line 7: what a mess\n"]
    assert "\n" not in str(caught.value)
    monkeypatch.delenv("FAKE_FAIL")
    assert built_library(fake[0]).exists()


def test_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="'no-such-compiler' named by CXX was not found"):
        recipe()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="install one"):
        recipe()


def test_a_compiler_that_does_not_run(monkeypatch, tmp_path):
    broken = tmp_path / "broken++"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(BuildError, match="cannot be started"):
        recipe()
    broken.write_text("#!/bin/sh\nexit 9\n")
    with pytest.raises(BuildError, match="does not answer --version"):
        recipe()


def test_a_cache_that_cannot_be_written(fake, monkeypatch, tmp_path):
    (tmp_path / "file").touch()  # A folder below a file cannot be made, not even by root.
    monkeypatch.setenv("DETHARNESS_CACHE", str(tmp_path / "file"))
    with pytest.raises(BuildError, match="set DETHARNESS_CACHE"):
        built_library(fake[0])


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("DETHARNESS_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert cache_folder() == Path("/a/kernels")
    monkeypatch.delenv("DETHARNESS_CACHE")
    assert cache_folder() == Path("/b/detharness/kernels")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/c/.cache/detharness/kernels")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(BuildError, match="no home folder"):
        cache_folder()


def test_the_key_knows_everything_that_decides_the_bytes(fake, monkeypatch, tmp_path):
    base = Recipe("g++", "12", ("-O2",), ("avx",), 256)
    keys = {
        base.key,
        Recipe("clang++", "12", ("-O2",), ("avx",), 256).key,
        Recipe("g++", "13", ("-O2",), ("avx",), 256).key,
        Recipe("g++", "12", ("-O3",), ("avx",), 256).key,
        Recipe("g++", "12", ("-O2",), ("avx", "avx2"), 256).key,
    }
    (tmp_path / "sources").mkdir()
    for name in ("linear.cpp", "vec.h"):
        (tmp_path / "sources" / name).write_text("one")
        monkeypatch.setattr(build, "SOURCES", tmp_path / "sources")
        keys.add(base.key)
        (tmp_path / "sources" / name).write_text("two")
        keys.add(base.key)
    assert len(keys) == 9


def test_register_widths_by_cpu():
    avx2, avx512 = ("avx", "avx2", "fma"), ("avx512bw", "avx512dq", "avx512f", "avx512vl")
    assert host_vector_bits("x86_64", ("avx", "fma")) == (128,)
    assert host_vector_bits("x86_64", avx2) == (128, 256)
    assert host_vector_bits("x86_64", (*avx2, *avx512)) == (128, 256, 512)
    assert host_vector_bits("aarch64", ()) == (128,)
    with pytest.raises(BuildError, match="no fused multiply-add"):
        host_vector_bits("x86_64", ("avx", "avx2"))
    with pytest.raises(BuildError, match="not riscv64"):
        host_vector_bits("riscv64", ())


def test_a_width_that_the_cpu_does_not_run_is_refused(monkeypatch):
    monkeypatch.setattr(build, "host_vector_bits", lambda machine, flags: (128,))
    with pytest.raises(BuildError, match="does not run 512-bit"):
        recipe(512)


def test_a_file_that_is_no_library_is_named(tmp_path):
    (tmp_path / "x.so").write_text("no library")
    with pytest.raises(BuildError, match=r"x\.so cannot be loaded"):
        Library(tmp_path / "x.so")
