"""A model folder: a small Gemma of random weights is written, loaded, compiled, and generates tokens."""

import tempfile
from pathlib import Path

import tensor_graphs as tg
from tensor_graphs.frontends.huggingface.folder import FULL, SLIDING, Gemma3TextConfig, write_gemma3_folder
from tensor_graphs.serving.sampling import Sampling

CONFIG = Gemma3TextConfig(vocab_size=211, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                          num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-6, sliding_window=8, layer_types=(SLIDING, FULL),
                          max_position_embeddings=256)

with tempfile.TemporaryDirectory() as temporary:
    folder = Path(temporary) / "tiny-gemma"
    write_gemma3_folder(folder, CONFIG, seed=0)
    print("files:", *sorted(file.name for file in folder.iterdir()))

    loaded = tg.load_model(folder, max_positions=256)               # the length of the KV cache
    print(f"{loaded.kind}: {len(loaded.graph.parameters)} weights, states {len(loaded.graph.states)}")
    model = tg.bind(tg.compile(loaded.greedy_graph), loaded.weights)  # its output is the likeliest token
    greedy = tg.generate(model, [2, 9, 10], tokens=6, session=model.session())
    print("greedy:", *greedy.ids)

    drawing = tg.bind(tg.compile(loaded.graph), loaded.weights)     # its output is all logits
    sampling = Sampling(temperature=1.0, top_k=20, seed=1)
    drawn = tg.generate(drawing, [2, 9, 10], tokens=6, session=drawing.session(), sampling=sampling)
    print("drawn:", *drawn.ids)
