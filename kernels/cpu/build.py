"""Compile the C++ sources once per (sources, compiler, flags, CPU) and hand out the library's path.

The compiled library is believed only with its recorded digest, which is written after it: a build that was killed,
or a file that was damaged since, is built anew. One process builds, others wait on a file lock.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from detharness.errors import KernelError
from detharness.records.atomic import write_atomic
from detharness.records.digests import sha256_file, sha256_value
from detharness.records.environment import parse_cpuinfo
from detharness.records.user_cache import user_cache

VECTOR_BITS = (128, 256, 512)
SOURCES = Path(__file__).parent

# No contraction and no fast-math: a multiply and an add are fused only where the source says so.
_FLAGS = (
    "-O2",
    "-std=c++17",
    "-ffp-contract=off",
    "-fno-fast-math",
    "-fno-math-errno",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
)
_X86_FLAGS = {
    128: ("-mavx", "-mfma"),
    256: ("-mavx2", "-mfma"),
    512: ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mprefer-vector-width=512"),
}
_X86_NEEDS = {
    128: ("avx", "fma"),
    256: ("avx2", "fma"),
    512: ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma"),
}


class BuildError(KernelError):
    """The C++ kernels cannot be built or run here. What the compiler said is a note of the exception."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the bytes of the library; ``key`` names it in the cache."""

    compiler: str
    compiler_version: str
    flags: tuple[str, ...]
    cpu_flags: tuple[str, ...]
    vector_bits: int

    @property
    def key(self) -> str:
        """SHA-256 over the sources and the recipe."""
        sources = {path.name: sha256_file(path) for path in sorted(SOURCES.glob("*.[ch]*")) if path.suffix != ".pyc"}
        return sha256_value(
            {
                "sources": sources,
                "compiler": [self.compiler, self.compiler_version],
                "flags": list(self.flags),
                "cpu_flags": list(self.cpu_flags),
            }
        )


def host_vector_bits(machine: str, cpu_flags: tuple[str, ...]) -> tuple[int, ...]:
    """Vector widths this CPU runs, ascending; BuildError without fused multiply-add or on an unknown machine."""
    if machine in ("aarch64", "arm64"):
        return (128,)  # Every 64-bit Arm has fused multiply-add.
    if machine not in ("x86_64", "AMD64"):
        raise BuildError(f"the C++ kernels know x86-64 and 64-bit Arm, not {machine}; the PyTorch kernels run anywhere")
    widths = tuple(bits for bits in VECTOR_BITS if set(_X86_NEEDS[bits]) <= set(cpu_flags))
    if not widths:
        raise BuildError("this CPU has no fused multiply-add (flags avx and fma), which the C++ kernels need")
    return widths


def recipe(vector_bits: int | None = None) -> Recipe:
    """The recipe for this host, at ``vector_bits`` or the widest it runs; BuildError where there is none."""
    machine = platform.machine()
    try:
        cpu_flags = tuple(parse_cpuinfo(Path("/proc/cpuinfo").read_text())[1])
    except OSError as error:
        raise BuildError("the CPU's features cannot be read from /proc/cpuinfo, which the C++ kernels need") from error
    widths = host_vector_bits(machine, cpu_flags)
    bits = widths[-1] if vector_bits is None else vector_bits
    if bits not in widths:
        raise BuildError(f"this CPU does not run {bits}-bit vectors; it runs {widths}")
    extra = _X86_FLAGS[bits] if machine in ("x86_64", "AMD64") else ()
    compiler = _find_compiler()
    return Recipe(
        compiler=compiler,
        compiler_version=_version(compiler),
        flags=(*_FLAGS, *extra, f"-DDETHARNESS_VECTOR_BITS={bits}"),
        cpu_flags=cpu_flags,
        vector_bits=bits,
    )


def cache_folder() -> Path:
    """The folder of compiled kernels; BuildError if there is no home folder to put it in."""
    folder = user_cache("kernels")
    if folder is None:
        raise BuildError("there is no home folder for the kernel cache: set DETHARNESS_CACHE to a folder")
    return folder


def built_library(wanted: Recipe) -> Path:
    """The path of the compiled library, built now if the cache does not hold it whole; BuildError if it cannot be."""
    folder = cache_folder()
    library = folder / f"{wanted.key}.so"
    if _is_whole(library):
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{wanted.key}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_whole(library):
                _compile(wanted, library)
    except OSError as error:
        raise BuildError(
            f"the kernel cache {folder} cannot be written ({error.strerror}): set DETHARNESS_CACHE to a folder that can"
        ) from error
    return library


def _digest_file(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _is_whole(library: Path) -> bool:
    try:
        return _digest_file(library).read_text() == sha256_file(library)
    except (OSError, UnicodeDecodeError):
        return False


def _compile(wanted: Recipe, library: Path) -> None:
    _digest_file(library).unlink(missing_ok=True)
    # A killed build's compiler may still be writing into its folder: what resists stays for the next build to remove.
    for abandoned in library.parent.glob(f"{wanted.key}.build-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{wanted.key}.build-", dir=library.parent) as scratch:
        output = Path(scratch) / "kernels.so"
        sources = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
        command = [wanted.compiler, *wanted.flags, *sources, "-o", str(output)]
        run = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if run.returncode != 0:
            failure = BuildError(
                f"the compiler {wanted.compiler} failed on the C++ kernels (exit {run.returncode}); "
                "its message is shown with --debug"
            )
            failure.add_note(run.stderr)
            raise failure
        digest = sha256_file(output)
        output.replace(library)
    write_atomic(_digest_file(library), digest.encode())


def _find_compiler() -> str:
    named = os.environ.get("CXX")
    for candidate in (named,) if named else ("g++", "c++", "clang++"):
        if found := shutil.which(candidate):
            return found
    raise BuildError(
        f"the C++ compiler {named!r} named by CXX was not found: unset CXX or install it"
        if named
        else "no C++ compiler (g++, c++ or clang++) was found: install one, or name it in CXX"
    )


def _version(compiler: str) -> str:
    try:
        run = subprocess.run([compiler, "--version"], capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise BuildError(f"the C++ compiler {compiler} cannot be started: {error.strerror}") from error
    if run.returncode != 0:
        raise BuildError(f"the C++ compiler {compiler} does not answer --version (exit {run.returncode})")
    return run.stdout.splitlines()[0] if run.stdout else ""
