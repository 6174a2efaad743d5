"""run: generate text (or token ids) with a decoder."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from tensor_graphs.cli import options
from tensor_graphs.cli.compiling import Ready, ready


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    model: Annotated[
        str, typer.Argument(help="A model folder (config.json, *.safetensors), or a built-in shape: gemma-3-270m.")
    ],
    prompt: Annotated[str | None, typer.Option(help="Text to go on from.")] = None,
    ids: Annotated[str | None, typer.Option(help="Token ids to go on from, like 2,9259,10.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens to generate.")] = 32,
    temperature: Annotated[
        float | None,
        typer.Option(help="Draw instead of taking the likeliest; 0 is greedy. [default: 0, or 1 with --top-k, --top-p or --seed]"),
    ] = None,
    top_k: Annotated[int, typer.Option(help="Draw from the k likeliest; 0 is off: from all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the smallest set that holds this probability; 1 is off.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Of the draws. [default: 0]")] = None,
    dtype: options.WeightDtype = "float32",
    random_weights: options.RandomWeights = None,
    chat: Annotated[bool, typer.Option(help="Use the folder's chat template, when it has one.")] = True,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on behind an end-of-text token.")] = False,
    tolerance: options.Tolerance = 1e-3,
    backends: options.Backends = "c,numpy",
    threads: options.Threads = None,
    max_positions: options.MaxPositions = None,
    memory_limit: options.MemoryLimit = None,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Generate tokens with a decoder model, on the fastest path that is accurate enough."""
    from tensor_graphs.frontends.generate import check_room
    from tensor_graphs.frontends.huggingface import load_model
    from tensor_graphs.models.gemma3 import Gemma3Spec

    sampling = sampling_of(temperature, top_k, top_p, seed)
    loaded = load_model(model, dtype=dtype, max_positions=max_positions, random_seed=random_weights)
    if not isinstance(loaded.spec, Gemma3Spec):
        raise options.NotPossible(
            f"{model} is a {loaded.kind} model, which does not generate text\n  fix: tg embed {model} --text …"
        )
    start = prompt_ids(loaded, prompt, ids, chat)
    check_room(start, tokens, loaded.max_positions, loaded.spec.vocabulary, most=loaded.config.max_position_embeddings)
    made = ready(
        loaded,
        tolerance=tolerance,
        backends=backends,
        database=db,
        threads=threads,
        at={"n": 1, "m": 1, "p": 256},
        largest={"n": len(start), "m": 1, "p": min(len(start) + tokens, loaded.max_positions - 1)},
        quiet=json,
        memory_limit=memory_limit,
        greedy=sampling.greedy,
    )
    stop = () if ignore_eos else loaded.generation.eos_token_ids
    result = generate_and_print(made, start, tokens, sampling, stop, quiet=json)
    use = made.plan.memory(n=len(start), m=1)
    if json:
        options.print_json(document(made, start, result))
        return
    shown = options.console()
    shown.print(
        f"[dim]{len(result.ids)} tokens · {result.tokens_per_second:.1f} tokens/s · "
        f"prefill {result.prefill_seconds * 1e3:.1f} ms ({len(start)} tokens) · "
        f"compile {made.compile_seconds:.2f} s · memory {use.allocated / 1e6:.1f} MB beside "
        f"{use.parameters / 1e6:.0f} MB of weights[/dim]"
    )


def sampling_of(temperature: float | None, top_k: int, top_p: float, seed: int | None) -> Any:
    """The options as a Sampling: whoever asks for a top k, a top p or a seed wants draws, at temperature 1 unless they say another.

    Raises UsageError for a value out of range.
    """
    from tensor_graphs.frontends.errors import SamplingError
    from tensor_graphs.frontends.sampling import Sampling

    draws = top_k != 0 or top_p != 1 or seed is not None
    try:
        return Sampling((1.0 if draws else 0.0) if temperature is None else temperature, top_k, top_p, seed or 0)
    except SamplingError as e:
        raise options.UsageError(str(e)) from None


def prompt_ids(loaded: Any, prompt: str | None, ids: str | None, chat: bool) -> list[int]:
    """The prompt's token ids, from --ids or through the folder's tokenizer. Raises UsageError, NotPossible or FrontendError."""
    if (prompt is None) == (ids is None):
        raise options.UsageError("give either --prompt TEXT or --ids 2,9259,…")
    if ids is not None:
        try:
            return [int(part) for part in ids.split(",")]
        except ValueError:
            raise options.UsageError(f"--ids {ids!r} is not a list of whole numbers like 2,9259,10") from None
    if loaded.tokenizer is None:
        raise options.NotPossible(
            f"{loaded.name} has no tokenizer.json, so --prompt cannot be read\n  fix: --ids 2,9259,… (token ids)"
        )
    tokenizer = loaded.tokenizer
    if chat and tokenizer.has_chat_template:
        return list(tokenizer.encode_chat([{"role": "user", "content": prompt}]))
    return list(tokenizer.encode(prompt))


def generate_and_print(made: Ready, start: list[int], tokens: int, sampling: Any, stop: Any, quiet: bool) -> Any:
    """Generate, printing text (or ids) as it comes unless quiet."""
    from tensor_graphs.frontends.generate import Generation, stream

    result = Generation()
    decoder = None if quiet or made.model.tokenizer is None else made.model.tokenizer.stream()
    for number, token in enumerate(
        stream(made.compiled, made.compiled.session(), start, tokens, sampling=sampling, stop=stop, result=result)
    ):
        if quiet:
            continue
        sys.stdout.write(decoder.push(token) if decoder is not None else f"{',' if number else ''}{token}")
        sys.stdout.flush()
    if not quiet:
        sys.stdout.write((decoder.finish() if decoder is not None else "") + "\n")
    return result


def document(made: Ready, start: list[int], result: Any) -> dict[str, Any]:
    use = made.plan.memory(n=len(start), m=1)
    text = made.model.tokenizer.decode(result.ids) if made.model.tokenizer is not None else None
    return {
        "ids": result.ids,
        "text": text,
        "tokens_per_second": result.tokens_per_second,
        "prefill_ms": result.prefill_seconds * 1e3,
        "prompt_tokens": len(start),
        "stopped": result.stopped,
        "step_ms": [s * 1e3 for s in result.step_seconds],
        "memory": {use.device: use.total},
        "memory_detail": {use.device: use.to_json()},
        "compile_ms": made.compile_seconds * 1e3,
        "path": made.plan.variants[0].path.id,
    }
