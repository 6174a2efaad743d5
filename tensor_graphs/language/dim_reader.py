"""dim_reader: parses the text of a dim, which `format_dim` writes."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tensor_graphs.language.dims import Dim, DimError, Expr, _alone, _extreme, _need

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod}


def parse_dim(text: str, symbols: Mapping[str, Dim] | Iterable[Expr] = ()) -> Dim:
    """Return the Dim written as `text`: ints, names, `+ − * // % **`, `min(…)`, `max(…)` and parentheses.

    symbols: a mapping from names to dims, or symbols from `dim`. Raises DimError for anything else.
    """
    by_name = dict(symbols) if isinstance(symbols, Mapping) else {str(s): s for s in symbols}
    try:
        return _parse(ast.parse(text.strip(), mode="eval").body, by_name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        reason = f"{e.msg}, at character {e.offset}" if isinstance(e, SyntaxError) else str(e) or type(e).__name__
        shown = text if len(text) <= 200 else text[:200] + "…"
        raise DimError(f"{shown!r} is no dim: {reason}", fix="like n*(m + 1) // 8, min(n, 512)") from None


def _parse(tree: ast.expr, symbols: Mapping[str, Dim]) -> Dim:
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return tree.value
    if isinstance(tree, ast.Name):
        if tree.id not in symbols:
            raise DimError(f"no dim is named {tree.id!r}", fix=f"known here: {', '.join(sorted(symbols)) or 'none'}")
        return symbols[tree.id]
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, (ast.USub, ast.UAdd)):
        x = _parse(tree.operand, symbols)
        return -x if isinstance(tree.op, ast.USub) else x
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        left, right = _parse(tree.left, symbols), _parse(tree.right, symbols)
        if isinstance(tree.op, (ast.FloorDiv, ast.Mod)) and right == 0:
            raise DimError(f"division by 0 in {ast.unparse(tree)!r}")
        return _need(_OPERATORS[type(tree.op)](left, right))
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Pow):
        left, right = _parse(tree.left, symbols), _parse(tree.right, symbols)
        # one atom to a small power: what format_dim prints, and nothing that could blow up
        if isinstance(left, Expr) and _alone(left) is not None and isinstance(right, int) and 0 <= right <= 64:
            return left**right
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id in ("min", "max") and (
            tree.args and not tree.keywords):
        return _extreme(tree.func.id, [_parse(a, symbols) for a in tree.args])
    raise DimError(f"{ast.unparse(tree)!r} is no dim", fix="ints, names, + - * // % **, min(…) and max(…)")
