"""The child process that renders chat templates: jinja2's sandbox under a memory limit.

Run as a script, so it imports jinja2 and nothing of ours. A template comes from strangers: the sandbox keeps it from
Python's internals, and a process of its own can be stopped when it never ends or asks for all memory. One JSON object
per line goes in and comes out.
"""

from __future__ import annotations

import datetime
import json
import resource
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

MEMORY_LIMIT = 2**30
_NAME = "<template>"  # jinja2's file name for source that came from a string.


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's words for training; here it only renders what it encloses."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Parse up to ``endgeneration``."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class _RefusalError(Exception):
    """The template called ``raise_exception``."""


def _raise_exception(message: object) -> NoReturn:
    raise _RefusalError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML and sorts the keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Clock:
    """``strftime_now`` with a frozen date at midnight; remembers whether it was asked."""

    def __init__(self) -> None:
        self.now = datetime.datetime.min
        self.asked = False

    def strftime(self, form: str) -> str:
        self.asked = True
        return self.now.strftime(form)


def make_environment(clock: _Clock) -> jinja2.Environment:
    """Return what ``transformers`` gives a template, without the sources of chance (``random``, ``lipsum``)."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = clock.strftime
    del environment.filters["random"], environment.globals["lipsum"]
    return environment


def _line(error: BaseException) -> int | None:
    """The template's line nearest to where ``error`` was raised."""
    line, frame = None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == _NAME:
            line = frame.tb_lineno
        frame = frame.tb_next
    return line


def render(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer one request: ``text`` and ``asked_date``, or ``error`` (its kind), ``message`` and ``line``."""
    clock = _Clock()
    clock.now = datetime.datetime.fromisoformat(request["date"])
    try:
        template = make_environment(clock).from_string(request["template"])
        pieces, size = [], 0
        for piece in template.generate(**request["context"]):
            size += len(piece)
            if size > request["output_limit"]:
                return {"error": "size", "message": "", "line": None}
            pieces.append(piece)
        return {"text": "".join(pieces), "asked_date": clock.asked}
    except _RefusalError as error:
        return {"error": "refused", "message": str(error), "line": _line(error)}
    except jinja2.TemplateSyntaxError as error:
        return {"error": "syntax", "message": error.message or "", "line": error.lineno}
    except jinja2.exceptions.SecurityError as error:
        return {"error": "forbidden", "message": str(error), "line": _line(error)}
    except MemoryError as error:
        return {"error": "memory", "message": "", "line": _line(error)}
    except Exception as error:  # Whatever a template's own code raises.
        return {"error": "failed", "message": f"{type(error).__name__}: {error}", "line": _line(error)}


def main() -> None:
    """Serve until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    for line in sys.stdin.buffer:
        answer = json.dumps(render(json.loads(line)))
        sys.stdout.buffer.write(answer.encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
