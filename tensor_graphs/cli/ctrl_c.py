"""ctrl_c: Ctrl-C while the command `tg` runs: the first one ends it in order, with exit code 130, whatever comes later. So does the
signal that asks a process to end (`kill`, a scheduler), with exit code 143."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from tensor_graphs.interrupted import CODE, at_once

PATIENCE = 2.0
"""seconds for which a command may take to end in order; a third Ctrl-C after that ends it at once"""


SOON = 1e-3
"""seconds after which an interruption that was lost is raised again"""


class _InOrder:
    """The handler of a running command: raises KeyboardInterrupt once, and again where that got lost: what is raised while Python
    clears up an object (`__del__`, what waits for a weak reference) ends there, and nobody hears of it."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.count = 0
        self.code = CODE
        self.is_lost = False

    def lost(self, told: sys.UnraisableHookArgs) -> None:
        """The hook for what cannot be raised where it happened."""
        if told.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(told)
            return
        self.is_lost = True
        main = threading.main_thread().ident
        again = threading.Timer(SOON, signal.pthread_kill, (main, self.code - 128))     # what a hook raises is lost as well
        again.daemon = True
        again.start()

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.is_lost:
            self.is_lost = False
            raise KeyboardInterrupt
        self.count += 1
        if self.first is None:
            self.first, self.code = time.monotonic(), 128 + signum
            raise KeyboardInterrupt
        if self.count > 2 and time.monotonic() - self.first > PATIENCE:
            at_once(signum, frame)


_handler = _InOrder()


def while_running() -> None:
    """From here on the first Ctrl-C raises KeyboardInterrupt, and nothing interrupts what is done about it."""
    for ends in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(ends) is not signal.SIG_IGN:            # a shell's background job stays deaf
            signal.signal(ends, _handler)
    sys.unraisablehook = _handler.lost


@contextmanager
def taken_by(stop: Callable[[], None]) -> Iterator[None]:
    """Inside, Ctrl-C calls `stop` and does not end the command (a deaf one stays deaf). Not for threads."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, lambda signum, frame: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def happened() -> bool:
    """Whether there was a Ctrl-C, or the signal that asks to end, since `while_running`; not counting what `taken_by` took."""
    return _handler.count > 0


def leave(code: int) -> NoReturn:
    """Exit, whatever Ctrl-C comes still. Standard output is flushed already. Ctrl-C's code is that of the signal that came."""
    for ends in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ends, signal.SIG_IGN)
    code = _handler.code if code == CODE else code
    if happened():                                  # Python kills itself by SIGINT when one came inside of an eval, handled or not
        atexit._run_exitfuncs()
        os._exit(code)
    sys.exit(code)
