"""check_declaration: checks of the declaration of a user-registered kernel. Each raises KernelError with the kernel's name, the
error and a fix."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

from tensor_graphs.errors import close_to
from tensor_graphs.kernels.kernel import KernelError
from tensor_graphs.language.anonymous_composite import part_of
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY, CompositeOp
from tensor_graphs.language.defined_ops import DefinedOp
from tensor_graphs.language.dtypes import DType, parse_dtype
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, is_step
from tensor_graphs.meaning.assumptions import OF_KERNELS

Computed = str | CompositeOp | Graph
"""The type of a kernel's subject: the name of an op, a user-defined composite, or a graph (the part that the kernel computes)."""

_READER = "a kernel of the step that reads it; that gets strides (contiguous=False), or asks for a copy"

_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*", re.ASCII)


def require_computed(op: Any) -> str | CompositeOp:
    """Return the op that a kernel is declared for; a graph becomes a PartOp. Raises KernelError for anything else, and GraphError
    for a graph that cannot be a part."""
    if isinstance(op, Graph):
        if not any(map(is_step, op.nodes)):
            raise KernelError(f"this graph has views alone: its values lie otherwise, and no kernel runs\n  fix: {_READER}")
        return part_of(op)
    if isinstance(op, (str, CompositeOp)):
        return op
    if isinstance(op, Node):
        raise KernelError(f"a kernel computes an op or a graph, and {op!r} is a tensor\n  fix: tg.kernel(tg.graph(…)) of it")
    raise KernelError(f"a kernel computes an op or a graph, and this is of type {type(op).__name__}\n"
                      "  fix: @tg.kernel(\"softmax\"), with the name of the op; a composite of yours; or a graph")


def op_name(op: str | CompositeOp) -> str:
    return op.name if isinstance(op, CompositeOp) else op


def own_composite(op: str | CompositeOp) -> CompositeOp | None:
    """Return the op where it is a composite outside the library, else None."""
    return op if isinstance(op, CompositeOp) and LIBRARY.get(op.name) is not op else None


def require_declaration(name: Any, backend: str, op: str | CompositeOp) -> None:
    """Raise KernelError unless the op exists, and a kernel of the backend can have this name."""
    require_op(name, op)
    require_name(name, backend)


def require_op(name: Any, op: str | CompositeOp) -> None:
    """Raise KernelError unless the op is a composite or the name of an op, and no view (kernels compute no views)."""
    if isinstance(op, str) and op not in ATOMIC and op not in LIBRARY:
        near = close_to(op, [*ATOMIC, *LIBRARY])
        raise KernelError(f"kernel {name!r} computes {op!r}, which is no op\n  fix: "
                          + (f"did you mean {near[0]}?" if near else "the name of an op, a composite of yours itself, or a graph"))
    if isinstance(op, str) and op in ATOMIC and ATOMIC[op].facts.view:
        raise KernelError(f"kernel {name!r} computes {op}, which is a view: its values lie otherwise, and no kernel runs\n"
                          f"  fix: {_READER}")


def require_name(name: Any, backend: str) -> None:
    """Raise KernelError unless the name begins with its backend's, like numpy.my_softmax: measurements are filed under it."""
    if isinstance(name, str) and name.startswith(f"{backend}.") and _NAME.fullmatch(name.removeprefix(f"{backend}.")):
        return
    if not isinstance(name, str):
        what, own = f"of type {type(name).__name__}, and no text", ""
    elif not _NAME.fullmatch(name):
        what, own = "no name: letters, digits, _ and dots", name.partition(".")[2] or name
    else:
        what, own = f"no name of the backend {backend!r}, on which it runs", name.rpartition(".")[2]
    proper = re.sub(r"\W+", "_", own, flags=re.ASCII).strip("_") or "my_kernel"
    raise KernelError(f"a kernel cannot be named {name!r}: that is {what}\n  fix: name=\"{backend}.{proper}\"")


def pairs_in_place(name: str, in_place: Any, op: str | CompositeOp) -> tuple[tuple[int, int], ...]:
    """Return in_place as pairs (output, operand). Raises KernelError for malformed pairs and for numbers out of range."""
    fix = "in_place=((0, 0),) where output 0 may lie in the memory of operand 0"
    if not isinstance(in_place, (tuple, list)) or not all(
            isinstance(pair, (tuple, list)) and len(pair) == 2 and all(type(i) is int for i in pair) for pair in in_place):
        raise KernelError(f"kernel {name!r}: in_place is {in_place!r}, which is no sequence of pairs (output, operand)\n"
                          f"  fix: {fix}")
    for pair in in_place:
        for what, number, count in zip(("output", "operand"), pair, counts_of(op), strict=True):
            if number < 0 or (count is not None and number >= count):
                has = "" if count is None else f"; it has {count}"
                raise KernelError(f"kernel {name!r}: in_place names {what} {number}, which {op_name(op)} does not have{has}\n"
                                  f"  fix: {fix}")
    return tuple((output, operand) for output, operand in in_place)


def counts_of(op: str | CompositeOp) -> tuple[int | None, int | None]:
    """Return the numbers of outputs and operands of an op; None for one that varies between calls or is unknown."""
    definition = op if isinstance(op, CompositeOp) else ATOMIC.get(op) or LIBRARY.get(op)
    if definition is None:
        return None, None
    if isinstance(definition, DefinedOp):
        return len(definition.written.outputs), len(definition.written.arguments)
    if isinstance(definition, CompositeOp):
        one = definition.__annotations__.get("return") in (Node, "Node")
        return 1 if one else None, None if definition.variadic else len(definition.operands)
    return 1, definition.arity


def require_function(name: str, what: str, value: Any, parameters: Sequence[str]) -> None:
    """Raise KernelError unless `value` can be called with these positional parameters, and is no generator or coroutine."""
    called = f"{what}=lambda {', '.join(parameters)}: …"
    if not callable(value):
        raise KernelError(f"kernel {name!r}: {what} is {value!r}, which is no function\n  fix: {called}")
    if inspect.isgeneratorfunction(value) or inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value):
        raise KernelError(f"kernel {name!r}: {what} is a generator or a coroutine, so that a call of it runs nothing\n"
                          "  fix: a plain def, without yield and async")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):                                 # of a builtin: nothing is known
        return
    try:
        signature.bind(*parameters)
    except TypeError:
        raise KernelError(f"kernel {name!r}: {what} is called with {len(parameters)} argument{'s' * (len(parameters) != 1)} "
                          f"({', '.join(parameters)}), and takes {signature}\n  fix: {called}") from None


def require_flag(name: str, what: str, value: Any) -> None:
    """Raise KernelError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise KernelError(f"kernel {name!r}: {what} is {value!r}\n  fix: {what}=True or {what}=False")


def assuming_of(name: str, assuming: Any) -> tuple[str, ...]:
    """Return the conditions on values in `assuming` (one name or several). Raises KernelError for an unknown condition."""
    conditions = assuming if isinstance(assuming, (tuple, list)) else (assuming,)
    names = tuple(condition.replace(">=", "≥") if isinstance(condition, str) else condition for condition in conditions)
    wrong = [condition for condition in names if condition not in OF_KERNELS]
    if wrong:
        raise KernelError(f"kernel {name!r} assumes {wrong[0]!r}, which is no condition that can be checked\n"
                          f"  fix: assuming= one or several of {', '.join(map(repr, OF_KERNELS))}")
    return tuple(dict.fromkeys(names))


def dtypes_of(name: str, dtypes: Any) -> frozenset[DType]:
    """Return the dtypes of a declaration. Raises KernelError for a malformed list, DTypeError for an unknown dtype name."""
    fix = "dtypes=[\"f32\"], a list of dtypes"
    if isinstance(dtypes, (str, DType)):
        raise KernelError(f"kernel {name!r}: dtypes is {dtypes!r}, and no list of them\n"
                          f"  fix: dtypes=[{dtypes.name if isinstance(dtypes, DType) else dtypes!r}]")
    if not isinstance(dtypes, (Sequence, set, frozenset)):
        raise KernelError(f"kernel {name!r}: dtypes is {dtypes!r}\n  fix: {fix}")
    strange = next((dtype for dtype in dtypes if not isinstance(dtype, (str, DType))), None)
    if strange is not None:
        raise KernelError(f"kernel {name!r}: {strange!r} is among its dtypes, a {type(strange).__name__}\n  fix: {fix}")
    return frozenset(parse_dtype(dtype) if isinstance(dtype, str) else dtype for dtype in dtypes)
