"""reference_graph: a translated reference computes what torch computes; whatever is not a straight line is refused with
its line and reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tensor_graphs.frontends.flashinfer.reference_graph import reference_graph
from tensor_graphs.frontends.torch.functions import FUNCTIONS, OpaqueReference
from tensor_graphs.language.text import parse_graph, print_graph
from tensor_graphs.meaning.interpreter import interpret

SIZES = {"M": 5, "N": 6, "K": 8, "H": 2, "ONE": 1}
AXES = {"M": {"type": "var"}} | {n: {"type": "const", "value": v} for n, v in SIZES.items() if n != "M"}
HEAD = "import math\nimport torch\nimport torch.nn.functional as F\nfrom typing import Tuple\nEPS = 1e-5\n"


def spec(text: str) -> dict[str, dict[str, Any]]:
    """"x:M,K:float32 s::float32" as the inputs of a definition: a tensor and a scalar."""
    found = {}
    for each in text.split():
        name, shape, dtype = each.split(":")
        found[name] = {"shape": shape.split(",") if shape else None, "dtype": dtype}
    return found


def case(name: str, inputs: str, outputs: str, body: str) -> Any:
    return pytest.param(inputs, outputs, body, id=name)


X, XY, XW = "x:M,K:float32", "x:M,K:float32 y:M,K:float32", "x:M,K:float32 w:N,K:float32"
OUT, PRODUCT = "o:M,K:float32", "o:M,N:float32"

STRAIGHT = [
    case("gemm", XW, PRODUCT, "C = torch.matmul(x, w.T)\nreturn C"),
    case("gemm by operator", XW, PRODUCT, "return x @ w.t()"),
    case("gemm in half precision", "x:M,K:bfloat16 w:N,K:bfloat16", "o:M,N:bfloat16", "return F.linear(x, w)"),
    case("norm", "x:M,K:bfloat16 r:M,K:bfloat16 w:K:bfloat16", "o:M,K:bfloat16 s:M,K:bfloat16", """
        _, size = x.shape
        assert size == 8
        assert x.shape[-1] == w.shape[0] and x.dtype == torch.bfloat16
        s = x.to(torch.float32) + r.to(torch.float32)
        inv = torch.rsqrt(s.pow(2).mean(dim=-1, keepdim=True) + EPS)
        y = (s * inv) * (1.0 + w.to(torch.float32))
        return y.to(x.dtype), s.type_as(x)"""),
    case("gated", "x:M,K:float32 g:N,K:float32 u:N,K:float32 d:K,N:float32", OUT,
         "h = F.silu(x @ g.T) * (x @ u.T)\nreturn {'o': h @ d.T}"),
    case("embedding", "ids:M:int64 w:N,K:float32", OUT, "rows = ids.shape[0]\nout = w[ids]\nreturn out"),
    case("embedding by name", "ids:M:int64 w:N,K:float32", OUT, "return F.embedding(ids, w)"),
    case("attention", "q:M,H,K:float32 k:M,H,K:float32 v:M,H,K:float32", "o:M,H,K:float32 l:H,M:float32", """
        n, h, dim = q.shape
        scale = 1.0 / math.sqrt(dim)
        s = torch.matmul(q.permute(1, 0, 2), k.transpose(0, 1).transpose(-1, -2)) * scale
        keep = torch.tril(torch.ones(n, n, dtype=torch.bool, device=q.device))
        s = s.masked_fill(~keep, float('-inf'))
        p = torch.softmax(s, dim=-1)
        return (p @ v.transpose(0, 1)).permute(1, 0, 2), torch.logsumexp(s, -1) / math.log(2.0)"""),
    case("rope", "x:M,H,K:float32 f:M,K:float32", "o:M,H,K:float32", """
        cos, sin = torch.cos(f)[:, None, :], torch.sin(f).unsqueeze(1)
        a, b = x.chunk(2, dim=-1)
        rotated = torch.cat([-b, a], dim=-1)
        return x * cos + rotated * sin"""),
    case("scalar input", "x:M,K:float32 s::float32 n::int32", OUT, "return x * s + n"),
    case("softmax of a temperature", "x:M,K:float16", OUT, "return torch.softmax(x / 0.7, dim=-1, dtype=torch.float32)"),
    case("promotion", "x:M,K:bfloat16 y:M,K:float32 n:M,K:int32 h:M,K:float16", OUT, "return (x + h) * y + n"),
    case("integers", "n:M,K:int64 m:M,K:int64", "o:M,K:float32 p:M,K:int64 t:M:int64", """
        return n / m, (n // 3 + m % 4 - n).to(torch.int64), (n > m).sum(dim=1)"""),
    case("booleans", XY, "o:M,K:bool", "return (x > 0) & ~(y <= 0.5) | torch.ne(x, y)"),
    case("where", XY, OUT, "return torch.where(x > 0, x, 0.0) + torch.where(y < x, y, x).clamp(-1, max=1)"),
    case("shapes", "x:M,K:float32", "o:M,N:float32", """
        n = x.size(0)
        y = x.view(n, 2, -1).transpose(1, 2).reshape(n, 8)
        z = y[:, 1:7].contiguous().flatten(1).unsqueeze(0).squeeze(0)
        return z.expand(n, 6).narrow(1, 0, 6) + x[..., -6:] + x.select(1, -1)[:, None]"""),
    case("split", X, "o:M,H:float32 p:M,N:float32", "a, b = torch.split(x, [2, 6], dim=1)\nreturn a, b"),
    case("heads repeated", "x:M,H,K:float32", "o:M,N,K:float32", "return x.repeat_interleave(3, dim=1)"),
    case("stack", XY, "o:M,H,K:float32", "return torch.stack((x, y), 1)"),
    case("reductions", X, "a:M:float32 b:M:float32 c:M:int64 d:ONE,K:float32 e:M:float32", """
        v, i = x.max(dim=-1)
        return x.amin(1), v + x.sum(axis=1), i, x.mean(0, keepdims=True), x.var(dim=1, unbiased=False)"""),
    case("topk", X, "v:M,H:float32 i:M,H:int64", "r = torch.topk(x, 2, dim=-1)\nreturn r.values, r.indices"),
    case("elementwise", XY, OUT, """
        a = torch.exp(-torch.abs(x)) + torch.log1p(x.square()) + torch.sigmoid(y) - torch.tanh(x) * torch.erf(y)
        b = F.gelu(x) + F.gelu(y, approximate='tanh') + F.softplus(x) + F.relu(y) + torch.sqrt(y.abs()) + x.reciprocal()
        return torch.maximum(a, b) - torch.minimum(a, b.neg()) + x ** 3 + 2.0 ** y"""),
    case("norms by name", "x:M,K:float32 w:K:float32 b:K:float32", OUT,
         "return F.layer_norm(x, (8,), w, b, eps=1e-5) + F.rms_norm(x, [8], w, eps=1e-6)"),
    case("counting", X, OUT, "i = torch.arange(x.shape[1], device='cuda')\nreturn x * i.to(x) + x.cumsum(dim=-1)"),
    case("new tensors", X, OUT, "z = torch.full((8,), 2.0)\nreturn x + torch.zeros_like(x) + torch.ones(x.shape) * z"),
    case("a default and a choice", X, OUT, "y: torch.Tensor = x if scale is None else x * scale\nreturn y"),
    case("functions", "x:M,H,K:float32 c:M,K:float32 s:M,K:float32", "o:M,H,K:float32", """
        def rotate_half(t):
            x1 = t[..., : t.shape[-1] // 2]
            x2 = t[..., t.shape[-1] // 2 :]
            return torch.cat((-x2, x1), dim=-1)
        def apply(t, cos, sin=None, factor=1.0):
            cos = cos.unsqueeze(-2)
            return (t * cos + rotate_half(t) * sin.unsqueeze(-2)) * factor
        cos, late = c.to(x.dtype), 2.0
        def scaled(t):
            return t * late
        late = 3.0
        return scaled(apply(x, cos, factor=0.5, sin=s))"""),
    case("without gradient", X, OUT, "with torch.no_grad():\n    y = x * 2\n    n = 3\n    n += 1\n    return y * n"),
]  # fmt: skip


def source(inputs: str, body: str, extra: str = "") -> str:
    lines = body.strip("\n").splitlines()
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    text = "\n".join("    " + line[indent:] for line in lines)
    return f"{HEAD}\n@torch.no_grad()\ndef run({', '.join(spec(inputs))}{extra}):\n    '''text'''\n{text}\n"


def random_input(rng: np.random.Generator, each: dict[str, Any]) -> Any:
    dtype = getattr(torch, each["dtype"])
    if each["shape"] is None:
        return 1.25 if dtype.is_floating_point else 3
    shape = [SIZES[axis] for axis in each["shape"]]
    if dtype.is_floating_point:
        return torch.from_numpy(rng.normal(size=shape)).to(dtype)
    return torch.from_numpy(rng.integers(1, 6, size=shape)).to(dtype)


@pytest.mark.parametrize(("inputs", "outputs", "body"), STRAIGHT)
def test_a_straight_line_reference_computes_what_torch_computes(inputs: str, outputs: str, body: str) -> None:
    text = source(inputs, body, ", scale=None" if "scale is None" in body else "")
    graph = reference_graph(text, AXES, spec(inputs), spec(outputs))
    assert list(graph.outputs) == list(spec(outputs))
    given = {name: random_input(np.random.default_rng(7), each) for name, each in spec(inputs).items()}
    names: dict[str, Any] = {}
    exec(text.replace("device='cuda'", "device='cpu'"), names)  # text of this file
    wanted = names["run"](*given.values())
    wanted = list(wanted.values()) if isinstance(wanted, dict) else wanted if isinstance(wanted, tuple) else [wanted]
    dtypes = {name: str(value.dtype) for name, value in zip(graph.outputs, wanted, strict=True)}
    assert dtypes == {name: f"torch.{each['dtype']}" for name, each in spec(outputs).items()}
    arrays = {
        name: value.double().numpy() if isinstance(value, torch.Tensor) and value.is_floating_point() else np.asarray(value)
        for name, value in given.items() if name in graph.inputs
    }
    found = interpret(graph, arrays).outputs
    for value, (name, got) in zip(wanted, found.items(), strict=True):
        half = value.dtype in (torch.bfloat16, torch.float16) or "float16" in inputs
        np.testing.assert_allclose(got, value.double().numpy(), rtol=3e-2 if half else 2e-5, atol=3e-2 if half else 2e-5,
                                   err_msg=name)
    assert parse_graph(print_graph(graph)).structural_key == graph.structural_key


def test_a_wrong_translation_would_be_noticed() -> None:
    graph = reference_graph(source(X, "return x * 2"), AXES, spec(X), spec(OUT))
    x = random_input(np.random.default_rng(7), spec(X)["x"])
    found = interpret(graph, {"x": x.double().numpy()}).outputs["o"]
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(found, (x * 2.001).numpy(), rtol=2e-5, atol=2e-5)


def test_a_negative_index_counts_from_the_back_as_in_torch() -> None:
    inputs = spec("ids:M:int64 w:N,K:float32")
    graph = reference_graph(source("ids:M:int64 w:N,K:float32", "return w[ids]"), AXES, inputs, spec(OUT))
    ids, w = np.array([-1, 0, 5, -6, 2]), np.random.default_rng(1).normal(size=(6, 8))
    np.testing.assert_array_equal(interpret(graph, {"ids": ids, "w": w}).outputs["o"], w[ids])


def test_a_number_beside_half_precision_is_not_rounded_to_it() -> None:
    inputs, outputs = spec("x:M,K:bfloat16"), spec("o:M,K:bfloat16")
    x = torch.linspace(-3, 3, 40, dtype=torch.bfloat16).reshape(5, 8)
    for body in ("return x * 0.1", "return 0.1 - x", "return x / 3.3", "return x + 0.1", "return x ** 2"):
        graph = reference_graph(source("x:M,K:bfloat16", body), AXES, inputs, outputs)
        names: dict[str, Any] = {}
        exec(source("x:M,K:bfloat16", body), names)  # text of this file
        import ml_dtypes

        given = x.float().numpy().astype(ml_dtypes.bfloat16)
        found = interpret(graph, {"x": given}, mode="as_written").outputs["o"]
        np.testing.assert_array_equal(found.astype(np.float32), names["run"](x).float().numpy(), err_msg=body)


OPAQUE = [
    ("for i in range(3):\n    x = x * i\nreturn x", "line 10: a loop"),
    ("while True:\n    pass", "line 10: run does not end by returning a value"),
    ("if x.shape[0] > 3:\n    x = x * 2\nreturn x", "line 10: a branch"),
    ("assert x.shape[0] == 4\nreturn x", "line 10: a comparison of sizes that are not known"),
    ("assert x.shape[1] == 4\nreturn x", "line 10: the assert x.shape[1] == 4 does not hold for these shapes"),
    ("assert x.shape[0] >= 1 and (x > 0).all()\nreturn x", "line 10: tensors' all is not known here"),
    ("y = x.item()\nreturn x", "line 10: tensors' item is not known here"),
    ("x.mul_(2)\nreturn x", "line 10: a call for its effect"),
    ("x[0] = 1\nreturn x", "line 10: a tensor is written into"),
    ("x += 1\nreturn x", "line 10: a tensor is changed in place"),
    ("y = x.add_(1)\nreturn y", "line 10: a tensor is changed in place"),
    ("return helper(x)", "line 10: helper is not known here"),
    ("return torch.einsum('mk->mk', x)", "line 10: torch.einsum is not known here"),
    ("return x[x > 0]", "line 10: an index that is not of integers"),
    ("return [y for y in x]", "line 10: a loop"),
    ("return (lambda y: y)(x)", "line 10: a function"),
    ("return x.to(torch.bfloat16)", "output 'o' is bf16[M, 8]; declared is f32[M, 8]"),
    ("return x, x", "it returns 2 values; declared are 1"),
    ("return x.softmax()", "line 10: _softmax() missing 1 required positional argument: 'dim'"),
    ("return x @ x", "the axis to sum over has two sizes"),
    ("return x * (9 ** 9 ** 9)", "line 10: a power of a size, or a large one"),
    ("return x.view(torch.int32)", "line 10: a size that is not known from the shapes"),
    ("return x.__class__(x)", "line 10: tensors' __class__ is not known here"),
    ("return torch.load('file')", "line 10: torch.load is not known here"),
    ("return eval('x')", "line 10: eval is not known here"),
    ("import os\nreturn x", "line 10: it imports os"),
    ("return x[10**9:, 99]", "line 10: index 99 of axis 1"),
    ("return", "line 10: run does not end by returning a value"),
]


@pytest.mark.parametrize(("body", "reason"), OPAQUE, ids=lambda text: text.splitlines()[0][:40])
def test_anything_else_is_refused_with_its_line_and_reason(body: str, reason: str) -> None:
    with pytest.raises(OpaqueReference) as caught:
        reference_graph(source(X, body), AXES, spec(X), spec(OUT))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "reason"), [
    ("def run(x:\n", "no Python"),
    ("def walk(x):\n    return x\n", "it has no function named run"),
    ("x = [1]\nfor y in x: pass\ndef run(x):\n    return x\n", "line 2: a loop outside of run"),
    ("def run(y, x):\n    return x\n", "run takes 2 inputs; declared are 1"),
    ("def run(*x):\n    return x\n", "run takes * or ** or keyword arguments"),
    ("import torch\n@torch.compile\ndef run(x):\n    return x\n", "run is decorated with torch.compile"),
    ("def f(a):\n    return f(a)\ndef run(x):\n    return f(x)\n", "line 2: functions within functions, 8 deep"),
    ("def f(a):\n    for b in a: pass\n    return a\ndef run(x):\n    return f(x)\n", "line 2: a loop"),
    ("def f(a):\n    a = a\ndef run(x):\n    return f(x)\n", "line 2: f does not end by returning a value"),
    ("def f(a, b):\n    return a\ndef run(x):\n    return f(x)\n", "line 4: f lacks arguments"),
    ("def f(a):\n    return a\ndef run(x):\n    return f(x, b=1)\n", "line 4: f does not take these arguments"),
    ("def f(a):\n    return y\ndef run(x):\n    y = x\n    return f(x)\n", "line 2: y is not known here"),
    ("def f(a):\n" + "    a = a\n" * 900 + "    return a\ndef run(x):\n    return " + "f(" * 7 + "x" + ")" * 7,
     "more than 5000 statements"),
    ("def run(x):\n    return x\ndef run(x):\n    return x\n", "it has several functions named run"),
    ("def run(x):\n    return x\n" + "#" * 200_001, "longer than"),
    ("def run(x):\n    return " + "(" * 5000 + "x" + ")" * 5000, "too many nested parentheses"),
    ("def run(x):\n    return " + "-" * 3000 + "x", ""),
])  # fmt: skip
def test_a_text_that_is_no_straight_line_at_all_is_refused(text: str, reason: str) -> None:
    with pytest.raises(OpaqueReference) as caught:
        reference_graph(text, AXES, spec(X), spec(OUT))
    assert reason in str(caught.value)


@pytest.mark.parametrize(("axes", "inputs", "reason"), [
    ({"M": {"type": "var"}, "K": {"type": "const"}}, spec(X), "'value'"),
    ({"M": {"type": "ragged"}}, spec(X), "axis 'M' is neither const nor var"),
    ({"M": {"type": "var"}}, spec(X), "'x' has an axis 'K' that the definition does not declare"),
    (AXES, spec("x:M,K:float8_e4m3fn"), "'x' is of float8_e4m3fn, in which no reference is read"),
    (AXES, spec("x:M,K:float8_e4m3"), "'x' is of float8_e4m3, which has no counterpart here"),
])  # fmt: skip
def test_a_signature_that_cannot_be_meant_is_refused(axes: Any, inputs: Any, reason: str) -> None:
    with pytest.raises(OpaqueReference) as caught:
        reference_graph(source(X, "return x"), axes, inputs, spec(OUT))
    assert reason in str(caught.value)


def test_inputs_in_another_order_than_the_function_takes_them_are_refused() -> None:
    with pytest.raises(OpaqueReference, match="another order"):
        reference_graph(source("y:M,K:float32 x:M,K:float32", "return x - y"), AXES, spec(XY), spec(OUT))


def test_every_function_of_the_table_refuses_a_call_that_makes_no_sense() -> None:
    for name, build in FUNCTIONS.items():
        with pytest.raises((OpaqueReference, TypeError, LookupError, AttributeError)):
            build("a text", object(), name)
