"""main: the verbs of `tg`, and how an error reaches a person: one screen, no traceback, exit code 1 (2 for wrong usage)."""

from __future__ import annotations

import importlib
import os
import signal
import sys

import typer

from tensor_graphs.errors import TensorGraphsError

app = typer.Typer(name="tg", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Say the math once. Run the fastest path that is accurate enough: measured, recorded, explained.")

VERBS = ("run", "embed", "demo", "list_paths", "profile", "explain", "show", "db", "devices")

for _verb in VERBS:
    importlib.import_module(f"tensor_graphs.cli.{_verb}").register(app)


def main() -> None:
    """The entry point of the command."""
    try:
        app(standalone_mode=False)
    except TensorGraphsError as e:
        _fail(str(e), 1)
    except typer.Exit as e:
        sys.exit(e.exit_code)
    except typer.Abort:
        _fail("stopped", 130)
    except KeyboardInterrupt:
        _fail("stopped", 128 + signal.SIGINT)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError:
        _fail("not enough memory on this machine\n  fix: smaller sizes, a shorter cache, or --dtype bfloat16", 1)
    except OSError as e:
        _fail(f"{e.strerror or e}{f': {e.filename}' if e.filename else ''}", 1)
    except Exception as e:
        if type(e).__module__.startswith("click"):
            show = getattr(e, "show", None)
            if show is not None:
                show()
                sys.exit(getattr(e, "exit_code", 2))
        raise


def _fail(text: str, code: int) -> None:
    lines = text.splitlines()
    if len(lines) > 40:
        lines = [*lines[:38], f"… {len(lines) - 38} more lines"]
    print("error: " + "\n".join(lines), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
