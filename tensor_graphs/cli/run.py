"""run: generates text (or token ids) with a decoder; runs an ONNX file once."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensor_graphs.cli import option_groups, options, run_batch, run_graph
from tensor_graphs.cli.compiling import Ready, load_decoder, ready
from tensor_graphs.cli.graphs import STEP, within
from tensor_graphs.errors import counted
from tensor_graphs.phase_times import IMPORT, OURS, phase

if TYPE_CHECKING:
    from tensor_graphs.serving.generate import Generation, TextDecoder
    from tensor_graphs.serving.requests import GenerationRequest

FEW = 256
"""positions for which memory is always planned, so that a shorter or longer generation can use the same plan next time"""


def run(
    *,
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="A model folder, a .gguf or .onnx file, or a built-in shape: gemma-3-270m (docs/cli.md).")
    ],
    prompt: Annotated[
        list[str] | None, typer.Option(help="Text to go on from; several times for several, each answered on its own.")
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file of prompts, one a line (/dev/stdin: what is piped in).")
    ] = None,
    system: options.System = None,
    ids: Annotated[str | None, typer.Option(help="Token ids to go on from, like 2,9259,10.")] = None,
    files: option_groups.GraphFiles,
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens to generate, for each prompt.")] = 32,
    drawing: option_groups.SamplingOptions,
    dtypes: option_groups.Dtypes,
    random_weights: options.RandomWeights = None,
    chat: Annotated[bool, typer.Option(help="Use the folder's chat template, when it has one.")] = True,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on behind an end-of-text token.")] = False,
    choice: option_groups.ModelOptions,
    invariant: options.Invariant = False,
    decoder: option_groups.DecoderOptions,
) -> None:
    """Generate tokens with a decoder model, or run an ONNX file once, on the fastest path that is accurate enough."""
    OURS.until_here("arguments")
    if run_graph.was_run(context, model, files, choice, decoder):
        return
    with phase(IMPORT):
        from tensor_graphs.serving.generate import check_room
        from tensor_graphs.serving.requests import GenerationRequest

    print_document = decoder.document_printer()
    sampling, stop_texts = drawing.sampling(), drawing.stop_texts()
    loaded = load_decoder(model, dtypes, max_positions=decoder.max_positions, random_seed=random_weights)
    asked = starts(loaded, prompt, prompts, system, ids, chat)
    if stop_texts and loaded.tokenizer is None:
        raise options.NotPossible(f"{loaded.name} has no tokenizer, so --stop has no text to look at\n  fix: leave it out")
    for start in asked:
        check_room(start.ids, tokens, loaded.max_positions, loaded.facts.vocabulary, most=loaded.config.max_position_embeddings)
    request = GenerationRequest((), tokens, sampling, frozenset(() if ignore_eos else loaded.end_ids),
                                0 if decoder.logprobs else None)
    several = prompts is not None or len(asked) > 1
    alone = next((option for option, value in (("--tolerance", choice.tolerance), ("--plan", choice.plan), ("--text", decoder.text))
                  if value is not None), None)
    if invariant and alone is not None:
        raise options.UsageError(f"{alone} is not for prompts that are answered together, as with --invariant\n"
                                 "  fix: --precision chooses words; or leave it out")
    answered = _together if invariant or (several and alone is None) else _one_after_another
    documents = answered(loaded, asked, request, stop_texts, choice, decoder, several, invariant)
    if print_document is not None:
        print_document(documents if several else documents[0])


def _one_after_another(loaded: Any, asked: Sequence[Start], request: GenerationRequest, stop_texts: Sequence[str],
                       choice: option_groups.ModelOptions, decoder: option_groups.DecoderOptions, several: bool,
                       invariant: bool) -> list[Any]:
    """Answer each prompt on its own, print it unless a document is wanted, and return the documents."""
    longest, tokens, sampling = max(len(start.ids) for start in asked), request.tokens or 0, request.sampling
    positions = min(max(longest + tokens, FEW), loaded.max_positions - 1)
    quiet = decoder.json or decoder.jsonl
    model_ready = ready(loaded, choice, decoder.db, at=STEP, largest={"n": longest, "m": 1, "p": positions}, quiet=quiet,
                        memory_limit=decoder.memory_limit, text=decoder.text,
                        greedy=not (sampling.needs_logits or decoder.logprobs))
    documents = []
    for number, start in enumerate(asked):
        if several and not quiet:
            print(("\n" if number else "") + f"> {start.title}", flush=True)
        show = token_lines({"prompt": number} if several else {}) if decoder.jsonl else None if decoder.json else print_text
        text, result = generate_and_show(model_ready, start.ids, tokens, sampling, request.stop_ids, show, stop_texts=stop_texts,
                                         logprobs=decoder.logprobs)
        if not quiet:
            _print_times(model_ready, start.ids, result)
        outcome = document(model_ready, start.ids, text, result, {"n": 1, "m": 1}, {"n": len(start.ids), "m": 1})
        documents.append({"prompt": start.text, **outcome} if several else outcome)
        model_ready = replace(model_ready, compile_seconds=0.0)     # once for all prompts
    return documents


def _together(loaded: Any, asked: Sequence[Start], request: GenerationRequest, stop_texts: Sequence[str],
              choice: option_groups.ModelOptions, decoder: option_groups.DecoderOptions, several: bool,
              invariant: bool) -> list[Any]:
    """Answer all prompts at once, print them in order unless a document is wanted, and return the documents."""
    quiet = decoder.json or decoder.jsonl
    engine, seconds = run_batch.started(loaded, [len(start.ids) + (request.tokens or 0) for start in asked], choice, decoder,
                                        invariant=invariant, quiet=quiet)
    model_ready = Ready(loaded, engine.compiled.plan, engine.compiled, seconds)
    rows = min(len(asked), run_batch.TOGETHER)
    sizes = within(engine.compiled.graph, {"t": rows, "m": rows, "w": 1})
    texts, documents, shown, began = [""] * len(asked), dict[int, Any](), 0, time.perf_counter()
    lines = [token_lines({"prompt": number} if several else {}) for number in range(len(asked))]
    requests = [replace(request, prompt=tuple(start.ids)) for start in asked]
    if several and not quiet:
        print(f"> {asked[0].title}", flush=True)
    for item in run_batch.answers(engine, requests, lambda: _decoder(loaded, stop_texts)):
        number, result = item.prompt, item.result
        texts[number] += item.text
        if item.token is not None and decoder.jsonl:
            lines[number](item.token, item.text, result)
        if item.token is None:
            outcome = document(model_ready, asked[number].ids, texts[number], result, sizes, {})
            outcome["cached_tokens"] = item.cached_tokens
            documents[number] = {"prompt": asked[number].text, **outcome} if several else outcome
        if not quiet and number == shown:
            print_text(0, item.text, result)
        while not quiet and shown in documents and shown + 1 < len(asked):
            shown += 1
            print(f"\n\n> {asked[shown].title}\n{texts[shown]}", end="", flush=True)
    if not quiet:
        _print_totals(model_ready, documents, time.perf_counter() - began)
    return [documents[number] for number in range(len(asked))]


def _print_totals(model_ready: Ready, documents: Mapping[int, Any], seconds: float) -> None:
    """Print the times of all prompts together."""
    print()
    new, read, cached = (sum(f(d) for d in documents.values()) for f in (
        lambda d: len(d["ids"]), lambda d: d["prompt_tokens"], lambda d: d["cached_tokens"]))
    use = model_ready.plan.memory()
    options.console().print(
        f"[dim]{counted(len(documents), 'prompt')} · {counted(new, 'token')} in {seconds:.2f} s, {new / seconds:.1f} tokens/s "
        f"together · prompts of {read} tokens, {cached} of them shared · compile {model_ready.compile_seconds:.2f} s · memory "
        f"{use.allocated / 1e6:.1f} MB beside {(use.parameters + use.bind_only) / 1e6:.0f} MB of weights[/dim]"
    )


def _print_times(model_ready: Ready, start: list[int], result: Any) -> None:
    print()
    use = model_ready.plan.memory(n=len(start), m=1)
    steps = len(result.step_seconds)
    speed = f"{result.tokens_per_second:.1f} tokens/s (median of {counted(steps, 'step')}) · " if steps else ""
    compiled = f"compile {model_ready.compile_seconds:.2f} s · " if model_ready.compile_seconds else ""
    options.console().print(
        f"[dim]{counted(len(result.ids), 'token')} · {speed}"
        f"prefill {result.prefill_seconds * 1e3:.1f} ms ({len(start)} tokens) · "
        f"{compiled}memory {use.allocated / 1e6:.1f} MB beside "
        f"{(use.parameters + use.bind_only) / 1e6:.0f} MB of weights[/dim]"
    )


A_PROMPT_A_LINE = "a text file in UTF-8, one prompt a line"


@dataclass(frozen=True)
class Start:
    """A prompt. text: None if it was given as ids. ids: the tokens that are fed to the model."""

    text: str | None
    ids: list[int]

    @property
    def title(self) -> str:
        """The text, shortened to one line of a terminal."""
        line = " ".join((self.text or "").split())
        return line if len(line) <= 72 else line[:71] + "…"


def starts(
    loaded: Any, prompt: list[str] | None, prompts: str | None, system: str | None, ids: str | None, chat: bool
) -> list[Start]:
    """Return the prompts of --prompt, --prompts or --ids. Raises UsageError, NotPossible or FrontendError."""
    from tensor_graphs.frontends.text.tokenizer import TOKENIZER_FILES
    from tensor_graphs.serving.conversation import chat_tokenizer, system_message

    if sum(source is not None for source in (prompt or None, prompts, ids)) != 1:
        raise options.UsageError("give either --prompt TEXT or --ids 2,9259,… (or --prompts FILE, one prompt a line)")
    if system is not None and (ids is not None or not chat):
        raise options.UsageError(
            f"--system goes through the chat template, and {'--ids' if ids is not None else '--no-chat'} goes around it\n"
            "  fix: leave one of them out"
        )
    if ids is not None:
        try:
            return [Start(None, [int(part) for part in ids.split(",")])]
        except ValueError:
            raise options.UsageError(f"--ids {ids!r} is not a list of whole numbers\n  fix: --ids 2,9259,10") from None
    if loaded.tokenizer is None:
        raise options.NotPossible(
            f"{loaded.name} has no tokenizer ({TOKENIZER_FILES}), so --prompt cannot be read\n  fix: --ids 2,9259,… (token ids)"
        )
    texts = prompt or [line for line in options.text_of("--prompts", prompts or "", A_PROMPT_A_LINE).split("\n") if line.strip()]
    if not texts:
        raise options.NotPossible(f"{prompts} has no prompt in it\n  fix: one prompt a line")
    tokenizer = chat_tokenizer(loaded) if system is not None else loaded.tokenizer
    if not (chat and tokenizer.has_chat_template):
        return [Start(text, list(tokenizer.encode(text))) for text in texts]
    before = system_message(system)
    return [Start(text, list(tokenizer.encode_chat([*before, {"role": "user", "content": text}]))) for text in texts]


Show = Callable[[int, str, "Generation"], None]
"""show(token, its text, the generation so far), called for each new token"""


def print_text(token: int, text: str, result: Generation) -> None:
    """Print the text of a token immediately."""
    sys.stdout.write(text)
    sys.stdout.flush()


def token_lines(before: dict[str, int]) -> Show:
    """Return a function that prints each token as one line of JSON, with the items of `before` first."""
    def show(token: int, text: str, result: Generation) -> None:
        logprob = {} if result.log_probabilities is None else {"logprob": result.log_probabilities[-1]}
        options.print_line({**before, "id": token, "text": text, **logprob})
    return show


class _Ids:
    """The text decoder of a model without a tokenizer: the text is the ids, with commas."""

    stopped = False
    _between = ""

    def push(self, token: int) -> str:
        text, self._between = f"{self._between}{token}", ","
        return text

    def finish(self) -> str:
        return ""


def _decoder(model: Any, stop_texts: Sequence[str]) -> TextDecoder:
    """Return a decoder of one answer's tokens."""
    return _Ids() if model.tokenizer is None else model.tokenizer.stream(stop_texts=stop_texts)


def generate_and_show(model_ready: Ready, start: list[int], tokens: int, sampling: Any, stop: Any, show: Show | None, *,
                      stop_texts: Sequence[str] = (), logprobs: bool = False) -> tuple[str, Generation]:
    """Generate tokens, calling `show` for each. Return the text (the ids if there is no tokenizer) and the Generation."""
    from tensor_graphs.serving.generate import Generation, stream_text

    result = Generation(log_probabilities=[] if logprobs else None)
    decoder, texts = _decoder(model_ready.model, stop_texts), []
    compiled = model_ready.compiled
    for token, text in stream_text(compiled, compiled.session(), start, tokens, decoder, result, sampling=sampling, stop=stop):
        texts.append(text)
        if show is not None:
            show(token, text, result)
    return "".join(texts), result


def document(model_ready: Ready, start: list[int], text: str, result: Generation, step_sizes: Mapping[str, int],
             largest: Mapping[str, int]) -> dict[str, Any]:
    """Return the JSON document of an answer. step_sizes: dims of a step that decodes; largest: dims that memory is needed for."""
    use, step = model_ready.plan.memory(**largest), model_ready.plan.variant(model_ready.plan.binding(step_sizes))
    return {
        "ids": result.ids, "text": None if model_ready.model.tokenizer is None else text,
        **({} if result.log_probabilities is None else {"logprobs": result.log_probabilities}),
        "tokens_per_second": result.tokens_per_second, "prefill_ms": result.prefill_seconds * 1e3,
        "prompt_tokens": len(start), "stopped": result.stopped, "predicted_step_ms": step.predicted * 1e3,
        "predicted_at": {name: int(size) for name, size in step.at.items()},
        "step_ms": [s * 1e3 for s in result.step_seconds], "memory": {use.device: use.total},
        "memory_detail": {use.device: use.to_json()}, "compile_ms": model_ready.compile_seconds * 1e3,
        "phases": OURS.to_json(), "path": model_ready.plan.variants[0].path.id,
    }
