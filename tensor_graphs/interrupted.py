"""interrupted: Ctrl-C while the command `tg` starts ends the process immediately with exit code 130. Once it runs: cli/ctrl_c.py.

Programs that only import the package are not affected: the handler is set only where this process is the command itself.
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
    """Handle SIGINT: end the process immediately."""
    os.write(2, b"error: stopped\n")
    os._exit(CODE)


def while_starting() -> None:
    """Make Ctrl-C end the process with one line, not a traceback, until the command runs (while the package is being imported)."""
    if is_the_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, at_once)


while_starting()
