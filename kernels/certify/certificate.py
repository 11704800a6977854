"""The certificate: what the probes found, kept under everything that could change it."""

from __future__ import annotations

import os
import warnings
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from detharness.errors import BackendWarning, KernelError, UsageError
from detharness.kernels.certify.operators import row_operators
from detharness.kernels.certify.paged import SHAPES, PagedProbe
from detharness.kernels.certify.rows import Finding
from detharness.kernels.certify.step import probe_step
from detharness.kernels.contract import KernelSet
from detharness.records.atomic import write_atomic
from detharness.records.canonical import canonical_bytes, read_json
from detharness.records.digests import sha256_file, sha256_value
from detharness.records.environment import environment_fingerprint
from detharness.records.user_cache import user_cache

SCHEMA = "detharness.certificate/1"
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Certificate:
    """What the bit probes of one kernel set found on this host.

    key: SHA-256 over CPU, library versions, numeric settings, thread counts, and the sources of kernels and probes.
    note: why it was not kept, or None.
    """

    kernels: str
    backend: str
    key: str
    threads: tuple[int, ...]
    findings: tuple[Finding, ...]
    note: str | None = None

    @property
    def status(self) -> Literal["passed", "failed"]:
        """Failed when any probe saw a row move."""
        return "failed" if self.failures else "passed"

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The probes that saw a row move."""
        return tuple(finding for finding in self.findings if finding.failure is not None)

    @property
    def cases(self) -> int:
        """Rows compared, over all probes."""
        return sum(finding.cases for finding in self.findings)

    @property
    def id(self) -> str:
        """SHA-256 of the content."""
        return sha256_value(self.as_record())

    def as_record(self) -> dict[str, Any]:
        """Plain values, without the note."""
        return {
            "schema": SCHEMA,
            "kernels": self.kernels,
            "backend": self.backend,
            "key": self.key,
            "threads": list(self.threads),
            "findings": [asdict(finding) for finding in self.findings],
        }


def require_certificate(kernels: KernelSet, *, strict: bool) -> Certificate:
    """The certificate of a set that claims to be row-pure.

    A failed one is a KernelError when ``strict``, else a BackendWarning; either says in one sentence what moved.
    """
    certificate = certify(kernels)
    if certificate.failures:
        first = certificate.failures[0]
        sentence = (
            f"the {kernels.name} kernels ({kernels.backend}) fail their bit probe on this host: {first.operator}, "
            f"{first.failure}; see detharness doctor"
        )
        if strict:
            raise KernelError(sentence)
        warnings.warn(sentence, BackendWarning, stacklevel=2)
    return certificate


def certify(kernels: KernelSet, *, fresh: bool = False) -> Certificate:
    """The certificate of ``kernels`` on this host: the kept one, or probed now and kept.

    ``fresh`` probes in any case. A cache that cannot be read or written costs the time of the probes, and ``note`` says
    so; a damaged certificate is made anew.
    """
    threads = _thread_counts()
    key = certificate_key(kernels, threads)
    folder = user_cache("certificates")
    path = None if folder is None else folder / f"{key}.json"
    held = None if fresh else _IN_PROCESS.get(key) or _read(path, key)
    if held is None:
        held = _keep(path, Certificate(kernels.name, kernels.backend, key, threads, probe(kernels, threads)))
    _IN_PROCESS[key] = held
    return held


def probe(kernels: KernelSet, threads: tuple[int, ...]) -> tuple[Finding, ...]:
    """Every probe of ``kernels``, one finding each."""
    with torch.inference_mode():
        rows = [operator.probe(threads) for operator in row_operators(kernels)]
        paged = [
            PagedProbe(kernels, shape, dtype, name).find(threads) for name, dtype in _DTYPES.items() for shape in SHAPES
        ]
        steps = [probe_step(kernels, dtype, name, threads) for name, dtype in _DTYPES.items()]
    return (*rows, *paged, *(step for step in steps if step is not None))


def certificate_key(kernels: KernelSet, threads: tuple[int, ...]) -> str:
    """SHA-256 over everything that a certificate depends on."""
    environment = environment_fingerprint()
    return sha256_value(
        {
            "schema": SCHEMA,
            "environment": {name: environment[name] for name in ("python", "packages", "cpu", "variables")},
            "settings": [torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled],
            "kernels": [kernels.name, kernels.backend, kernels.identity()],
            "probes": _own_sources(),
            "threads": list(threads),
        }
    )


def _thread_counts() -> tuple[int, ...]:
    """1 to n for the threads torch may use here; powers of two and n beyond 8."""
    most = max(torch.get_num_threads(), len(os.sched_getaffinity(0)))
    return tuple(n for n in range(1, most + 1) if n <= 8 or n == most or n & (n - 1) == 0)


@cache
def _own_sources() -> str:
    return sha256_value({path.name: sha256_file(path) for path in sorted(Path(__file__).parent.glob("*.py"))})


_IN_PROCESS: dict[str, Certificate] = {}


def _read(path: Path | None, key: str) -> Certificate | None:
    """The kept certificate, or None where there is none that can be believed."""
    if path is None or not path.exists():
        return None
    try:
        stored = read_json(path)
        content = stored["certificate"]
        if stored["digest"] != sha256_value(content) or content["key"] != key or content["schema"] != SCHEMA:
            return None
        findings = tuple(Finding(**finding) for finding in content["findings"])
        return Certificate(content["kernels"], content["backend"], key, tuple(content["threads"]), findings)
    except (UsageError, KeyError, TypeError, ValueError):
        return None


def _keep(path: Path | None, certificate: Certificate) -> Certificate:
    if path is None:
        return replace(certificate, note="there is no home folder to keep it in: set DETHARNESS_CACHE")
    record = certificate.as_record()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, canonical_bytes({"certificate": record, "digest": sha256_value(record)}))
    except OSError as error:
        note = f"it was not kept ({error.strerror}): set DETHARNESS_CACHE to a folder that can be written"
        return replace(certificate, note=note)
    return certificate
