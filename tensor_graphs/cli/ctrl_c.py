"""ctrl_c: Ctrl-C while the command `tg` runs: the first one ends it in order, with exit code 130, whatever comes later. So does the
signal that asks a process to end (`kill`, a scheduler), with exit code 143."""

from __future__ import annotations

import _thread
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
        self.has_reminder = False

    def lost(self, raised: sys.UnraisableHookArgs) -> None:
        """The hook for what cannot be raised where it happened."""
        if raised.exc_type is KeyboardInterrupt:
            self._raise_later()
        else:
            sys.__unraisablehook__(raised)

    def _raise_later(self) -> None:
        self.is_lost = True
        if not self.has_reminder:
            self.has_reminder = True
            _thread.start_new_thread(self._remind, ())          # threading's own start waits, and takes locks that may be held here

    def _remind(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while True:
            time.sleep(SOON)
            if self.is_lost:
                signal.pthread_kill(main, self.code - 128)

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if not self.is_lost:
            self.count += 1
            if self.first is not None:
                if self.count > 2 and time.monotonic() - self.first > PATIENCE:
                    at_once(signum, frame)
                return
            self.first, self.code = time.monotonic(), 128 + signum
        if self._is_in_hook(frame):                             # what a hook raises is lost as well
            self._raise_later()
        else:
            self.is_lost = False
            raise KeyboardInterrupt

    def _is_in_hook(self, frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code is not _InOrder.lost.__code__:
            frame = frame.f_back
        return frame is not None


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
    """Return whether there was a Ctrl-C, or the signal that asks to end, since `while_running`; not counting what `taken_by`
    took."""
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
