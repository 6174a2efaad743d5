"""embed: computes one vector per text with a sentence encoder."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.compiling import Ready, ready
from tensor_graphs.phase_times import IMPORT, phase

if TYPE_CHECKING:
    from tensor_graphs.serving.embed import PackedEncoder


def embed(
    *,
    model: Annotated[
        str, typer.Argument(help="The folder of a sentence encoder (config.json, tokenizer.json, *.safetensors), or a .gguf file.")
    ],
    text: Annotated[list[str] | None, typer.Option(help="A text; give it several times for several.")] = None,
    texts: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file of texts, one a line (/dev/stdin: what is piped in).")
    ] = None,
    dtypes: option_groups.Dtypes,
    choice: option_groups.ModelOptions,
    common: option_groups.Common,
) -> None:
    """Embed texts and print their vectors (--json) or their similarities."""
    with phase(IMPORT):
        from tensor_graphs.frontends.huggingface.load import load_model

    if (text is None) == (texts is None):
        raise options.UsageError("give either --text TEXT or --texts FILE, one text a line")
    if texts is not None:
        lines = options.text_of("--texts", texts, "a text file in UTF-8, one text a line").split("\n")
        text = [line for line in lines if line.strip()]
    if not text:
        raise options.NotPossible(f"{texts} has no text in it\n  fix: one text a line")
    for number, each_text in enumerate(text, 1):
        if not each_text.strip():
            raise options.UsageError(f"--text number {number} is empty: there is nothing to embed")
    loaded = load_model(model, dtype=dtypes.dtype, activations=dtypes.activations)
    if not loaded.encoder:
        raise options.NotPossible(f"{model} is a {loaded.kind} model, which does not embed\n  fix: tg run {model} --prompt …")
    vectors, model_ready, left_out = embeddings(loaded, text, choice, common.db, quiet=common.json)
    if common.json:
        use = model_ready.plan.memory()
        options.print_json(
            {
                "embeddings": vectors.tolist(), "texts": text, "tokens_left_out": left_out,
                "memory": {use.device: use.total}, "path": model_ready.plan.variants[0].path.id,
            }
        )
        return
    print_similarities(text, vectors)


def embeddings(loaded: Any, texts: list[str], choice: option_groups.ModelOptions, database: str | None,
               *, quiet: bool) -> tuple[np.ndarray, Ready, list[int]]:
    """Return (one row per text, the compiled model, how many tokens of each text were cut because the encoder reads no more)."""
    from tensor_graphs.frontends.text.tokenizer import TOKENIZER_FILES

    if loaded.tokenizer is None:
        raise options.NotPossible(f"{loaded.name} has no tokenizer ({TOKENIZER_FILES}), which embedding texts needs\n"
                                  "  fix: save the tokenizer into the folder: tokenizer.save_pretrained(folder)")
    encoded = [loaded.tokenizer.encode_and_cut(t) for t in texts]
    ids, left_out = [i for i, _ in encoded], [cut for _, cut in encoded]
    for number, (read, cut) in enumerate(encoded, 1):
        if cut:
            options.note(
                f"--text number {number} has {cut} tokens more than the {len(read)} that {loaded.name} reads; they are left out"
            )
    if len(ids) > 1 and choice.tolerance is None and choice.plan is None:
        encoder, seconds = packed_encoder(loaded, choice, database, quiet=quiet)
        with phase("embed"):
            return encoder(ids), Ready(loaded, encoder.compiled.plan, encoder.compiled, seconds), left_out
    longest = max(len(i) for i in ids)
    model_ready = ready(loaded, choice, database, at={"n": 16}, largest={"n": longest}, quiet=quiet)
    with phase("embed"):
        rows = [model_ready.compiled.run({"ids": np.asarray(i, dtype=np.int32)})["embedding"].reshape(-1).copy() for i in ids]
    return np.stack(rows), model_ready, left_out


def packed_encoder(loaded: Any, choice: option_groups.ModelOptions, database: str | None, *, quiet: bool,
                   memory_limit: int | None = None) -> tuple[PackedEncoder, float]:
    """Return an encoder that takes many texts, and the seconds that it took to compile and bind."""
    from tensor_graphs.serving.embed import start_encoder

    began = time.perf_counter()
    with options.status("compiling", quiet) as update:
        encoder = start_encoder(loaded, backends=options.given_backends(choice.backends), database=options.database(database),
                                memory_limit=memory_limit, threads=choice.threads, precision=choice.precision, progress=update)
    return encoder, time.perf_counter() - began


def print_similarities(texts: list[str], vectors: np.ndarray) -> None:
    """Print the matrix of cosine similarities, one row per text."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    similar = unit @ unit.T
    for i, t in enumerate(texts):
        print(f"{i:3d}  " + " ".join(f"{v:6.3f}" for v in similar[i]) + "   " + (t if len(t) <= 60 else t[:57] + "…"))
