"""serve: answers HTTP requests with a model, in the form of OpenAI's API."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.compiling import ready
from tensor_graphs.cli.embed import packed_encoder
from tensor_graphs.phase_times import IMPORT, phase

if TYPE_CHECKING:
    from tensor_graphs.frontends.huggingface.load import LoadedModel
    from tensor_graphs.serving.http.served import Served


def serve(
    *,
    model: Annotated[str, typer.Argument(help="A model folder or .gguf file with a tokenizer: a decoder, or a sentence encoder.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every one of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8080,
    api_key: Annotated[
        str | None, typer.Option(envvar="TENSOR_GRAPHS_API_KEY", help="Key that clients have to send (default: everyone may ask).")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option(help="Name of the model in requests (default: the folder's); several for several names.")
    ] = None,
    limits: option_groups.ServerLimits,
    dtypes: option_groups.Dtypes,
    random_weights: options.RandomWeights = None,
    choice: option_groups.ModelOptions,
    max_positions: options.MaxPositions = None,
    memory_limit: options.MemoryLimit = None,
    text: options.TextFile = None,
    common: option_groups.Common,
) -> None:
    """Serve a model over HTTP, in the form of OpenAI's API, with a chat page at /."""
    with phase(IMPORT):
        try:
            from tensor_graphs.serving.http.served import RequestLimits
            from tensor_graphs.serving.http.server import bound
            from tensor_graphs.serving.http.server import serve as serve_on
        except ModuleNotFoundError as e:
            raise options.NotPossible(f"tg serve needs the package {e.name}\n  fix: pip install 'tensor_graphs[serve]'") from None
        from tensor_graphs.frontends.huggingface.load import load_model

    if api_key is not None and not api_key.strip():
        raise options.UsageError("--api-key is empty\n  fix: --api-key KEY, or leave it out")
    address = bound(host, port)
    loaded = load_model(model, dtype=dtypes.dtype, activations=dtypes.activations, max_positions=max_positions,
                        random_seed=random_weights)
    served = _served(loaded, name or [loaded.name], choice, common, limits, memory_limit, text)
    logging.getLogger("tensor_graphs.serving.http").setLevel(logging.INFO)
    shown, own_port = f"[{host}]" if ":" in host else host, address.getsockname()[1]

    def report() -> None:
        url = f"http://{shown}:{own_port}"
        if common.json:
            options.print_line({"url": url, "model": served.name, "max_positions": served.max_positions})
        else:
            print(f"{served.name} answers at {url} (API: {url}/docs). Ctrl-C ends it.", flush=True)
        sys.stdout.flush()

    allowed = RequestLimits(limits.most_prompt, limits.most_body, limits.most_waiting, limits.timeout, api_key)
    serve_on(served, allowed, address, report)


def _served(loaded: LoadedModel, names: list[str], choice: option_groups.ModelOptions, common: option_groups.Common,
            limits: option_groups.ServerLimits, memory_limit: int | None, text: str | None) -> Served:
    """Return the loaded model, compiled and bound: with an engine if it is a decoder, else with its function from ids to a vector.
    Raises NotPossible for a model without a tokenizer, UsageError for options that a decoder's engine does not have."""
    import numpy as np

    from tensor_graphs.frontends.text.tokenizer import TOKENIZER_FILES
    from tensor_graphs.serving.engine import start_engine
    from tensor_graphs.serving.http.served import Served

    if loaded.tokenizer is None:
        raise options.NotPossible(f"{loaded.name} has no tokenizer ({TOKENIZER_FILES}), which a server of texts needs\n"
                                  "  fix: save the tokenizer into the folder: tokenizer.save_pretrained(folder)")
    positions = loaded.max_positions
    if loaded.encoder:
        if choice.tolerance is None and choice.plan is None and text is None:
            encoder, _ = packed_encoder(loaded, choice, common.db, quiet=common.json, memory_limit=memory_limit)
            return Served(names[0], loaded.tokenizer, positions, embed=encoder, other_names=frozenset(names))
        compiled = ready(loaded, choice, common.db, quiet=common.json, memory_limit=memory_limit, text=text, at={"n": 16},
                         largest={"n": positions}).compiled

        def embed(texts: Any) -> Any:
            return [compiled.run({"ids": np.asarray(ids, dtype=np.int32)})["embedding"].reshape(-1).copy() for ids in texts]

        return Served(names[0], loaded.tokenizer, positions, embed=embed, other_names=frozenset(names))
    for option, value in (("--tolerance", choice.tolerance), ("--plan", choice.plan), ("--text", text)):
        if value is not None:
            raise options.UsageError(f"{option} is not for a decoder that answers many requests at once\n"
                                     "  fix: --precision chooses words; or leave it out")
    with options.status("compiling", common.json) as update:
        engine = start_engine(loaded, sequences=limits.sequences, waiting=limits.most_waiting, invariant=limits.invariant,
                              precision=choice.precision, backends=options.given_backends(choice.backends),
                              database=common.store(), memory_limit=memory_limit, threads=choice.threads, progress=update)
    return Served(names[0], loaded.tokenizer, positions, engine, end_ids=frozenset(loaded.end_ids), other_names=frozenset(names))
