"""Handwritten digits: a network of two layers with dropout, trained by AdamW, saved halfway and resumed."""

import time

import numpy as np
from sklearn.datasets import load_digits

import tensor_graphs as tg

EPOCHS, BATCH = 40, 64

images, digits = load_digits(return_X_y=True)
images, digits = (images / 16).astype(np.float32), digits.astype(np.int32)
order = np.random.default_rng(0).permutation(len(images))
training, held_out = order[:1440], order[1440:]

n = tg.dim("n", 1, 512)
x, y = tg.input("x", (n, 64), tg.f32), tg.input("y", (n,), tg.i32)
shapes = {"w1": (128, 64), "b1": (128,), "w2": (10, 128), "b2": (10,)}
rng = np.random.default_rng(1)
first = {name: rng.normal(0, 1 / np.sqrt(shape[-1]), shape).astype(np.float32) * (len(shape) > 1) for name, shape in shapes.items()}


def logits(rate: float) -> tg.Node:
    w1, b1, w2, b2 = (tg.parameter(name, shape) for name, shape in shapes.items())
    hidden = tg.relu(tg.linear(x, w1) + b1)
    return tg.linear(tg.dropout(hidden, rate, site=1) if rate else hidden, w2) + b2


steps = EPOCHS * (len(training) // BATCH)
rate = tg.optim.warmup(tg.optim.cosine(5e-3, steps), steps=50)
started = time.perf_counter()
trainer = tg.Trainer(tg.graph({"loss": tg.losses.cross_entropy(logits(0.2), y)}),
                     {"b*": tg.optim.AdamW(rate, weight_decay=0.0), "w*": tg.optim.AdamW(rate)}, first, at={"n": BATCH})
model = trainer.evaluator(tg.graph({"logits": logits(0.0)}))


def train(trainer: tg.Trainer, epochs: range) -> None:
    for epoch in epochs:
        rows = np.random.default_rng((2, epoch)).permutation(training)       # the order of an epoch depends on its number alone
        for start in range(0, len(rows) - BATCH + 1, BATCH):
            batch = rows[start:start + BATCH]
            trainer.step({"x": images[batch], "y": digits[batch]})


train(trainer, range(EPOCHS // 2))
trainer.save("digits.safetensors")
train(trainer, range(EPOCHS // 2, EPOCHS))
answers = model.run({"x": images[held_out]}, session=trainer.session)["logits"].argmax(axis=1)
accuracy = (answers == digits[held_out]).mean()
print(f"{trainer.steps} steps, {len(trainer.plan.variants[-1].program.instructions)} kernels each, "
      f"{time.perf_counter() - started:.1f} s")
print(f"held-out digits read: {accuracy:.1%}, at least 97 %: {accuracy >= 0.97}")

trainer.load("digits.safetensors")                                           # back to the middle, and the same way again
train(trainer, range(EPOCHS // 2, EPOCHS))
again = model.run({"x": images[held_out]}, session=trainer.session)["logits"].argmax(axis=1)
print("resumed, the answers are the same:", np.array_equal(answers, again))
