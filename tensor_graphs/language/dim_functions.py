"""dim_functions: compiles many expressions of dims into one Python function of the sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensor_graphs.language.dims import Call, Dim, DimError, Expr, Symbol, _need


def compile_dims(exprs: Sequence[Dim], names: Sequence[str]) -> Callable[..., list[int]]:
    """Return one Python function that takes the sizes of `names`, in order, and returns the value of every expression.

    Common sub-expressions are computed once. Sizes are not checked against their ranges: the caller must do so (`check_range`).
    Raises DimError when an expression has a symbol that `names` lacks, or a name is repeated.
    """
    if len(set(names)) != len(names):
        raise DimError(f"a dim stands twice in {list(names)}")
    writer = _CallWriter({name: f"v{i}" for i, name in enumerate(names)})
    exprs = [_need(x) for x in exprs]
    for x in exprs:
        missing = sorted(set(x.symbols) - set(names)) if isinstance(x, Expr) else []
        if missing:
            raise DimError(f"{x} needs the dim {missing[0]!r}", fix=f"given are {', '.join(names) or 'none'}")
    results = [writer.write(x) for x in exprs]
    lines = [f"def dims({', '.join(writer.names.values())}):", *writer.lines, f"    return [{', '.join(results)}]"]
    space: dict[str, Any] = {"__builtins__": {}}
    exec("\n".join(lines), space)  # noqa: S102 - our own text: ints, v0, v1, … and t0, t1, … only
    return space["dims"]  # type: ignore[no-any-return]


class _CallWriter:
    """Writer of Python source: one assignment for each distinct call, product and sum."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names
        self.lines: list[str] = []
        self.known: dict[str, str] = {}

    def assign(self, text: str) -> str:
        if text not in self.known:
            self.known[text] = f"t{len(self.known)}"
            self.lines.append(f"    {self.known[text]} = {text}")
        return self.known[text]

    def write(self, x: Dim) -> str:
        """Return the variable, or the number, that holds x."""
        if not isinstance(x, Expr):
            return str(x)
        text = ""
        for monomial, k in x.terms:
            product = ""
            for atom in monomial:
                factor = self.names[atom.name] if isinstance(atom, Symbol) else self.call(atom)
                product = self.assign(f"{product}*{factor}") if product else factor
            size = product if abs(k) == 1 and product else f"{abs(k)}*{product}" if product else str(abs(k))
            text += ("-" if k < 0 else "+" if text else "") + size
        return text if text.isalnum() else self.assign(text)

    def call(self, atom: Call) -> str:
        args = [self.write(a) for a in atom.args]
        if atom.fn == "floordiv":
            return self.assign(f"{args[0]}//{args[1]}" if not args[0].startswith("-") else f"({args[0]})//{args[1]}")
        best = args[0]
        sign = "<" if atom.fn == "min" else ">"
        for other in args[1:]:
            best = self.assign(f"{best} if {best} {sign} {other} else {other}")
        return best
