"""bench_serve: measures how fast a decoder answers many requests at once, in this process and without HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.compiling import load_decoder
from tensor_graphs.phase_times import IMPORT, phase

if TYPE_CHECKING:
    from tensor_graphs.serving.load import LoadResult


def bench_serve(
    *,
    model: Annotated[str, typer.Argument(help="A model folder, a .gguf file, or a built-in shape: gemma-3-270m.")],
    clients: Annotated[str, typer.Option(help="Loads: how many clients ask at once, like 1,8,32.")] = "1,8",
    requests: Annotated[int, typer.Option(min=1, help="Requests of each load.")] = 16,
    prompt_tokens: Annotated[str, typer.Option(help="Tokens of a prompt, from the least to the most.")] = "32-256",
    new_tokens: Annotated[str, typer.Option(help="Tokens of an answer, from the least to the most.")] = "32-256",
    sequences: options.Sequences = 32,
    step_tokens: Annotated[int, typer.Option(min=1, help="Tokens that one step computes at most, of all requests.")] = 256,
    invariant: options.Invariant = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random prompts.")] = 0,
    random_weights: options.RandomWeights = None,
    dtypes: option_groups.Dtypes,
    max_positions: options.MaxPositions = None,
    memory_limit: options.MemoryLimit = None,
    backends: options.Backends = None,
    threads: options.Threads = None,
    common: option_groups.Common,
) -> None:
    """Measure throughput, time to the first token and time per token of many random requests, at several loads."""
    with phase(IMPORT):
        from tensor_graphs.serving.engine import start_engine
        from tensor_graphs.serving.load import measure_load, random_requests
    loads = [ends(part, "--clients")[0] for part in clients.split(",")]
    prompt, tokens = ends(prompt_tokens, "--prompt-tokens"), ends(new_tokens, "--new-tokens")
    loaded = load_decoder(model, dtypes, max_positions=max_positions or prompt[1] + tokens[1], random_seed=random_weights)
    with options.status("compiling", common.json) as update:
        engine = start_engine(loaded, sequences=sequences, tokens=step_tokens, invariant=invariant, memory_limit=memory_limit,
                              backends=options.given_backends(backends), database=common.store(), threads=threads, progress=update)
    try:
        measure_load(engine, random_requests(2, vocabulary=engine.vocabulary, prompt=prompt, tokens=(2, 2), seed=seed + 1), 2)
        results = [measure_load(engine, random_requests(requests, vocabulary=engine.vocabulary, prompt=prompt, tokens=tokens,
                                                        seed=seed + 2 + number), load) for number, load in enumerate(loads)]
    finally:
        engine.close()
    if common.json:
        options.print_json({"model": loaded.name, "pages": engine.status().pages,
                            "loads": [document(result) for result in results]})
        return
    print(f"{'clients':>7}  {'tokens/s':>8}  {'first token, ms (median, p95)':>29}  {'token, ms (median, p95)':>23}  preemptions")
    for result in results:
        of_first, of_token = ("{:.1f}  {:.1f}".format(*(1e3 * x for x in quantiles(times)))
                              for times in (result.first_token, result.token))
        print(f"{result.clients:7d}  {result.tokens_per_second:8.1f}  {of_first:>29}  {of_token:>23}  {result.preemptions:11d}")


def ends(text: str, option: str) -> tuple[int, int]:
    """Return the numbers of a range like 32-256, or twice that of a text like 32. Raises UsageError."""
    parts = text.strip().split("-")
    if not (1 <= len(parts) <= 2 and all(part.isdecimal() for part in parts)) or not 1 <= int(parts[0]) <= int(parts[-1]):
        raise options.UsageError(f"{option} {text!r} is neither a whole number nor a range of them\n  fix: {option} 32-256")
    return int(parts[0]), int(parts[-1])


def quantiles(times: tuple[float, ...]) -> tuple[float, float]:
    """Return the median and the 95th percentile; zeros without times."""
    import numpy as np

    return (float(np.median(times)), float(np.percentile(times, 95))) if times else (0.0, 0.0)


def document(result: LoadResult) -> dict[str, Any]:
    """Return the measurements of one load for JSON, times in milliseconds."""
    of_first, of_token = (dict(zip(("median", "p95"), (1e3 * x for x in quantiles(times)), strict=True))
                          for times in (result.first_token, result.token))
    return {"clients": result.clients, "tokens_per_second": result.tokens_per_second, "seconds": result.seconds,
            "prompt_tokens": result.prompt_tokens, "shared_tokens": result.shared_tokens, "new_tokens": result.new_tokens,
            "preemptions": result.preemptions, "first_token_ms": of_first, "token_ms": of_token}
