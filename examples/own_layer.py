"""A layer of one's own: written as a function, compiled for every batch size, run, checked and explained."""

import numpy as np

import tensor_graphs as tg


def gated_layer(x, gate, up, down):
    """Return down(silu(gate(x)) · up(x)), as the feed-forward layers of most language models do."""
    return tg.linear(tg.silu(tg.linear(x, gate)) * tg.linear(x, up), down)


n = tg.dim("n", 1, 64)                                              # one plan serves every n in these bounds
x = tg.input("x", (n, 48), tg.f32)
shapes = {"gate": (96, 48), "up": (96, 48), "down": (48, 96)}
parameters = {name: tg.parameter(name, shape, tg.f32) for name, shape in shapes.items()}
graph = tg.graph(gated_layer(x, **parameters))
print("inputs:", *graph.inputs, "| parameters:", *graph.parameters)

rng = np.random.default_rng(0)
weights = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
plan = tg.compile(graph, tolerance=1e-4)                            # the largest relative error, against float64
layer = tg.bind(plan, weights)

for rows in (1, 7):
    values = rng.normal(size=(rows, 48)).astype(np.float32)
    out = layer.run({"x": values})["out"]
    exact = {name: weight.astype(np.float64).T for name, weight in weights.items()}
    gate = values @ exact["gate"]
    expected = (gate / (1 + np.exp(-gate)) * (values @ exact["up"])) @ exact["down"]
    error = np.abs(out - expected).max() / np.abs(expected).max()
    print(f"n={rows}: shape {out.shape}, error below 1e-4: {error < 1e-4}")

print(tg.explain(plan))
