"""A training step: loss, gradient by tg.vjp, and an update of states, all in one graph."""

import numpy as np

import tensor_graphs as tg

RATE = 0.1

n = tg.dim("n", 1, 256)
x, y = tg.input("x", (n, 3), tg.f32), tg.input("y", (n, 1), tg.f32)
weight, bias = tg.state("weight", (1, 3)), tg.state("bias", (1,))   # a session holds their values from run to run
w, b = weight.read(), bias.read()
difference = tg.linear(x, w) + b - y
loss = tg.mean(tg.square(difference))

# vjp: the gradients of sum(difference · cotangent); d loss / d difference is 2 · difference / n.
mean_gradient = tg.grad(loss, difference)
slopes = tg.vjp([difference], [mean_gradient], [w, b])
updates = {weight: w - slopes[0] * RATE, bias: b - slopes[1] * RATE}
step = tg.bind(tg.compile(tg.graph({"loss": loss}, updates)))       # one plan: forward, backward and update

rng = np.random.default_rng(0)
points = rng.uniform(-1, 1, (128, 3)).astype(np.float32)
targets = points @ np.array([[1.0], [-2.0], [0.5]], np.float32) + 0.25

session = step.session()
losses = [float(step.run({"x": points, "y": targets}, session=session)["loss"]) for _ in range(200)]
print("the loss falls:", losses[-1] < losses[0] / 1000)
print("weight:", *(f"{value:.2f}" for value in session["weight"].ravel()), "| bias:", f"{session['bias'][0]:.2f}")

saved = session.snapshot()                                          # a dict of arrays: np.savez writes it
other = step.session()
other.restore(saved)
losses = [float(step.run({"x": points, "y": targets}, session=one)["loss"]) for one in (session, other)]
print("a restored session goes on alike:", losses[0] == losses[1])
