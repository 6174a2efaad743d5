"""op_names: finds and applies the ops that a file names; shared by the readers of the text form and of the JSON form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import ATOMIC, AtomicOp, wrong_attributes
from tensor_graphs.language.composite import LIBRARY, CompositeOp
from tensor_graphs.language.defined_ops import DefinedOp
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.errors import AttributeValueError, LanguageError
from tensor_graphs.language.leaves import _shape
from tensor_graphs.language.node import ArrayValue, Node, Op, TensorType, apply


def find_op(name: str) -> Op | None:
    """Return the op that has this name in every process: an atomic op, a library composite, or copy_to."""
    return leaves.COPY_TO if name == leaves.COPY_TO.name else ATOMIC.get(name) or LIBRARY.get(name)


def apply_written(op: Op, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> Node:
    """Return the node for an op, operands and attributes from a file. Raises a LanguageError for nodes that no builder makes."""
    for node in inputs:
        if len(node.types) != 1:
            if op is not leaves.ITEM:
                raise LanguageError(f"an operand of {op.name} is {node.op.name}, which has {len(node.types)} outputs")
    if isinstance(op, AtomicOp):
        return apply(op, inputs, _atomic_attributes(op, inputs, attrs))
    if isinstance(op, CompositeOp):
        if not isinstance(op, DefinedOp):
            _check_call(op, inputs, attrs)
        elif attrs and not op.printed:
            raise AttributeValueError(f"{op.name} has no attributes, got {', '.join(attrs)}",
                                      fix="write the values into its definition")
        return apply(op, inputs, attrs)
    return _structural(op, inputs, attrs)


def _check_call(op: CompositeOp, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> None:
    absent = attrs.get("absent", ())
    if not isinstance(absent, tuple) or not set(absent) <= op.optional:
        raise AttributeValueError(f"{op.name}: absent is {absent!r}",
                                  fix=f"a tuple of {', '.join(sorted(op.optional)) or 'nothing'}")
    if set(attrs) - {"absent"} != set(op.attributes):
        raise wrong_attributes(op.name, op.attributes, [k for k in attrs if k != "absent"])
    count = len(op.operands) - len(absent)
    if len(inputs) < count or (len(inputs) > count and not op.variadic):
        raise LanguageError(f"{op.name} takes {count} operands here, got {len(inputs)}")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_dim(value: Any) -> bool:
    return _is_int(value) or isinstance(value, d.Expr)


def _tuple_of(check: Any, length: int | None = None) -> Any:
    return lambda v: isinstance(v, tuple) and (length is None or len(v) == length) and all(map(check, v))


_ATTRIBUTES: dict[str, tuple[Any, str, str]] = {
    "axis": (_is_int, "an int", "0"),
    "axes": (_tuple_of(_is_int), "a tuple of ints", "(0, 1)"),
    "dtype": (lambda v: isinstance(v, DType), "a dtype", "f32"),
    "shape": (_tuple_of(_is_dim), "a tuple of sizes", "(2, 3)"),
    "padding": (_tuple_of(_tuple_of(_is_dim, 2)), "a tuple of pairs (before, after)", "((0, 1), (0, 0))"),
    "value": (lambda v: isinstance(v, (bool, int, float)), "a number", "0.0"),
    "bounds": (lambda v: _tuple_of(_tuple_of(_is_dim, 3))(v) and all(_is_int(b[2]) for b in v), "a tuple of (start, stop, step)",
               "((0, 4, 1), (0, 2, 1))"),
    "mode": (lambda v: isinstance(v, str), "a string", '"set"'),
}
"""attribute of an atomic op -> (check of its value, description for messages, example); a test compares it with the op table"""


def _atomic_attributes(op: AtomicOp, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(attrs)
    for name, value in attrs.items():
        if name not in op.attributes:
            continue                                                # infer raises an error with the list of attributes
        check, words, example = _ATTRIBUTES[name]
        if not check(value):
            raise AttributeValueError(f"{op.name}: {name} is {value!r}, {words} is needed", fix=f"{name}={example}")
        if name == "shape":
            result[name] = _shape(value)
        if name == "value" and inputs:
            result[name] = leaves.constant(value, inputs[0].dtype).attrs["value"]
    return result


_LEAF_ATTRIBUTES = {leaves.CONSTANT: {"value", "shape", "dtype"}, leaves.ARGUMENT: {"index", "shape", "dtype"},
                    leaves.ITEM: {"index"}, leaves.COPY_TO: {"device"}}


def _structural(op: Op, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> Node:
    wanted = _LEAF_ATTRIBUTES.get(op, {"name", "shape", "dtype"})
    if set(attrs) != wanted:
        raise wrong_attributes(op.name, sorted(wanted), attrs)
    count = 1 if op in (leaves.ITEM, leaves.COPY_TO) else 0
    if len(inputs) != count:
        raise LanguageError(f"{op.name} takes {count} operands, got {len(inputs)}")
    if op is leaves.COPY_TO:
        return leaves.copy_to(inputs[0], attrs["device"])
    if "index" in attrs and (not _is_int(attrs["index"]) or attrs["index"] < 0):
        raise AttributeValueError(f"{op.name}: index is {attrs['index']!r}, an int ≥ 0 is needed")
    if op is leaves.ITEM:
        return leaves.item(inputs[0], attrs["index"])
    shape, dtype = attrs["shape"], attrs["dtype"]
    if not _tuple_of(_is_dim)(shape) or not isinstance(dtype, DType):
        raise AttributeValueError(f"{op.name}: the type is {dtype!r}, {shape!r}; a dtype and a tuple of sizes are needed")
    if op is leaves.ARGUMENT:
        return leaves.argument(attrs["index"], TensorType(_shape(shape), dtype))
    if op is leaves.CONSTANT:
        return written_constant(attrs["value"], TensorType(shape, dtype))
    if op is leaves.STATE:
        return leaves.state(attrs["name"], shape, dtype).node
    return (leaves.input if op is leaves.INPUT else leaves.parameter)(attrs["name"], shape, dtype)


def written_constant(value: Any, t: TensorType) -> Node:
    """Return a constant with the type t in a file: a number or a dim with shape (), or an array of exactly that type."""
    if isinstance(value, ArrayValue):
        if (value.shape, value.dtype) != (t.shape, t.dtype):
            raise AttributeValueError(f"the constant is {t}, its array is {value.dtype.name}{list(value.shape)}")
        return apply(leaves.CONSTANT, (), {"value": value, "shape": value.shape, "dtype": value.dtype})
    if not isinstance(value, (bool, int, float, d.Expr)) or t.shape:
        raise AttributeValueError(f"a constant of type {t} cannot be {value!r}", fix="a number, a dim, or an array of that type")
    return leaves.constant(value, t.dtype)
