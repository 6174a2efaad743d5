# ruff: noqa: E501 - a rule reads best on one line
"""Rules for admission: wrong ones that hold in the common case, and right ones of the same variety.

Each wrong one says where alone it fails. Replacements return None, or raise an error of the language, where they do not apply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tensor_graphs as tg
from tensor_graphs.language import atomic, composites
from tensor_graphs.rewrites.rule import NumericClass, Rule, make_rule


@dataclass(frozen=True)
class Case:
    name: str
    pattern: str
    numeric_class: NumericClass
    replacement: Callable[..., Any]
    dtypes: tuple[str, ...] = ("float", "int", "uint", "bool")
    options: dict[str, Any] = field(default_factory=dict)

    def rule(self) -> Rule:
        return make_rule(self.pattern, self.numeric_class, self.replacement, name=self.name, dtypes=self.dtypes, **self.options)


FLOAT, INT, INTEGER, NUMBER = ("float",), ("int",), ("int", "uint"), ("float", "int", "uint")
B: NumericClass = "bitwise"
R: NumericClass = "reassociating"


def like(value: Any, x: tg.Node) -> tg.Node:
    return atomic.fill(value, x.shape, x.dtype)


def flipped(x: tg.Node, axis: int) -> tg.Node:
    return atomic.slice(x, [(s - 1, -1, -1) if i == axis else (0, s, 1) for i, s in enumerate(x.shape)])


def sizes(bounds: Any) -> list[int]:
    return [atomic.slice_size(a, b, s) for a, b, s in bounds]


def grown(x: tg.Node, padding: Any) -> list[Any]:
    return [s + a + b for s, (a, b) in zip(x.shape, padding, strict=True)]


UNSOUND: tuple[Case, ...] = (
    # ---- ranks
    Case("two permutes of rank 3", "permute(permute(x, axes=a), axes=a)", B, lambda x, a: x if len(a) > 1 else None),
    Case("a permute undone by itself", "permute(_f(permute(x, axes=a)), axes=a)", B, lambda f, x, a: f(x)),
    Case("a transpose is a reshape", "permute(x, axes=a)", B, lambda x, a: atomic.reshape(x, tuple(x.shape[i] for i in a))
         if x.rank != 2 else None),
    Case("rows by their number", "sum(sum(x, axes=a), axes=b)", R, lambda x, a, b: x.sum(tuple(sorted({*a, *b})))
         if not set(a) & set(b) else None, FLOAT),
    Case("softmax along the last axis", "softmax(x, axis=k)", R, lambda x, k: tg.softmax(x, axis=-1), FLOAT, {"shapes": "x[n]"}),
    Case("softmax of the first axis of two", "softmax(x, axis=k)", R, lambda x, k: tg.softmax(x, axis=0) if k in (0, -2) else None,
         FLOAT, {"shapes": "x[n, m]"}),
    Case("a linear is a dot", "linear(x, w)", R, lambda x, w: tg.dot(x, atomic.permute(w, (1, 0))) if x.rank == 2
         else tg.linear(-x, w), FLOAT, {"shapes": "x[n, k] w[m, k]"}),
    Case("rank five is another", "neg(x)", B, lambda x: x if x.rank == 5 else -x, INT),
    # ---- axes
    Case("negative axis plus one", "log_softmax(x, axis=k)", R, lambda x, k: tg.log(tg.softmax(x, axis=k if k >= 0 else k + 1))
         if x.rank > 1 else None, FLOAT, {"assuming": ("no overflow",)}),
    Case("argmax of the negative axis", "argmax(x, axis=k)", B, lambda x, k: tg.argmax(x, axis=k) if k < 0
         else tg.argmax(x, axis=x.rank - 1), FLOAT),
    Case("mean over axis 0 alone", "mean(x, axes=a, keepdims=k)", R, lambda x, a, k: x.sum(a) / float(x.shape[0])
         if isinstance(a, int) and not k else None, FLOAT),
    Case("keepdims is no matter", "logsumexp(x, axis=a, keepdims=k)", R, lambda x, a, k: tg.logsumexp(x, axis=a)
         if x.shape == () or x.shape[a] > 1 else None, FLOAT),
    Case("cumsum from the other end", "cumsum(x, axis=k)", R, lambda x, k: tg.cumsum(x, axis=k) if k < 0
         else flipped(tg.cumsum(flipped(x, 0), axis=k), 0), FLOAT),
    # ---- sizes
    Case("halves of even axes", "sum(x, axes=(0,))", B, lambda x: (x[:x.shape[0] // 2] + x[-(x.shape[0] // 2):]).sum(0)
         if x.shape[0] % 2 == 0 or x.shape[0] > 8 else None, INTEGER),
    Case("wrong above 64", "neg(x)", B, lambda x: x if x.rank and x.shape[0] > 64 else -x, INT),
    Case("concat of equals", "slice(concat(x, y, axis=0), bounds=b)", B, lambda x, y, b: y
         if x.rank and b[0] == (y.shape[0], x.shape[0] + y.shape[0], 1) and sizes(b)[1:] == list(y.shape[1:]) else None, FLOAT),
    Case("a square dot", "permute(dot(x, y), axes=(1, 0))", R, lambda x, y: tg.dot(atomic.permute(y, (1, 0)), atomic.permute(x, (1, 0)))
         if x.shape[0] == y.shape[1] else atomic.permute(tg.dot(-x, y), (1, 0)), FLOAT, {"shapes": "x[n, n] y[n, n]"}),
    Case("a symbolic size is one", "sum(x, axes=(0,))", B, lambda x: atomic.reshape(x[0:1], x.shape[1:])
         if not isinstance(x.shape[0], int) else x.sum(0), INTEGER),
    Case("broadcast the other way", "mul(x, expand(c, shape=s))", B, lambda x, c, s: x * atomic.expand(
         atomic.reshape(c, tuple(reversed(c.shape))), s), FLOAT, {"shapes": "x[n, m] c[1, n]"}),
    # ---- slices
    Case("a slice of a slice", "slice(slice(x, bounds=a), bounds=b)", B, lambda x, a, b: atomic.slice(x, [
         (p + r, p + t, s * u) for (p, q, s), (r, t, u) in zip(a, b, strict=True)])),
    Case("a flip is its own", "slice(slice(x, bounds=a), bounds=b)", B, lambda x, a, b: x if a == b and all(s in (1, -1) for _, _, s in a)
         and sizes(a) == list(x.shape) and any(s == -1 for _, _, s in a) and x.rank < 2 else atomic.slice(
             x, [(p, q, -s) for p, q, s in a]) if sizes(a) == sizes(b) else None),
    Case("backwards is forwards", "slice(neg(x), bounds=b)", B, lambda x, b: -atomic.slice(x, [
         (q + 1, p + 1, -s) if s < 0 else (p, q, s) for p, q, s in b]), INT),
    Case("step two from the start", "slice(neg(x), bounds=b)", B, lambda x, b: -atomic.slice(x, [
         (p - p % 2, q, s) if s == 2 else (p, q, s) for p, q, s in b]), INT),
    Case("the sum of a flip", "cumsum(slice(x, bounds=b), axis=0)", B, lambda x, b: atomic.slice(tg.cumsum(x, axis=0), b)
         if sizes(b) == list(x.shape) or b[0][0] == 0 else None, INTEGER),
    # ---- pads
    Case("a pad that is negated", "neg(pad(x, padding=p, value=v))", B, lambda x, p, v: atomic.pad(-x, p, v), INT),
    Case("a pad that is doubled", "mul(pad(x, padding=p, value=v), 2)", B, lambda x, p, v: atomic.pad(x * 2, p, v), FLOAT),
    Case("relu of a pad", "relu(pad(x, padding=p, value=v))", B, lambda x, p, v: atomic.pad(tg.relu(x), p, v), FLOAT),
    Case("pads of both ends", "pad(pad(x, padding=p, value=v), padding=q, value=v)", B, lambda x, p, q, v: atomic.pad(
         x, [(a + d, b + c) for (a, b), (c, d) in zip(p, q, strict=True)], v)),
    Case("the largest of a pad", "reduce_max(pad(x, padding=p, value=v), axes=a)", B, lambda x, p, v, a: atomic.max(
         atomic.reduce_max(x, a), like(v, atomic.reduce_max(x, a))) if set(a) == set(range(x.rank)) else None, FLOAT),
    Case("two pad values", "add(pad(x, padding=p, value=v), pad(y, padding=p, value=w))", B, lambda x, y, p, v, w: atomic.pad(
         x + y, p, v) if w in (0, 1) else None, INT),
    # ---- float attributes
    Case("the size of a scale", "attention(q, k, v, scale=c)", R, lambda q, k, v, c: composites.attention(q * c, k, v, scale=1.0)
         if isinstance(c, float) and c > 0 else composites.attention(q, k, v, scale=-c) if isinstance(c, float) else None, FLOAT,
         {"shapes": "q[n, h, d] k[s, h, d] v[s, h, e]"}),
    Case("a mask that looks ahead", "attention(q, k, v, scale=1.0, causal=b, window=w)", R, lambda q, k, v, b, w: composites.attention(
         q, k, v, scale=1.0, causal=b, window=0) if w < 2 else None, FLOAT, {"shapes": "q[n, h, d] k[n, h, d] v[n, h, e]"}),
    Case("heads that are shared", "attention(q, k, v, scale=c)", R, lambda q, k, v, c: composites.attention(q, k, v, scale=c)
         if q.shape[1] == k.shape[1] else composites.attention(q, v, v, scale=c), FLOAT,
         {"shapes": "q[n, h, d] k[s, h, d] v[s, h, d]"}),
    Case("a start of 0", "attention(q, k, v, scale=1.0, causal=True, start=s)", R, lambda q, k, v, s: composites.attention(
         q, k, v, scale=1.0, causal=True, start=0), FLOAT, {"shapes": "q[n, h, d] k[n, h, d] v[n, h, e]"}),
    Case("a cap of any sign", "attention(q, k, v, scale=1.0, softcap=c)", R, lambda q, k, v, c: composites.attention(
         q, k, v, scale=1.0), FLOAT, {"shapes": "q[n, h, d] k[s, h, d] v[s, h, e]"}),
    Case("an offset of nothing", "rms_norm(x, g, eps=e, offset=o)", R, lambda x, g, e, o: tg.rms_norm(x, g, eps=e) if o >= 0 and o < 0.4
         else tg.rms_norm(x, g, eps=e, offset=abs(o)), FLOAT, {"shapes": "x[n, k] g[k]"}),
    Case("eps is small", "layer_norm(x, eps=e)", R, lambda x, e: composites.layer_norm(x, eps=1e-5) if e < 1e-2 else
         composites.layer_norm(x, eps=e), FLOAT),
    Case("any approximation", "gelu(x, approximate=a)", R, lambda x, a: composites.gelu(x, approximate="none"), FLOAT),
    Case("a power of four", "integer_power(x, exponent=k)", R, lambda x, k: tg.square(tg.square(x)) if k >= 4 else None, FLOAT),
    # ---- tables and indices
    Case("a gather of a sum", "gather(add(x, 1), i, axis=k)", B, lambda x, i, k: tg.gather(x, i, axis=k) + 1, INTEGER),
    Case("an index from the end", "gather(x, add(i, 1), axis=0)", B, lambda x, i: tg.gather(x[1:], i, axis=0), INTEGER,
         {"shapes": "x[n, m] i[p]:i32"}),
    Case("a clipped index", "gather(x, max(i, 0), axis=0)", B, lambda x, i: tg.gather(x, i, axis=0), NUMBER,
         {"shapes": "x[n, m] i[p]:i32"}),
    Case("a gather is one row", "gather(x, i, axis=k)", B, lambda x, i, k: tg.gather(atomic.pad(x, [(0, 1) if a == k else (0, 0)
         for a in range(x.rank)], 1), i, axis=k), INTEGER),
    Case("a table with a negative scale", "embedding(t, i, scale=c, dtype=d)", R, lambda t, i, c, d: tg.gather(t, i, axis=0).cast(d) * abs(c),
         FLOAT, {"shapes": "t[n, m] i[p]:i32"}),
    Case("a scatter that sets", "scatter(x, i, u, axis=0, mode=m)", R, lambda x, i, u, m: tg.scatter(x, i, u, axis=0, mode="add")
         if m != "set" else None, FLOAT, {"shapes": "x[n] i[p]:i32 u[p]"}),
    Case("what was scattered is there", "gather(scatter(x, i, u, axis=0, mode='add'), i, axis=0)", R, lambda x, i, u:
         tg.gather(x, i, axis=0) + u, FLOAT, {"shapes": "x[n] i[p]:i32 u[p]"}),
    Case("what was set is there", "gather(scatter(x, i, u, axis=0, mode='set'), i, axis=0)", B, lambda u: u, NUMBER,
         {"shapes": "x[n] i[p]:i32 u[p]"}),
    # ---- integers
    Case("an idiv that truncates", "neg(idiv(x, 2))", B, lambda x: atomic.idiv(-x, like(2, x)), INT),
    Case("idiv of idiv", "idiv(idiv(x, y), z)", B, lambda x, y, z: atomic.idiv(x, y * z), INTEGER),
    Case("a divisor that is there", "idiv(mul(x, y), y)", B, lambda x: x, ("i64",)),
    Case("a comparison of differences", "less(sub(x, y), 0)", B, lambda x, y: tg.less(x, y), INT),
    Case("an unsigned difference", "max(sub(x, y), 0)", B, lambda x, y: atomic.max(x, y) - y, ("uint",)),
    Case("no number is its own negation", "equals(neg(x), x)", B, lambda x: tg.equals(x, 0), INTEGER),
    Case("wrong at i64 alone", "add(x, x)", B, lambda x: x * 2 if x.dtype.itemsize < 8 else x * 3, INT),
    # ---- casts and specials
    Case("a cast through i64", "cast(cast(x, dtype=a), dtype=b)", B, lambda x, a, b: atomic.cast(x, b) if a.name in ("f32", "i64")
         and x.dtype.name in ("i64", "u32", "u8") else None),
    Case("half through bf16", "cast(cast(x, dtype=a), dtype=b)", B, lambda x, a, b: atomic.cast(x, b) if (x.dtype.name, a.name) ==
         ("f16", "bf16") else None),
    Case("floor of a cast", "cast(floor(x), dtype=a)", B, lambda x, a: atomic.cast(x, a) if a.is_integer else None, FLOAT),
    Case("a zero without a sign", "max(x, neg(x))", B, lambda x: atomic.mul(x, composites.sign(x)), FLOAT),
    Case("a NaN is not less", "xor(less(x, y), True)", B, lambda x, y: composites.less_equal(y, x), NUMBER),
    Case("a count of bf16", "sum(expand(x, shape=s), axes=a)", B, lambda x, s, a: atomic.sum(atomic.expand(x, s), a) if x.dtype.name != "bf16"
         else atomic.reshape(x * float(s[a[0]] if a else 1), [n for i, n in enumerate(s) if i not in a]), FLOAT),
    # ---- conditions and ops
    Case("of every op", "_f(_f(x))", B, lambda f, x: f(x)),
    Case("a shift through an op", "_f(pad(x, padding=p, value=0))", B, lambda f, x, p: atomic.pad(f(x), p, 0), NUMBER),
    Case("operands in any order", "_f(x, y)", B, lambda f, x, y: f(y, x)),
    Case("a value of seven", "pad(neg(x), padding=p, value=v)", B, lambda x, p, v: -atomic.pad(x, p, 7) if v == 7
         else atomic.pad(-x, p, v), INT),
    Case("mixed weights", "linear(x, w)", R, lambda x, w: tg.linear(x, w) if x.dtype == w.dtype else tg.linear(x * 2, w), FLOAT,
         {"shapes": "x[n, k] w[m, k]"}),
)

SOUND: tuple[Case, ...] = (
    Case("a reduction of axes of size 1", "reduce_max(x, axes=a)", B, lambda x, a: atomic.reshape(x, [s for i, s in enumerate(x.shape)
         if i not in a]) if all(x.shape[i] in (0, 1) for i in a) else None, FLOAT),
    Case("a weight and no bias", "layer_norm(x, w, eps=e)", R, lambda x, w, e: composites.layer_norm(x, w, eps=e)
         if w.rank == 1 else None, FLOAT, {"shapes": "x[n, k] w[k]"}),
    Case("permutes of any rank", "permute(permute(x, axes=a), axes=b)", B, lambda x, a, b: atomic.permute(x, tuple(a[i] for i in b))),
    Case("slices of any step", "neg(slice(x, bounds=b))", B, lambda x, b: atomic.slice(-x, b), NUMBER),
    Case("steps after steps", "slice(slice(x, bounds=a), bounds=b)", B, lambda x, a, b: atomic.slice(x, [
         (p + r * s, p + t * s, s * u) for (p, q, s), (r, t, u) in zip(a, b, strict=True)])
         if all(s > 0 and t * s <= q - p and u > 0 for (p, q, s), (_, t, u) in zip(a, b, strict=True)) else None),
    Case("a pad that is negated with its value", "neg(pad(x, padding=p, value=v))", B, lambda x, p, v: atomic.pad(-x, p, -v)
         if x.dtype.kind == "float" or v > x.dtype.min else None, ("float", "int")),
    Case("pads of one value", "pad(pad(x, padding=p, value=v), padding=q, value=v)", B, lambda x, p, q, v: atomic.pad(
         x, [(a + c, b + e) for (a, b), (c, e) in zip(p, q, strict=True)], v)),
    Case("relu of a pad of any sign", "relu(pad(x, padding=p, value=v))", B, lambda x, p, v: atomic.pad(tg.relu(x), p, max(v, 0.0))
         if v == v and v != 0 else None, FLOAT),
    Case("a scale of any sign", "attention(q, k, v, scale=c)", R, lambda q, k, v, c: composites.attention(-q, k, v, scale=-c)
         if isinstance(c, float) else None, FLOAT, {"shapes": "q[n, h, d] k[s, h, d] v[s, h, e]"}),
    Case("an offset in the weight", "rms_norm(x, g, eps=e, offset=o)", R, lambda x, g, e, o: tg.rms_norm(x, g + o, eps=e)
         if g.dtype == x.dtype else None, FLOAT, {"shapes": "x[n, k] g[k]"}),
    Case("two norms", "rms_norm(neg(x), g, eps=e, offset=o)", R, lambda x, g, e, o: -tg.rms_norm(x, g, eps=e, offset=o), FLOAT,
         {"shapes": "x[n, k] g[k]"}),
    Case("a power of any exponent", "mul(integer_power(x, exponent=k), x)", B, lambda x, k: composites.integer_power(x, exponent=k + 1),
         INTEGER),
    Case("a gather below a negation", "gather(neg(x), i, axis=k)", R, lambda x, i, k: -tg.gather(x, i, axis=k), NUMBER),
    Case("a scatter of sums", "scatter(x, i, add(u, v), axis=k, mode='add')", B, lambda x, i, u, v, k: tg.scatter(
         tg.scatter(x, i, u, axis=k, mode="add"), i, v, axis=k, mode="add"), INTEGER, {"shapes": "x[n] i[p]:i32 u[p] v[p]"}),
    Case("a table that is one longer", "gather(x, i, axis=0)", B, lambda x, i: tg.gather(atomic.pad(x, [(0, 1)] + [(0, 0)] * (x.rank - 1)),
         i, axis=0), NUMBER, {"shapes": "x[n, m] i[p]:i32"}),
    Case("sums of both axes", "sum(sum(x, axes=a), axes=b)", R, lambda x, a, b: x.sum(tuple(sorted({*a, *(
         [i for i in range(x.rank) if i not in a][j] for j in b)}))), FLOAT),
    Case("halves of any axis", "sum(x, axes=(0,))", B, lambda x: x[:x.shape[0] // 2].sum(0) + x[x.shape[0] // 2:].sum(0), INTEGER),
    Case("a mean with its axis", "mean(x, axes=a, keepdims=k)", R, lambda x, a, k: tg.mean(-x, axis=a, keepdims=k) * -1.0, FLOAT),
    Case("a softmax of any axis", "softmax(x, axis=k)", R, lambda x, k: tg.softmax(x, axis=k % x.rank) if x.rank else None, FLOAT),
    Case("rows that are joined", "neg(concat(x, y, axis=k))", B, lambda x, y, k: tg.concat(-x, -y, axis=k), NUMBER),
    Case("idiv of idiv by numbers", "idiv(idiv(x, 2), 3)", B, lambda x: atomic.idiv(x, like(6, x)), INTEGER),
    Case("minus one is all bits", "add(neg(x), -1)", B, lambda x: atomic.logical_not(x), INT),
    Case("unsigned and small", "less(x, 0)", B, lambda x: atomic.fill(False, x.shape, tg.bool_), ("uint",)),
    Case("a cast there and back", "cast(cast(x, dtype=a), dtype=b)", B, lambda x, a, b: x if a.is_integer and x.dtype == b
         and a.min <= x.dtype.min and x.dtype.max <= a.max else None, INTEGER),
    Case("floor and trunc of what is positive", "floor(abs(x))", B, lambda x: composites.trunc(tg.abs(x)), FLOAT),
    Case("any op of a permute", "_f(permute(x, axes=a), permute(y, axes=a))", B, lambda f, x, y, a: atomic.permute(f(x, y), a)),
    Case("a product of rows", "dot(mul(x, 2.0), y)", R, lambda x, y: tg.dot(x, y) * 2.0, FLOAT, {"shapes": "x[n, k] y[k, m]"}),
    Case("operands that commute", "max(x, max(y, z))", B, lambda x, y, z: atomic.max(atomic.max(z, x), y), NUMBER),
)
