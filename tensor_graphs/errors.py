"""errors: the root of every error a user can cause; the command line prints these on one screen, without a traceback."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path


class TensorGraphsError(Exception):
    """A mistake in the user's request, not in this package. The message names the fault, its location and the fix."""


class NoAttributeError(TensorGraphsError, AttributeError):
    """A name that a module or an object does not have; the fix names the attribute that was probably meant."""


def no_attribute(owner: str, name: str, names: Iterable[str], meant: str = "", prefix: str = "") -> AttributeError:
    """Return the error for an attribute that does not exist. meant: the expression to write instead, if there is one; else the
    names spelt alike are suggested, each after `prefix`. A name that begins with _ (Python's protocols) gets a plain
    AttributeError."""
    message = f"{owner} has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(message)
    near = difflib.get_close_matches(name, sorted(n for n in names if not n.startswith("_")), n=3, cutoff=0.7)
    fix = meant or (f"did you mean {' or '.join(prefix + n for n in near)}?" if near else "")
    return NoAttributeError(f"{message}\n  fix: {fix}" if fix else message)


class FileError(TensorGraphsError):
    """A file or folder that cannot be read, or whose content is not of the expected format.

    The message is `Kind: the fault`, then the file and the fix on lines of their own.
    """

    def __init__(self, message: str, *, file: str | Path | None = None, fix: str | None = None) -> None:
        self.file = None if file is None else Path(file)
        text = f"{type(self).__name__}: {message}"
        if file is not None:
            text += f"\n  file: {file}"
        if fix:
            text += f"\n  fix: {fix}"
        super().__init__(text)


def raised(error: BaseException) -> str:
    """Return `KeyError: 'x' at my.py:12 in mine`: an error in a caller's code, and the innermost line of that file that ran."""
    ours = str(Path(__file__).parent) + "/"
    frames = [(f.f_code.co_filename, line, f.f_code.co_name) for f, line in traceback.walk_tb(error.__traceback__)]
    theirs = next((file for file, *_ in frames if not file.startswith(ours)), None)
    where = next((f" at {Path(file).name}:{line} in {name}" for file, line, name in reversed(frames) if file == theirs), "")
    return f"{type(error).__name__}: {error}{where}"


def counted(number: int, what: str) -> str:
    """Return a number with its noun: `1 call`, `3 calls`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def listed(names: Iterable[str], most: int = 8) -> str:
    """Return the first `most` names in alphabetical order, and the number of those left out: `a, b, c, … (12 more)`."""
    ordered = sorted(names)
    more = len(ordered) - most
    return ", ".join(ordered[:most]) + (f", … ({more} more)" if more > 0 else "")


def close_to(name: object, names: Iterable[str], most: int = 3) -> list[str]:
    """Return up to `most` of `names` that `name` was probably meant to be: those that differ in letter case only, those that end
    alike (a lost prefix), then those spelt alike. A `name` that is no string is compared as `str(name)`."""
    name, names = str(name), sorted(names)
    same = [k for k in names if k.casefold() == name.casefold() and k != name]
    ends_alike = [k for k in names if k.endswith("." + name) or name.endswith("." + k)]
    return list(dict.fromkeys(same + ends_alike + difflib.get_close_matches(name, names, n=most, cutoff=0.75)))[:most]
