"""interrupted: Ctrl-C while the command `tg` is starting: it ends at once, with exit code 130. While it runs: cli/ctrl_c.py.

Nothing happens in a program that only imports the package: a handler is set where this process is the command itself.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

CODE = 128 + signal.SIGINT


def is_the_command() -> bool:
    """Return True if this process was started as `tg` or `python -m tensor_graphs.cli.main`."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return name in ("tg", "tg.exe") or (name == "-m" and "tensor_graphs.cli.main" in sys.orig_argv)


def at_once(signum: int, frame: FrameType | None) -> NoReturn:
    """The handler that ends the process now."""
    os.write(2, b"error: stopped\n")
    os._exit(CODE)


def while_starting() -> None:
    """Until the command runs (the package is being imported), Ctrl-C ends the process with one line instead of a traceback."""
    if is_the_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, at_once)


while_starting()
