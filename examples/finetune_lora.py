"""A model folder learns a text: adapters of low rank are trained, its own weights stay, and both are merged at the end.

The folder is a small Gemma 3 of random weights, made here; any folder that `tg.load_model` takes goes the same way.
"""

import tempfile
from pathlib import Path

import numpy as np

import tensor_graphs as tg
from tensor_graphs.frontends.huggingface.folder import Gemma3TextConfig, write_gemma3_folder

LENGTH = 24
SMALL = Gemma3TextConfig(vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                         num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-6, sliding_window=16,
                         layer_types=("full_attention",), max_position_embeddings=64, tie_word_embeddings=False)

folder = Path(tempfile.mkdtemp()) / "gemma"
write_gemma3_folder(folder, SMALL, seed=0)
loaded = tg.load_model(str(folder), max_positions=LENGTH)
graph = tg.next_token(loaded.graph)                                 # inputs ids and target, output loss
adapted = tg.lora(graph, "*", rank=8, scale=4.0)                     # or some of them: "*.[qv]_proj.weight"
weights = {name: loaded.weights[name] for name in graph.parameters}

text = np.tile(np.array([5, 17, 42, 9, 99, 3], np.int32), 20)       # with a tokenizer: loaded.tokenizer.encode(…)
rows = tg.Batches({"ids": text[:96].reshape(4, LENGTH), "target": text[1:97].reshape(4, LENGTH)}, 1)
trainer = tg.Trainer(adapted.graph, {"*.lora_?": tg.optim.AdamW(0.02), "*": None}, {**weights, **adapted.adapters},
                     at={"n": LENGTH}, backends=("numpy",))         # compiles sooner; without it, runs faster
losses = []
for step in range(80):
    batch = {name: array[0] for name, array in rows[step].items()}
    losses.append(float(trainer.step(batch)["loss"]))
trained = sum(array.size for array in adapted.adapters.values())
print(f"{trained:,} numbers trained next to {sum(w.size for w in weights.values()):,}")
print("the loss falls below two thirds:", losses[-1] < losses[0] * 2 / 3)

merged = adapted.merged(trainer.weights)                            # the weights of the graph without adapters
alone = tg.bind(tg.compile(graph, backends=("numpy",)), merged)
last = {"ids": text[:LENGTH], "target": text[1:LENGTH + 1]}
difference = abs(float(alone.run(last)["loss"]) - float(trainer.step(last)["loss"]))
print("merged, it computes the same:", difference < 1e-4)
