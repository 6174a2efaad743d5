"""A residual network learns generated color images: stripes of four directions, any phase and color, under noise.

Larger ones by arguments: python cifar_like.py SIDE WIDTH BLOCKS STEPS (32 16 3 600 is a ResNet-20 of CIFAR's size).
"""

import sys

import numpy as np

import tensor_graphs as tg

SIDE, WIDTH, BLOCKS, STEPS = (int(word) for word in sys.argv[1:]) if len(sys.argv) == 5 else (12, 8, 1, 150)
BATCH, CLASSES = 32, 4


def images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images [count, 3, SIDE, SIDE] and their classes."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, CLASSES, count).astype(np.int32)
    angle = (label * np.pi / CLASSES)[:, None, None]
    row, column = np.mgrid[:SIDE, :SIDE] * (2 * np.pi / 5)
    wave = np.sin(row * np.cos(angle) + column * np.sin(angle) + rng.uniform(0, 2 * np.pi, (count, 1, 1)))
    color = rng.normal(0, 1, (count, 3, 1, 1))
    return (color * wave[:, None] + rng.normal(0, 0.5, (count, 3, SIDE, SIDE))).astype(np.float32), label


shapes: dict[str, tuple[int, ...]] = {}


def conv(x: tg.Node, name: str, channels: int, stride: int = 1, size: int = 3) -> tg.Node:
    shapes[name] = (channels, x.shape[1], size, size)
    return tg.conv2d(x, tg.parameter(name, shapes[name]), stride=stride, padding=size // 2)


def norm(x: tg.Node, name: str) -> tg.Node:
    shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (x.shape[1],)
    return tg.group_norm(x, tg.parameter(f"{name}.weight", (x.shape[1],)), tg.parameter(f"{name}.bias", (x.shape[1],)), groups=4)


def logits(x: tg.Node) -> tg.Node:
    """[batch, 3, side, side] -> [batch, classes], by three stages, each of half the side and twice the channels."""
    x = tg.relu(norm(conv(x, "first", WIDTH), "first.norm"))
    for stage in range(3):
        for block in range(BLOCKS):
            name, channels, stride = f"{stage}.{block}", WIDTH << stage, 2 if stage and not block else 1
            h = tg.relu(norm(conv(x, f"{name}.a", channels, stride), f"{name}.a.norm"))
            h = norm(conv(h, f"{name}.b", channels), f"{name}.b.norm")
            x = tg.relu(h + (x if stride == 1 else conv(x, f"{name}.skip", channels, stride, 1)))
    shapes["head"] = (CLASSES, x.shape[1])
    return tg.linear(tg.mean(x, (2, 3)), tg.parameter("head", shapes["head"]))


x, y = tg.input("x", (BATCH, 3, SIDE, SIDE)), tg.input("y", (BATCH,), tg.i32)
loss = tg.losses.cross_entropy(logits(x), y)
rng = np.random.default_rng(0)
first = {name: np.full(shape, float(name.endswith("weight")), np.float32) if len(shape) == 1
         else rng.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape).astype(np.float32) for name, shape in shapes.items()}
optimiser = tg.optim.SGD(tg.optim.warmup(tg.optim.cosine(0.1, STEPS), 10), momentum=0.9, nesterov=True, weight_decay=1e-4)
trainer = tg.Trainer(tg.graph({"loss": loss}), optimiser, first, backends=("numpy",) if SIDE < 32 else None)
batches = tg.Batches(dict(zip("xy", images(2048, seed=1), strict=True)), BATCH)
losses = [float(trainer.step(batches[step])["loss"]) for step in range(STEPS)]
count = sum(map(np.size, first.values()))
print(f"{count:,} parameters, loss {losses[0]:.2f} -> {losses[-1]:.2f}, log {CLASSES} = {np.log(CLASSES):.2f}")

model = trainer.evaluator(tg.graph({"logits": logits(x)}))
held_out, label = images(8 * BATCH, seed=2)
answers = [model.run({"x": held_out[at:at + BATCH]}, session=trainer.session)["logits"].argmax(axis=1)
           for at in range(0, len(held_out), BATCH)]
accuracy = (np.concatenate(answers) == label).mean()
print(f"held-out images: {accuracy:.1%}, at least 90 %: {accuracy >= 0.9}")
