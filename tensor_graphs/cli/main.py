"""main: the verbs of `tg`, and how errors are shown.

An error is printed on standard error, on one screen and without a traceback. The exit code is 1, or 2 for wrong usage, or 130 for
Ctrl-C. An internal error keeps its traceback.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.metadata
import io
import logging
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from tensor_graphs import interrupted
from tensor_graphs.cli import ctrl_c, options
from tensor_graphs.cli.typer_app import Verbs
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.phase_times import IMPORT, OURS

MOST_LINES = 40
"""limit on the lines of an error, so that it fits on one screen"""

MOST_COLUMNS = 1000
"""limit on the characters of an error's line, which may quote a long input"""

log = logging.getLogger("tensor_graphs.phase_times")

app = Verbs(name="tg", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
            help="Say the math once. Run the fastest path that is accurate enough: measured, recorded, explained.")

VERBS = ("run", "chat", "embed", "image", "train", "bench_serve", "serve", "demo", "models", "list_paths", "pareto", "profile",
         "explain", "plan", "convert", "evaluate", "trace", "show", "studio", "equal", "rewrites", "db", "costs", "dataset",
         "devices", "conformance", "new_backend")


def _version(asked: bool) -> None:
    if not asked:
        return
    try:
        print(f"tg {importlib.metadata.version('tensor_graphs')}")
    except importlib.metadata.PackageNotFoundError:
        print("tg (run from its sources, not installed)")
    raise typer.Exit()


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    verbose: Annotated[
        int,
        typer.Option("--verbose", "-v", count=True, show_default=False,
                     help="Tell each phase on standard error; -vv tells each candidate."),
    ] = 0,
) -> None:
    """Say the math once. Run the fastest path that is accurate enough: measured, recorded, explained."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for handler in logging.root.handlers:
        handler.addFilter(_of_no_interruption)
    logging.getLogger("tensor_graphs").setLevel(level)
    if not verbose and sys.stderr.isatty():  # the first command compiles the C kernels, for half a minute
        compiling = logging.getLogger("tensor_graphs.devices.toolchain")
        compiling.setLevel(logging.INFO)
        compiling.addFilter(_on_a_clear_line)


def _of_no_interruption(record: logging.LogRecord) -> bool:
    """Drop log records of a KeyboardInterrupt: a connection pool logs it in its cleanup, and raises it again."""
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))


def _on_a_clear_line(record: logging.LogRecord) -> bool:
    """Print a compiler's message over the spinner's line, instead of logging it; let warnings and errors pass to the log."""
    if record.levelno > logging.INFO:
        return True
    print(f"\r\x1b[2K{record.getMessage()}", file=sys.stderr, flush=True)
    return False


for _verb in VERBS:
    _module = importlib.import_module(f"tensor_graphs.cli.{_verb}")
    if hasattr(_module, "register"):                    # several verbs under one word
        _module.register(app)
    else:
        app.command(_verb.replace("_", "-"))(getattr(_module, _verb))


@functools.cache
def command() -> Callable[..., Any]:
    """Return the parser of all verbs, built once; a process that forks several commands builds it before the forks."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command; the entry point, which exits with a status and never returns."""
    ctrl_c.while_running()
    for stream in (sys.stdout, sys.stderr):  # a terminal that has no µ shows a question mark
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        parser = command()
        _collect_seldom()
        OURS.until_here(IMPORT)
        code = parser(prog_name="tg", standalone_mode=False)
        sys.stdout.flush()
    except options.UsageError as e:
        _fail(str(e), 2)
    except TensorGraphsError as e:
        _fail(str(e), 1)
    except typer.Exit as e:
        _leave(e.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        _fail("stopped", interrupted.CODE)
    except BrokenPipeError:  # the reader has seen enough: `| head -1`
        _leave(1)
    except MemoryError:
        _fail(
            f"not enough memory on this machine{_free()}\n"
            "  fix: smaller sizes, a shorter cache (--max-positions), or --dtype bfloat16",
            1,
        )
    except OSError as e:
        _fail(f"{e.strerror or e}{f': {e.filename}' if e.filename else ''}", 1)
    except Exception as e:
        if not hasattr(e, "show") or not hasattr(e, "exit_code"):  # else wrong usage, as the parser of options sees it
            raise
        e.show()
        _print_missing(e)
        _leave(e.exit_code)
    if code == interrupted.CODE and not options.told:  # typer turns Ctrl-C into this code
        _fail("stopped", code)
    _leave(code if isinstance(code, int) else 0)


MANY = 20_000
"""objects that are allocated before Python's garbage collector runs: a graph's nodes and instructions are long-lived and acyclic"""


def _collect_seldom() -> None:
    """Make Python's cyclic garbage collector run seldom, and skip imported objects: it took a tenth of the start-up time."""
    gc.freeze()
    gc.set_threshold(MANY, *gc.get_threshold()[1:])


def _print_missing(error: Any) -> None:
    """Print a fix after the parser's error for a missing argument: the argument's help text."""
    param = getattr(error, "param", None)
    if type(error).__name__ == "MissingParameter" and param is not None and getattr(param, "help", None):
        print(f"  fix: {error.ctx.command_path} {(param.metavar or param.name).upper()}: {param.help}", file=sys.stderr)


def _free() -> str:
    from tensor_graphs.devices.free_memory import free_memory

    free = free_memory()
    return "" if free is None else f": {free / 1e9:.1f} GB are free"


def _fail(text: str, code: int) -> NoReturn:
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if len(line) > MOST_COLUMNS:
            lines[number] = f"{line[:MOST_COLUMNS]}… {len(line) - MOST_COLUMNS} more characters"
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 2], f"… {len(lines) - MOST_LINES + 2} more lines"]
    with contextlib.suppress(OSError):
        print("error: " + "\n".join(lines), file=sys.stderr)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """Exit; with --verbose, log the time of each phase. Output that a closed or full standard output cannot take is dropped, since
    Python would report the error again."""
    if len(OURS.spent) > 2:  # a verb that only looks something up has no phases
        for line in OURS.table().splitlines():
            log.info("%s", line)
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    ctrl_c.leave(code)


if __name__ == "__main__":
    main()
