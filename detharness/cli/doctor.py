"""``detharness doctor``: what this machine can run, and what the bit probes of its kernels found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from detharness.cli.exits import plain_errors, say, write_stdout

if TYPE_CHECKING:
    from detharness.kernels.certify import Certificate

SCHEMA = "detharness.doctor/1"


def doctor(
    fresh: Annotated[bool, typer.Option("--fresh", help="Probe again, whatever certificates are kept.")] = False,
    json: Annotated[bool, typer.Option("--json", help="End stdout with the findings as one line of JSON.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error, and what a failing compiler said.")
    ] = False,
) -> None:
    """Show this machine, the C++ build, and the certificate of each kernel backend.

    The library kernels are the control.

    Exit codes: 0 every probe of the row-pure kernels passed, 1 one failed, 2 usage.
    """
    with plain_errors(debug=debug):
        found = _examine(fresh=fresh, debug=debug)
        _show(found)
        code = 1 if any(c["status"] == "failed" for c in found["certificates"] if c["kernels"] == "invariant") else 0
        if json:
            write_stdout(_line({**found, "exit_code": code}))
    raise typer.Exit(code)


def _examine(*, fresh: bool, debug: bool) -> dict[str, Any]:
    import torch

    from detharness.kernels.certify import certify
    from detharness.kernels.contract import kernel_set
    from detharness.kernels.cpu import BuildError
    from detharness.records.environment import environment_fingerprint

    certificates: list[Certificate] = []
    build: dict[str, Any] = {"built": True, "reason": None}
    try:
        cpp = kernel_set("invariant", "cpp")
    except BuildError as error:
        build = {"built": False, "reason": str(error)}
        if debug:
            build["compiler_said"] = "\n".join(getattr(error, "__notes__", []))
    else:
        say("Probing the C++ kernels, or reading their certificate.")
        certificates.append(certify(cpp, fresh=fresh))
    say("Probing the PyTorch kernels, or reading their certificate.")
    certificates.append(certify(kernel_set("invariant", "pytorch"), fresh=fresh))
    say("Probing the library kernels, the control, or reading what was found.")
    certificates.append(certify(kernel_set("torch"), fresh=fresh))
    return {
        "schema": SCHEMA,
        "environment": environment_fingerprint(),
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "cpp": build,
        "certificates": [
            {**c.as_record(), "id": c.id, "status": c.status, "cases": c.cases, "note": c.note} for c in certificates
        ],
    }


def _memory_bytes() -> int:
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _show(found: dict[str, Any]) -> None:
    from detharness.rendering.tables import make_console, make_table

    console = make_console()
    environment = found["environment"]
    cpu, packages = environment["cpu"], environment["packages"]
    build = "built" if found["cpp"]["built"] else f"not built: {found['cpp']['reason']}"
    machine = [
        ("CPU", cpu["model"]),
        ("vector extensions", " ".join(cpu["flags"])),
        ("usable cores", cpu["usable_cores"]),
        ("memory", f"{found['memory_gib']} GiB"),
        ("GPU", found["gpu"] or "none that torch can use"),
        ("versions", ", ".join(f"{name} {version}" for name, version in packages.items())),
        ("C++ kernels", build),
    ]
    console.print(make_table(("this machine", ""), machine))
    if said := found["cpp"].get("compiler_said"):
        say(f"The compiler said: {said}")
    rows = []
    for certificate in found["certificates"]:
        failures = [finding for finding in certificate["findings"] if finding["failure"] is not None]
        name = f"{certificate['kernels']} ({certificate['backend']})"
        first = f"{failures[0]['operator']}: {failures[0]['failure']}" if failures else None
        verdict = f"{len(failures)} of {len(certificate['findings'])} move" if failures else "no row moved"
        rows.append((name, len(certificate["findings"]), certificate["cases"], verdict, first))
    console.print(make_table(("kernels", "probes", "comparisons", "found", "first"), rows))
    for certificate in found["certificates"]:
        _show_findings(console, certificate)
    say("The library kernels (torch) are the control: where they move on this host is what the others must not do.")


def _show_findings(console: Any, certificate: dict[str, Any]) -> None:
    from detharness.rendering.tables import make_table

    rows = [
        (finding["operator"], finding["cases"], "passed" if finding["failure"] is None else finding["failure"])
        for finding in certificate["findings"]
    ]
    title = f"{certificate['kernels']} kernels, {certificate['backend']}, certificate {certificate['id'][:16]}"
    console.print(make_table(("operator", "comparisons", "found"), rows, title=title))
    if certificate["note"]:
        which = f"{certificate['kernels']} ({certificate['backend']})"
        say(f"Note on the certificate of {which}: {certificate['note']}.")


def _line(value: dict[str, Any]) -> str:
    from detharness.records.canonical import canonical_bytes

    return canonical_bytes(value).decode() + "\n"
