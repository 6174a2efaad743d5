"""serve: answers HTTP requests with a model, in the form of OpenAI's API."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.compiling import ready
from tensor_graphs.phase_times import IMPORT, phase

if TYPE_CHECKING:
    from tensor_graphs.runtime.compiled_graph import CompiledGraph
    from tensor_graphs.serving.http.served import Served


def serve(
    *,
    model: Annotated[str, typer.Argument(help="A model folder or .gguf file with a tokenizer: a decoder, or a sentence encoder.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every one of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8080,
    api_key: Annotated[
        str | None, typer.Option(envvar="TENSOR_GRAPHS_API_KEY", help="Key that clients have to send (default: everyone may ask).")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model in requests (default: that of the folder).")] = None,
    sequences: Annotated[int, typer.Option(min=1, help="Requests that run together at most.")] = 32,
    step_tokens: Annotated[int, typer.Option(min=1, help="Tokens that one step computes at most, of all requests.")] = 256,
    invariant: Annotated[
        bool, typer.Option("--invariant", help="Tokens do not depend, bit by bit, on the requests that run beside.")
    ] = False,
    limits: option_groups.ServerLimits,
    dtypes: option_groups.Dtypes,
    random_weights: options.RandomWeights = None,
    max_positions: options.MaxPositions = None,
    memory_limit: options.MemoryLimit = None,
    backends: options.Backends = None,
    threads: options.Threads = None,
    common: option_groups.Common,
) -> None:
    """Serve a model over HTTP, in the form of OpenAI's API, with a chat page at /."""
    with phase(IMPORT):
        try:
            from tensor_graphs.serving.http.served import RequestLimits, Served
            from tensor_graphs.serving.http.server import bound
            from tensor_graphs.serving.http.server import serve as serve_on
        except ModuleNotFoundError as e:
            raise options.NotPossible(f"tg serve needs the package {e.name}\n  fix: pip install 'tensor_graphs[serve]'") from None
        from tensor_graphs.frontends.huggingface.load import load_model
        from tensor_graphs.frontends.text.tokenizer import TOKENIZER_FILES
        from tensor_graphs.serving.engine import start_engine

    if api_key is not None and not api_key.strip():
        raise options.UsageError("--api-key is empty\n  fix: --api-key KEY, or leave it out")
    address = bound(host, port)
    loaded = load_model(model, dtype=dtypes.dtype, activations=dtypes.activations, max_positions=max_positions,
                        random_seed=random_weights)
    if loaded.tokenizer is None:
        raise options.NotPossible(f"{loaded.name} has no tokenizer ({TOKENIZER_FILES}), which a server of texts needs\n"
                                  "  fix: save the tokenizer into the folder: tokenizer.save_pretrained(folder)")
    if loaded.encoder:
        choice = option_groups.ModelOptions(backends=backends, threads=threads)
        compiled = ready(loaded, choice, common.db, at={"n": 16}, largest={"n": loaded.max_positions}, quiet=common.json,
                         memory_limit=memory_limit).compiled
        served = Served(name or loaded.name, loaded.tokenizer, loaded.max_positions, embed=functools.partial(_vector, compiled))
    else:
        with options.status("compiling", common.json) as update:
            engine = start_engine(loaded, sequences=sequences, tokens=step_tokens, invariant=invariant, memory_limit=memory_limit,
                                  backends=options.given_backends(backends), database=common.store(), threads=threads,
                                  waiting=limits.most_waiting, progress=update)
        served = Served(name or loaded.name, loaded.tokenizer, engine.max_positions, engine, end_ids=frozenset(loaded.end_ids))
    logging.getLogger("tensor_graphs.serving.http").setLevel(logging.INFO)
    allowed = RequestLimits(limits.most_prompt, limits.most_body, limits.most_waiting, limits.timeout, api_key)
    serve_on(served, allowed, address, lambda: _announce(served, host, address.getsockname()[1], common.json))


def _announce(served: Served, host: str, port: int, as_json: bool) -> None:
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    if as_json:
        options.print_line({"url": url, "model": served.name, "max_positions": served.max_positions})
    else:
        print(f"{served.name} answers at {url} (API: {url}/docs). Ctrl-C ends it.", flush=True)


def _vector(compiled: CompiledGraph, ids: Sequence[int]) -> np.ndarray:
    """Return the vector of a text's ids."""
    return compiled.run({"ids": np.asarray(ids, dtype=np.int32)})["embedding"].reshape(-1).copy()
