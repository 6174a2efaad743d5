"""A service without HTTP: one compiled model, a session per client, several turns; the cache keeps what was fed before."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tensor_graphs as tg
from tensor_graphs.frontends.huggingface.folder import FULL, SLIDING, Gemma3TextConfig, write_gemma3_folder

CONFIG = Gemma3TextConfig(vocab_size=211, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                          num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-6, sliding_window=8, layer_types=(SLIDING, FULL),
                          max_position_embeddings=256)
TURNS = {"ada": ([2, 9, 10], [11, 12]), "bob": ([2, 30], [31, 32, 33]), "cy": ([2, 9, 10], [11, 12])}

with tempfile.TemporaryDirectory() as temporary:
    folder = Path(temporary) / "tiny-gemma"
    write_gemma3_folder(folder, CONFIG, seed=0)
    loaded = tg.load_model(folder, max_positions=256)
    model = tg.bind(tg.compile(loaded.greedy_graph), loaded.weights)  # before the first request arrives

    def converse(client):
        """Return the answers to a client's turns, and how many tokens its session holds after them."""
        session, answers = model.session(), []
        for prompt in TURNS[client]:
            answers.append(list(tg.stream(model, session, prompt, tokens=4)))     # feeds the new tokens only
        return answers, len(session.transcript.fed)

    with ThreadPoolExecutor(3) as pool:
        results = dict(zip(TURNS, pool.map(converse, TURNS), strict=True))

for client, (answers, fed) in results.items():
    print(f"{client}: {len(answers)} answers of {[len(answer) for answer in answers]} tokens, {fed} tokens in the cache")
print("equal turns, equal answers:", results["ada"] == results["cy"])
