"""call_errors: the error for a call whose arguments do not fit the signature. Python's message names no fix, and other libraries
use other names for the same arguments (dim, keepdim, epsilon)."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable

from tensor_graphs.language.errors import AttributeValueError

ELSEWHERE = {"dim": "axis", "dims": "axis", "axes": "axis", "keepdim": "keepdims", "keep_dims": "keepdims", "epsilon": "eps",
             "size": "shape", "other": "y", "input": "x", "tol": "tolerance", "rtol": "tolerance", "atol": "tolerance",
             "error": "tolerance", "backend": "backends", "device": "backends", "weights": "parameters", "params": "parameters",
             "db": "database", "sizes": "dims", "state": "session", "states": "session", "seconds": "budget", "time": "budget"}
"""the name of an argument in other libraries -> its name in this package"""


class CallError(AttributeValueError, TypeError):
    """A call with an unknown argument, with one argument too many, or without a required one."""


def misfit(name: str, signature: inspect.Signature, keywords: Iterable[str], error: TypeError,
           example: str = "") -> CallError:
    """Return the error for a call that does not fit; its fix names the argument that was probably meant, or lists all of them.
    example: a call that fits, if its parameters alone say too little."""
    names = list(signature.parameters)
    plain = signature.replace(return_annotation=inspect.Signature.empty, parameters=[
        p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values() if p.name != "self"])
    for word in keywords:
        if word not in names:
            meant = ELSEWHERE.get(word)
            near = [meant] if meant in names else difflib.get_close_matches(word, names, n=1)
            if near:
                return CallError(f"{name}{plain} has no argument {word!r}", fix=f"{near[0]}=… instead of {word}=…")
            takes = ", ".join(n for n in names if n != "self") or "none"
            return CallError(f"{name}{plain} has no argument {word!r}", fix=f"its arguments are: {takes}")
    return CallError(f"{name}{plain}: {error}", fix=f"call it like {example or f'{name}{plain}'}")
