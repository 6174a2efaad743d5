"""embed: one vector per text, by a sentence encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from tensor_graphs.cli import options
from tensor_graphs.cli.compiling import ready
from tensor_graphs.phases import IMPORT, phase

if TYPE_CHECKING:
    from tensor_graphs.choice.request import Wanted


def register(app: typer.Typer) -> None:
    app.command("embed")(embed)


def embed(
    model: Annotated[
        str, typer.Argument(help="The folder of a sentence encoder (config.json, tokenizer.json, *.safetensors).")
    ],
    text: Annotated[list[str], typer.Option(help="A text; give it several times for several.")],
    dtype: options.WeightDtype = None,
    tolerance: options.GraphTolerance = None,
    intermediates: options.Intermediates = "auto",
    plan: options.PlanFile = None,
    backends: options.Backends = None,
    threads: options.Threads = None,
    imports: options.Imports = None,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Embed texts and print their vectors (--json) or their similarities."""
    with phase(IMPORT):
        from tensor_graphs.frontends.huggingface.load import load_model

    for number, one in enumerate(text, 1):
        if not one.strip():
            raise options.UsageError(f"--text number {number} is empty: there is nothing to embed")
    loaded = load_model(model, dtype=dtype)
    if not loaded.encoder:
        raise options.NotPossible(
            f"{model} is a {loaded.kind} model, which does not embed\n  fix: tg run {model} --prompt …"
        )
    vectors, made, left_out = embeddings(
        loaded, text, tolerance=tolerance, intermediates=intermediates, backends=backends, database=db, threads=threads, quiet=json,
        plan=plan,
    )
    if json:
        use = made.plan.memory()
        options.print_json(
            {
                "embeddings": vectors.tolist(),
                "texts": text,
                "tokens_left_out": left_out,
                "memory": {use.device: use.total},
                "path": made.plan.variants[0].path.id,
            }
        )
        return
    print_similarities(text, vectors)


def embeddings(loaded: Any, texts: list[str], *, tolerance: float | None, backends: str | None, database: str | None,
               threads: int | None, quiet: bool, plan: str | None = None,
               intermediates: Wanted = "auto") -> tuple[np.ndarray, Any, list[int]]:
    """(one row per text, the compiled model, how many tokens of each text are beyond what the encoder reads)."""
    from tensor_graphs.frontends.text.tokenizer import TOKENIZER_FILES

    if loaded.tokenizer is None:
        raise options.NotPossible(f"{loaded.name} has no tokenizer ({TOKENIZER_FILES}), which embedding texts needs\n"
                                  "  fix: save the tokenizer into the folder: tokenizer.save_pretrained(folder)")
    encoded = [loaded.tokenizer.encode_and_cut(t) for t in texts]
    ids, left_out = [i for i, _ in encoded], [cut for _, cut in encoded]
    for number, (one, cut) in enumerate(encoded, 1):
        if cut:
            options.note(
                f"--text number {number} has {cut} tokens more than the {len(one)} that {loaded.name} reads; they are left out"
            )
    longest = max(len(i) for i in ids)
    made = ready(loaded, tolerance=tolerance, intermediates=intermediates, backends=backends, database=database, threads=threads,
                 at={"n": 16}, largest={"n": longest}, quiet=quiet, plan=plan)
    with phase("embed"):
        rows = [made.compiled.run({"ids": np.asarray(i, dtype=np.int32)})["embedding"].reshape(-1).copy() for i in ids]
    return np.stack(rows), made, left_out


def print_similarities(texts: list[str], vectors: np.ndarray) -> None:
    """The matrix of cosine similarities, one row per text."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    similar = unit @ unit.T
    for i, t in enumerate(texts):
        print(f"{i:3d}  " + " ".join(f"{v:6.3f}" for v in similar[i]) + "   " + (t if len(t) <= 60 else t[:57] + "…"))
