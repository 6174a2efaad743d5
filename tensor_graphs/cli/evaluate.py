"""evaluate: compares a decoder's next-token probabilities on a text with float64 or with another model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tensor_graphs import interrupted
from tensor_graphs.cli import ctrl_c, option_groups, options
from tensor_graphs.cli.compiling import load_decoder, ready
from tensor_graphs.cli.measured_on import ends
from tensor_graphs.phase_times import IMPORT, phase

if TYPE_CHECKING:
    from tensor_graphs.frontends.huggingface.load import LoadedModel
    from tensor_graphs.serving.evaluate import TextEvaluation

FLOAT64 = "float64"


def evaluate(
    *,
    model: Annotated[str, typer.Argument(help="A model folder or a .gguf file.")],
    text: Annotated[str, typer.Option(metavar="FILE", help="The text that is scored, in UTF-8.")],
    against: Annotated[
        str, typer.Option(metavar="MODEL", help="The reference: float64 (the model itself, computed in float64), or another model.")
    ] = FLOAT64,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens that are scored.")] = 4096,
    window: Annotated[int, typer.Option(min=2, help="Tokens after which the caches are emptied.")] = 512,
    dtypes: option_groups.Dtypes,
    choice: option_groups.ModelOptions,
    common: option_groups.Common,
) -> None:
    """Score a text with a decoder and with a reference: KL divergence, equal top tokens, perplexities, errors of logits."""
    with phase(IMPORT):
        from tensor_graphs.serving.evaluate import MOST_LOGITS, windows
        from tensor_graphs.serving.evaluate import evaluate as compared

    loaded = load_decoder(model, dtypes, max_positions=None, random_seed=None)
    other = loaded if against == FLOAT64 else load_decoder(against, option_groups.Dtypes(), max_positions=None, random_seed=None)
    size = min(window, loaded.max_positions, other.max_positions)
    ids, start = _ids(loaded, text)
    if other is not loaded and _ids(other, text) != (ids, start):
        raise options.NotPossible(f"{model} and {against} read {text} as different tokens\n  fix: models with one tokenizer")
    pieces = windows(ids[:tokens + (not start)], start, size)
    rows = min(size, max(1, MOST_LOGITS // loaded.facts.vocabulary))
    at, largest = {"n": rows, "m": rows, "p": size // 2}, {"n": rows, "m": rows, "p": size}
    compiled = ready(loaded, choice, common.db, at=at, largest=largest, quiet=common.json)
    as_reference = option_groups.ModelOptions(precision="f64" if other is loaded else None, backends=choice.backends,
                                              threads=choice.threads)
    reference = ready(other, as_reference, common.db, at=at, largest=largest, quiet=common.json)
    stopped = list[bool]()
    total = sum(len(piece.ids) for piece in pieces)
    with options.progress("scoring", common.json, total) as update, ctrl_c.taken_by(lambda: stopped.append(True)):
        def go_on(so_far: TextEvaluation) -> bool:
            update(so_far.tokens, total, f"KL {sum(so_far.kl) / so_far.tokens:.2e}")
            return not stopped

        result = compared(compiled.compiled, reference.compiled, pieces, go_on)
    document = {**result.to_json(), "window": size, "against": against, "interrupted": bool(stopped),
                "path": compiled.plan.variants[0].path.id}
    if common.json:
        options.print_json(document)
    else:
        _print(result, f"{text}, windows of {size}, against {against}")
    if stopped:
        raise typer.Exit(interrupted.CODE)


def _ids(loaded: LoadedModel, file: str) -> tuple[list[int], list[int]]:
    """Return the tokens of a text file, and the tokens that the tokenizer puts before a text. Raises NotPossible."""
    from tensor_graphs.frontends.text.tokenizer import TOKENIZER_FILES

    if loaded.tokenizer is None:
        raise options.NotPossible(f"{loaded.name} has no tokenizer ({TOKENIZER_FILES}), so --text cannot be read\n"
                                  "  fix: save the tokenizer into the folder: tokenizer.save_pretrained(folder)")
    text = options.text_of("--text", file, "a text file in UTF-8")
    start, _ = ends(loaded.tokenizer.encode(text[:64]), loaded.tokenizer.encode(text[:64], special_tokens=False))
    return list(loaded.tokenizer.encode(text, special_tokens=False)), start


def _print(result: TextEvaluation, title: str) -> None:
    d = result.to_json()
    print(f"{d['tokens']:,} tokens of {title}")
    print(f"KL divergence    mean {d['kl_mean']:.3e}   median {d['kl_median']:.3e}   99 % {d['kl_99']:.3e}   "
          f"largest {d['kl_largest']:.3e}")
    print(f"same top token   {d['top1']:.2%}")
    print(f"perplexity       {d['perplexity']:.4f}   {d['reference_perplexity']:.4f} of the reference")
    print(f"error of logits  norm {d['norm']:.2e}   largest {d['largest_error']:.2e}")
    print(f"time             {d['seconds']:.2f} s   {d['reference_seconds']:.2f} s of the reference")
