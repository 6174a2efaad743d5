"""A kernel of one's own: registered, judged against the float64 oracle, and chosen where it is the fastest on file."""

import tempfile
from pathlib import Path

import numpy as np

import tensor_graphs as tg


@tg.kernel("softmax", name="numpy.my_softmax")
def my_softmax(outs, ins, attrs):
    """Fill y with softmax(x) along one axis."""
    (x,), (y,), axis = ins, outs, attrs["axis"]
    np.subtract(x, x.max(axis=axis, keepdims=True), out=y)
    np.exp(y, out=y)
    y /= y.sum(axis=axis, keepdims=True)


@tg.kernel("softmax", name="numpy.wrong_softmax")
def wrong_softmax(outs, ins, attrs):
    """Fill y with values that do not sum to 1: the comparison refuses them."""
    np.exp(ins[0], out=outs[0])


if __name__ == "__main__":                                          # the processes that measure a kernel import this file
    graph = tg.graph(tg.softmax(tg.input("x", (64, 256), tg.f32)))
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "measurements.db"
        for name in ("numpy.my_softmax", "numpy.wrong_softmax"):
            report = tg.profile(graph, budget=5, kernels=[name], backends=("numpy",), database=database)
            for verdict in report.verdicts:
                print(f"{verdict.kernel}: {verdict.status}")
        plan = tg.compile(graph, backends=("numpy",), database=database)
        print(tg.explain(plan))
        values = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
        out = tg.bind(plan).run({"x": values})["out"]
        print("rows sum to 1:", np.allclose(out.sum(axis=1), 1.0))
