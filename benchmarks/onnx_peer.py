"""onnx_peer: random ONNX nodes, imported and evaluated by the oracle, compared with onnxruntime's values.

    pip install onnxruntime                    # not a dependency of the package
    python benchmarks/onnx_peer.py             # 20 nodes of each kind
    python benchmarks/onnx_peer.py --kinds pool,resize --count 200 --seed 3

Prints for each op how many nodes are equal (to 1e-4), refused by `tg.from_onnx`, refused by onnxruntime, or differ; each difference
with its attributes and shapes. Exits with 1 where one differs.
"""

from __future__ import annotations

import argparse
import collections
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from onnx import helper, numpy_helper

import tensor_graphs as tg
from tensor_graphs.frontends.onnx.errors import NotSupported


class Case(NamedTuple):
    """One node. inputs: arrays at run time, "" where none is; stored: operands behind them that are constants of the model."""

    op: str
    inputs: Mapping[str, np.ndarray]
    attributes: Mapping[str, Any] = {}
    stored: Mapping[str, np.ndarray] = {}
    outputs: int = 1


class Draw:
    """Random numbers of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def floats(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(np.float32)

    def one(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def ints(self, low: int, high: int, count: int = 2) -> list[int]:
        return self.rng.integers(low, high, count).tolist()


def pool(d: Draw) -> Case:
    op, kernel = d.one("MaxPool", "AveragePool"), d.ints(1, 4)
    how: dict[str, Any] = {"kernel_shape": kernel, "strides": d.ints(1, 4)}
    if d.one(False, False, True):
        how["auto_pad"] = d.one("SAME_UPPER", "SAME_LOWER", "VALID")
    else:
        how |= {"pads": [int(d.rng.integers(k)) for k in kernel * 2], "ceil_mode": d.one(0, 1), "dilations": d.ints(1, 3)}
    more = {"count_include_pad": d.one(0, 1)} if op == "AveragePool" else {}
    return Case(op, {"x": d.floats(2, 3, *d.ints(7, 12))}, how | more, outputs=2 if op == "MaxPool" else 1)


def convolution(d: Draw) -> Case:
    groups, turned = d.one(1, 2), d.one(False, True)
    how = {"group": groups, "strides": d.ints(1, 4), "dilations": d.ints(1, 3), "pads": d.ints(0, 2, 4)}
    if turned:
        how["output_padding"] = [int(d.rng.integers(by)) for by in how["strides"]]
    weight = d.floats(4, 3, *d.ints(1, 4)) if turned else d.floats(6, 4 // groups, *d.ints(1, 4))
    bias = d.floats(3 * groups if turned else 6)
    return Case("ConvTranspose" if turned else "Conv", {"x": d.floats(2, 4, *d.ints(7, 11)), "w": weight, "b": bias}, how)


def resize(d: Draw) -> Case:
    mode = d.one("nearest", "linear", "cubic")
    where = d.one("half_pixel", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric")
    how: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": where}
    if mode == "nearest":
        how["nearest_mode"] = d.one("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    else:
        how["antialias"] = d.one(0, 1)
    if mode == "cubic":
        how |= {"exclude_outside": d.one(0, 1), "cubic_coeff_a": d.one(-0.5, -0.75)}
    none, by_scale = np.zeros(0, np.float32), d.one(True, False)
    scales = np.array([1, 1, d.one(0.5, 0.6, 1.5, 2, 3), d.one(0.5, 0.8, 1.5, 2, 2.6)], np.float32) if by_scale else none
    stored = {"roi": none, "scales": scales} | ({} if by_scale else {"sizes": np.array([1, 2, *d.ints(2, 14)])})
    return Case("Resize", {"x": d.floats(1, 2, *d.ints(3, 8))}, how, stored)


def order(d: Draw) -> Case:
    x, op = d.rng.integers(-4, 4, (3, 6)).astype(np.float32), d.one("TopK", "ArgMax", "ArgMin", "CumSum")
    if op == "TopK":
        return Case(op, {"x": x}, {"largest": d.one(0, 1)}, {"k": np.array(d.ints(1, 4, 1))}, 2)
    if op == "CumSum":
        return Case(op, {"x": x}, {"exclusive": d.one(0, 1), "reverse": d.one(0, 1)}, {"axis": np.array(d.one(0, 1, -1))})
    return Case(op, {"x": x}, {"axis": d.one(0, 1, -1), "keepdims": d.one(0, 1), "select_last_index": d.one(0, 1)})


def places(d: Draw) -> Case:
    reduction, op = d.one("none", "add", "mul", "max", "min"), d.one("ScatterND", "ScatterElements", "GatherND", "GatherElements")
    if op.startswith("Gather"):
        index = d.rng.integers(-3, 3, (6, 2)) if op == "GatherND" else d.rng.integers(-4, 4, (2, 5, 3))
        return Case(op, {"x": d.floats(4, 5, 3), "i": index})
    rows = np.stack([d.rng.permutation(5)[:3] for _ in range(4)], 1) - d.one(0, 5)
    if op == "ScatterND":
        return Case(op, {"x": d.floats(5, 4), "i": rows[:, :1], "u": d.floats(3, 4)}, {"reduction": reduction})
    return Case(op, {"x": d.floats(5, 4), "i": rows, "u": d.floats(3, 4)}, {"reduction": reduction, "axis": 0})


def layer(d: Draw) -> Case:
    op, which, steps = d.one("LSTM", "GRU", "RNN"), d.one("forward", "reverse", "bidirectional"), int(d.rng.integers(1, 6))
    gates, ways = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 1 + (which == "bidirectional")
    inputs = {"x": d.floats(steps, 2, 3), "w": d.floats(ways, gates * 4, 3), "r": d.floats(ways, gates * 4, 4),
              "b": d.floats(ways, gates * 8), "l": np.array([steps, d.rng.integers(1, steps + 1)], np.int32),
              "h": d.floats(ways, 2, 4)} | ({"c": d.floats(ways, 2, 4)} if op == "LSTM" else {})
    more = {"linear_before_reset": d.one(0, 1)} if op == "GRU" else {}
    return Case(op, inputs, {"hidden_size": 4, "direction": which} | more, outputs=3 if op == "LSTM" else 2)


def grid(d: Draw) -> Case:
    how = {"mode": d.one("linear", "nearest", "cubic"), "padding_mode": d.one("zeros", "border", "reflection")}
    return Case("GridSample", {"x": d.floats(2, 3, 5, 6), "g": d.floats(2, 4, 3, 2) * np.float32(0.8)}, how | {
        "align_corners": d.one(0, 1)})


def attention(d: Draw) -> Case:
    groups, keys = d.one(4, 2), int(d.rng.integers(3, 6))
    inputs = {"q": d.floats(2, 4, 3, 8), "k": d.floats(2, groups, keys, 8), "v": d.floats(2, groups, keys, 8)}
    return Case("Attention", inputs | d.one({}, {"m": d.floats(3, keys)}), {"is_causal": d.one(0, 1), "softcap": d.one(0.0, 2.0)})


KINDS: dict[str, Callable[[Draw], Case]] = {
    f.__name__: f for f in (pool, convolution, resize, order, places, layer, grid, attention)}


def verdict(case: Case) -> str:
    """Return "equal", "differs", or who refuses the node."""
    names = [f"y{i}" for i in range(case.outputs)]
    infos = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for k, x in case.inputs.items()]
    node = helper.make_node(case.op, [*case.inputs, *case.stored], names, **case.attributes)
    body = helper.make_graph([node], "one", infos, [helper.make_empty_tensor_value_info(name) for name in names],
                             [numpy_helper.from_array(x, name) for name, x in case.stored.items()])
    opset = 23 if case.op == "Attention" else 21
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        expected = session.run(None, dict(case.inputs))
    except Exception:
        return "refused by onnxruntime"
    try:
        imported = tg.from_onnx(model)
    except NotSupported:
        return "refused"
    inputs = {imported.inputs[name]: x for name, x in case.inputs.items() if name in imported.inputs}
    actual = tg.interpret(imported.graph, inputs, imported.weights, mode="as_written").outputs
    pairs = [(np.asarray(actual[imported.outputs[name]]), y) for name, y in zip(names, expected, strict=True)]
    same = all(a.shape == b.shape and a.dtype == b.dtype and np.allclose(a, b, 1e-4, 1e-4, equal_nan=True) for a, b in pairs)
    return "equal" if same else "differs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    draw, counts = Draw(args.seed), collections.Counter[tuple[str, str]]()
    for kind in args.kinds.split(","):
        for _ in range(args.count):
            case = KINDS[kind](draw)
            result = verdict(case)
            counts[case.op, result] += 1
            if result == "differs":
                print("differs:", case.op, dict(case.attributes), {name: x.shape for name, x in case.inputs.items()})
    for (op, result), count in sorted(counts.items()):
        print(f"{op}: {count} {result}")
    sys.exit(any(result == "differs" for _, result in counts))


if __name__ == "__main__":
    main()
