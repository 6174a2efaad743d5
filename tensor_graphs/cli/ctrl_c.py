"""ctrl_c: Ctrl-C while the command `tg` runs. The first one ends the command in order, with exit code 130; later ones change
nothing. SIGTERM (from `kill` or a scheduler) does the same, with exit code 143."""

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
"""seconds that a command may take to end in order; a third Ctrl-C after that ends it immediately"""


SOON = 1e-3
"""seconds after which a lost KeyboardInterrupt is raised again"""


class _InOrder:
    """The handler of a running command. It raises KeyboardInterrupt once, and again if that exception was lost: Python drops an
    exception that is raised while it finalizes an object (`__del__`, a weak reference's callback)."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.count = 0
        self.code = CODE
        self.is_lost = False
        self.has_reminder = False

    def lost(self, raised: sys.UnraisableHookArgs) -> None:
        """Hook for exceptions that Python cannot raise: raise a KeyboardInterrupt later, and report all others as usual."""
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
    """Install the handler: from then on the first Ctrl-C raises KeyboardInterrupt, and later ones do not interrupt the cleanup."""
    for ends in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(ends) is not signal.SIG_IGN:            # a shell's background job stays deaf
            signal.signal(ends, _handler)
    sys.unraisablehook = _handler.lost


@contextmanager
def taken_by(stop: Callable[[], None]) -> Iterator[None]:
    """Context manager: inside, Ctrl-C calls `stop` instead of ending the command, unless it is ignored. Not for threads."""
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
    """Return True if Ctrl-C or SIGTERM came since `while_running`, apart from those that `taken_by` handled."""
    return _handler.count > 0


def leave(code: int) -> NoReturn:
    """Exit, and ignore any further Ctrl-C. Standard output must be flushed already. For Ctrl-C, the code is that of its signal."""
    for ends in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ends, signal.SIG_IGN)
    code = _handler.code if code == CODE else code
    if happened():                                  # Python kills itself by SIGINT when one came inside of an eval, handled or not
        atexit._run_exitfuncs()
        os._exit(code)
    sys.exit(code)
