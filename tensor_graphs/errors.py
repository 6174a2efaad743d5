"""errors: the root of every error a user can cause; the command line prints these on one screen, without a traceback."""

from __future__ import annotations


class TensorGraphsError(Exception):
    """A mistake in what was asked for, not in this package. The message names what, where and the fix."""
