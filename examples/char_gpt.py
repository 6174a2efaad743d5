"""A small GPT over characters: learns a text, goes down with its loss, and writes some of it.

Larger ones by arguments: python char_gpt.py LAYERS WIDTH STEPS (6 384 500 takes minutes).
"""

import sys

import numpy as np

import tensor_graphs as tg

LAYERS, WIDTH, STEPS = (int(word) for word in sys.argv[1:]) if len(sys.argv) == 4 else (1, 32, 300)
LENGTH, BATCH, HEAD = 16, 8, 16
TEXT = "the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. " * 20

letters = sorted(set(TEXT))
ids = np.array([letters.index(letter) for letter in TEXT], np.int32)
count, heads = len(letters), WIDTH // HEAD
shapes = {"tokens": (count, WIDTH), "places": (LENGTH, WIDTH), "norm": (WIDTH,), "head": (count, WIDTH)}
for layer in range(LAYERS):
    shapes |= {f"{layer}.norm1": (WIDTH,), f"{layer}.q": (WIDTH, WIDTH), f"{layer}.k": (WIDTH, WIDTH), f"{layer}.v": (WIDTH, WIDTH),
               f"{layer}.out": (WIDTH, WIDTH), f"{layer}.norm2": (WIDTH,), f"{layer}.up": (4 * WIDTH, WIDTH),
               f"{layer}.down": (WIDTH, 4 * WIDTH)}


def logits(tokens: tg.Node) -> tg.Node:
    """[batch, length] token ids -> [batch, length, count]."""
    batch, length = tokens.shape
    w = {name: tg.parameter(name, shape) for name, shape in shapes.items()}
    x = tg.embedding(w["tokens"], tokens) + w["places"]
    for layer in range(LAYERS):
        h = tg.layer_norm(x, w[f"{layer}.norm1"])
        q, k, v = (tg.linear(h, w[f"{layer}.{name}"]).reshape(batch, length, heads, HEAD) for name in "qkv")
        seen = tg.attention(q, k, v, scale=HEAD**-0.5, causal=True).reshape(batch, length, WIDTH)
        x = x + tg.linear(seen, w[f"{layer}.out"])
        h = tg.layer_norm(x, w[f"{layer}.norm2"])
        x = x + tg.linear(tg.gelu(tg.linear(h, w[f"{layer}.up"])), w[f"{layer}.down"])
    return tg.linear(tg.layer_norm(x, w["norm"]), w["head"])


rng = np.random.default_rng(0)
first = {name: (np.ones(shape) if len(shape) == 1 else rng.normal(0, 0.08, shape)).astype(np.float32)
         for name, shape in shapes.items()}
tokens, target = (tg.input(name, (BATCH, LENGTH), tg.i32) for name in ("ids", "target"))
loss = tg.losses.cross_entropy(logits(tokens).reshape(BATCH * LENGTH, count), target.reshape(BATCH * LENGTH))
backends = ("numpy",) if WIDTH <= 64 else None                      # compiles sooner; without it, runs faster
trainer = tg.Trainer(tg.graph({"loss": loss}), tg.optim.AdamW(tg.optim.warmup(tg.optim.cosine(1e-2, STEPS), 20)), first,
                     clip_norm=1.0, backends=backends)
starts = tg.Batches({"start": np.arange(len(ids) - LENGTH)}, BATCH)
losses = []
for step in range(STEPS):
    rows = starts[step]["start"][:, None] + np.arange(LENGTH)
    losses.append(float(trainer.step({"ids": ids[rows], "target": ids[rows + 1]})["loss"]))
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}, log {count} = {np.log(count):.2f}")
print("it learns:", losses[-1] < 1.0)

writer = trainer.evaluator(tg.graph({"logits": logits(tg.input("ids", (1, LENGTH), tg.i32))}))
written = list(ids[:LENGTH])
for _ in range(24):
    out = writer.run({"ids": np.array([written[-LENGTH:]], np.int32)}, session=trainer.session)["logits"]
    written.append(int(out[0, -1].argmax()))
print("".join(letters[i] for i in written))
