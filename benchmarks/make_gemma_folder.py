"""make_gemma_folder: writes a Gemma 3 folder of random weights (true shape by default), for benchmarks and comparisons.

    python benchmarks/make_gemma_folder.py gemma_f32
    python benchmarks/make_gemma_folder.py gemma_bf16 --dtype bfloat16 --seed 1
    python benchmarks/make_gemma_folder.py tiny --like some/config.json --layers 2 --vocabulary 1000

The recipe is `tensor_graphs.frontends.huggingface.folder.random_gemma3_weights`. Distinct tokens among 64 decoded
greedily in f32 at the true shape, over three prompts of random ids each (random.Random(0), (1), (2)):

    weights' seed     prompts of 8 ids     of 128 ids
    0                 51 … 63              40 … 54
    1                 58 … 60               1 … 25
    2                 55 … 64              42 … 51

So a comparison of tokens uses seed 0 or 2 and counts the distinct ones; seed 1 can settle on one token after a long
prompt.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path

from tensor_graphs.devices.safetensors import open_weights
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.frontends.huggingface.folder import GEMMA3_270M, Gemma3TextConfig, read_config, write_gemma3_folder


def main(arguments: list[str] | None = None) -> int:
    """Parse, write, say what was written; 1 after an error of the user's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to write; made when missing, files in it are replaced")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--like", type=Path, help="a model folder or config.json to take the shape from")
    parser.add_argument("--layers", type=int, help="only this many layers, from the bottom")
    parser.add_argument("--vocabulary", type=int, help="only this many tokens")
    args = parser.parse_args(arguments)
    try:
        config = _shape(args.like)
        if args.layers is not None:
            if not 1 <= args.layers <= config.num_hidden_layers:
                parser.error(f"--layers: 1 to {config.num_hidden_layers}")
            kinds = config.layer_types[: args.layers]
            config = dataclasses.replace(config, num_hidden_layers=args.layers, layer_types=kinds)
        if args.vocabulary is not None:
            if args.vocabulary < 3:
                parser.error("--vocabulary: at least 3, as ids 0, 1 and 2 are padding, end and start")
            config = dataclasses.replace(config, vocab_size=args.vocabulary)
        start = time.perf_counter()
        write_gemma3_folder(args.folder, config, args.seed, args.dtype)
        weights = open_weights(args.folder)
    except TensorGraphsError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{args.folder}: {len(weights)} tensors, {weights.nbytes / 1e6:.1f} MB, seed {args.seed}, "
          f"{time.perf_counter() - start:.1f} s")  # fmt: skip
    return 0


def _shape(like: Path | None) -> Gemma3TextConfig:
    if like is None:
        return GEMMA3_270M
    return Gemma3TextConfig.of(read_config(like.parent if like.name == "config.json" else like))


if __name__ == "__main__":
    sys.exit(main())
