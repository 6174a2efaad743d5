"""template_process: renders one chat template in a process of its own, under limits that the operating system enforces.

`chat_template` runs this file as a script. It imports nothing of this package, so a rendering costs only the start of Python and
jinja2 (0.1 s). In, on standard input: one JSON object (path, template, variables, and the limits). Out, on standard output: one
JSON object with `text`, or with a description of the failure. A template that computes without end, or takes all memory, ends this
process.
"""

from __future__ import annotations

import json
import resource
import sys
from datetime import datetime
from typing import Any


def limit(cpu_seconds: int, memory: int) -> None:
    """Limit this process's processor seconds and bytes of address space; forbid writing to files and core dumps."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


class TemplateRefusal(Exception):
    """The template called raise_exception."""


def rendered(template: str, variables: dict[str, Any], most_text: int) -> dict[str, Any]:
    """Return {"text": …}, or {"wrong": kind of failure, "why": …, "line": …}."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationMark(Extension):
        tags = {"generation"}  # noqa: RUF012  # jinja2 declares it as an instance's

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    def refuse(message: str) -> str:
        raise TemplateRefusal(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None,
               sort_keys: bool = False) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationMark])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    pieces, length = [], 0
    try:
        for piece in environment.from_string(template).generate(**{"tools": None, "documents": None, **variables}):
            pieces.append(piece)
            length += len(piece)
            if length > most_text:
                return {"wrong": "long"}
    except TemplateRefusal as error:
        return {"wrong": "refused", "why": str(error)}
    except jinja2.TemplateSyntaxError as error:
        return {"wrong": "syntax", "why": str(error.message), "line": error.lineno}
    except jinja2.TemplateError as error:
        return {"wrong": "failed", "why": str(error.message or type(error).__name__)}
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError, LookupError) as error:
        return {"wrong": "messages", "why": str(error)}
    except MemoryError:
        pieces.clear()
        return {"wrong": "memory"}
    return {"text": "".join(pieces)}


def main() -> None:
    asked = json.loads(sys.stdin.buffer.read())
    limit(asked["cpu_seconds"], asked["memory"])
    sys.path[:] = asked["path"]
    answer = rendered(asked["template"], asked["variables"], asked["most_text"])
    sys.stdout.buffer.write(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
