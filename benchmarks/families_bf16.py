"""families_bf16: accuracy of models in bfloat16, family by family, next to that of transformers in bfloat16 on the same weights.

    python benchmarks/families_bf16.py [--only llama,gemma2] [--texts 16] [--json rows.json]

Each family that is read has one small random model: 2 layers, hidden 128, 1000 tokens, logits with a standard deviation of 2. Its
weights are rounded to bf16; the reference is transformers in float64 on the rounded weights. Ours is load_model(dtype="bfloat16"),
compiled without a tolerance for c, gen and numpy together, and for numpy alone; theirs is transformers in bfloat16, eager, on the
same CPU. Texts are 48 random tokens. Printed of decoders: KL(reference ‖ out) in nats, the mean over positions; of encoders:
1 − cosine of the hidden rows' mean; of both: |out − reference| / |reference|; each the geometric mean over texts. The exit code is
1 where ours is beyond 1.2 × theirs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.arguments import at_least, new_file
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.frontends.huggingface.families import FAMILIES
from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind
from tests.models.family_cases import DECODERS, ENCODERS, Case

LIMIT, TOKENS, SPREAD = 1.2, 48, 2.0
"""largest error ÷ transformers'; tokens of a text; standard deviation of a decoder's logits"""

BACKENDS = (("c", "gen", "numpy"), ("numpy",))

SIZES = {"vocab_size": 1000, "hidden_size": 128, "n_embd": 128, "dim": 128, "intermediate_size": 256, "n_inner": 256,
         "hidden_dim": 256, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 96, "head_dim": 32,
         "query_pre_attn_scalar": 32, "max_position_embeddings": 128, "n_positions": 128, "sliding_window": 16,
         "local_attention": 16, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "swiglu_limit": 7.0,
         "rms_norm_eps": 1e-6, "layer_norm_eps": 1e-5, "layer_norm_epsilon": 1e-5, "norm_epsilon": 1e-5, "norm_eps": 1e-5}
"""Setting -> its value in each case that has it: sizes at which roundings add up, and published caps and eps."""

WITH_EXPERTS = 4
"""Factor of the number of texts for families with experts. A rounding that changes a token's expert, in either program, multiplies
the KL of its text by up to 100, so that the ratio of the means of four texts varies between 0.2 and 3."""


def enlarged(cases: Sequence[Case]) -> dict[str, Case]:
    """Return family -> its first case, with the settings of SIZES."""
    first = {case.family: case for case in reversed(cases)}
    return {family: replace(first[family], settings={k: SIZES.get(k, v) for k, v in first[family].settings.items()})
            for family in dict.fromkeys(case.family for case in cases)}


MODELS: dict[str, Case] = enlarged(DECODERS)
ENCODING: dict[str, Case] = enlarged(ENCODERS)


# ---- the two programs --------------------------------------------------------------------------------------------------


def random_tokens(case: Case, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, case.settings["vocab_size"], TOKENS).astype(np.int32)


def transformers_model(case: Case, folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    """Return the folder's model in one dtype, computed op by op."""
    kind = transformers.AutoModel if case.encoder else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager")
    return model.eval()  # type: ignore[no-any-return]


def transformers_outputs(model: torch.nn.Module, ids: np.ndarray) -> np.ndarray:
    """Return transformers' logits f64[tokens, vocabulary], or of an encoder the hidden rows f64[tokens, hidden]."""
    with torch.no_grad():
        out = model(torch.from_numpy(ids.astype(np.int64))[None])
    return np.asarray((out.logits if hasattr(out, "logits") else out.last_hidden_state)[0].double().numpy())


def write_bf16_folder(case: Case, folder: Path) -> None:
    """Write a model in bf16; a decoder's logits have the standard deviation SPREAD, set by its last norm."""
    case.write(folder)
    model = transformers_model(case, folder, torch.float32)
    if not case.encoder:
        scale = SPREAD / transformers_outputs(model, random_tokens(case, 0)).std()
        offset = load_model(folder).facts.norm_offset
        norm = model.get_submodule(FAMILIES[case.family].names.norm)
        with torch.no_grad():
            norm.weight.copy_((norm.weight + offset) * scale - offset)
            if getattr(norm, "bias", None) is not None:
                norm.bias.mul_(scale)
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    model.to(torch.bfloat16).save_pretrained(folder)


def compiled_for(case: Case, folder: Path, backends: tuple[str, ...]) -> CompiledGraph:
    """Return the folder's model in bf16, compiled without a tolerance for texts of TOKENS."""
    model = load_model(folder, dtype="bfloat16", max_positions=TOKENS)
    sizes = {"n": TOKENS} if case.encoder else {"n": TOKENS, "m": TOKENS, "p": 0}
    return bind(compile_graph(model.graph, backends=backends, at=sizes), model.weights)


def our_outputs(compiled: CompiledGraph, ids: np.ndarray) -> np.ndarray:
    """Return our logits f64[tokens, vocabulary], or of an encoder the hidden rows f64[tokens, hidden]."""
    decodes = "p" in compiled.dims
    out = compiled.run({"ids": ids}, dims={"p": 0, "m": len(ids)} if decodes else None,
                       session=compiled.session() if decodes else None)
    return np.asarray(out["logits" if decodes else "hidden"], np.float64)


# ---- errors ------------------------------------------------------------------------------------------------------------


def divergence(out: np.ndarray, expected: np.ndarray) -> float:
    """Return KL(softmax expected ‖ softmax out) in nats, the mean over the rows of logits f64[tokens, vocabulary]."""
    log_out, log_expected = (x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for x in (out, expected))
    return float((np.exp(log_expected) * (log_expected - log_out)).sum(-1).mean())


def cosine_distance(out: np.ndarray, expected: np.ndarray) -> float:
    """Return 1 − cosine of the mean rows of hidden f64[tokens, hidden], as half the squared distance of unit vectors."""
    a, b = (x.mean(0) / np.linalg.norm(x.mean(0)) for x in (out, expected))
    return float(((a - b) ** 2).sum() / 2)


def relative_error(out: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(out - expected) / np.linalg.norm(expected))


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


@dataclass(frozen=True)
class Row:
    """Errors of one model, geometric means over texts. ours, theirs: KL or 1 − cosine; *_norm: relative error of all outputs."""

    family: str
    backends: str
    ours: float
    ours_norm: float
    theirs: float
    theirs_norm: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    def __str__(self) -> str:
        return (f"{self.family:12} {self.backends:12} {self.ours:9.2e} {self.theirs:9.2e} {self.ratio:6.2f}  "
                f"{self.ours_norm:9.2e} {self.theirs_norm:9.2e} {self.ours_norm / self.theirs_norm:6.2f}")


@dataclass(frozen=True)
class Texts:
    """Random texts, and what transformers computes for each of them: in float64 (expected), in bfloat16 (theirs)."""

    case: Case
    ids: list[np.ndarray]
    expected: list[np.ndarray]
    theirs: list[np.ndarray]

    def errors(self, outputs: list[np.ndarray]) -> tuple[float, float]:
        """Return (KL or 1 − cosine, relative error) of the outputs, geometric means over texts."""
        distance: Callable[[np.ndarray, np.ndarray], float] = cosine_distance if self.case.encoder else divergence
        pairs = list(zip(outputs, self.expected, strict=True))
        return geometric_mean([distance(*pair) for pair in pairs]), geometric_mean([relative_error(*pair) for pair in pairs])

    def row(self, compiled: CompiledGraph) -> Row:
        outputs = [our_outputs(compiled, ids) for ids in self.ids]
        return Row(self.case.family, "+".join(compiled.plan.backends), *self.errors(outputs), *self.errors(self.theirs))


def texts_of(case: Case, folder: Path, texts: int) -> Texts:
    """Return this many texts, or WITH_EXPERTS times as many, with transformers' outputs for them."""
    count = texts * (WITH_EXPERTS if any("experts" in key for key in case.settings) else 1)
    ids = [random_tokens(case, seed) for seed in range(1, count + 1)]
    models = (transformers_model(case, folder, dtype) for dtype in (torch.float64, torch.bfloat16))
    expected, theirs = ([transformers_outputs(model, text) for text in ids] for model in models)
    return Texts(case, ids, expected, theirs)


def rows_of(case: Case, texts: int) -> list[Row]:
    """Return the errors of one model, a row for each set of backends."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_bf16_folder(case, folder)
        judged = texts_of(case, folder, texts)
        return [judged.row(compiled_for(case, folder, backends)) for backends in BACKENDS]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of families, split by commas (default: all)")
    parser.add_argument("--texts", type=at_least(1), default=16, help=f"per model; {WITH_EXPERTS} times as many for experts")
    parser.add_argument("--json", type=new_file)
    arguments = parser.parse_args()
    only = set(filter(None, arguments.only.split(",")))
    if unknown := only - {*MODELS, *ENCODING}:
        parser.error(f"unknown families {', '.join(sorted(unknown))}: there are {', '.join((*MODELS, *ENCODING))}")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rows = []
    for distance, models in (("KL", MODELS), ("1 - cosine", ENCODING)):
        print(f"{'family':12} {'backends':11} {distance:>10} {'theirs':>9} {'ratio':>6}  {'error':>9} {'theirs':>9} {'ratio':>6}")
        for case in (case for family, case in models.items() if not only or family in only):
            for row in rows_of(case, arguments.texts):
                rows.append(row)
                print(row, flush=True)
    beyond = [row for row in rows if not row.ratio <= LIMIT]
    print(f"{len(rows)} comparisons, {len(beyond)} beyond {LIMIT} × transformers'", *beyond, sep="\n")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) | {"ratio": row.ratio} for row in rows], indent=1))
    return int(bool(beyond) or not rows)


if __name__ == "__main__":
    sys.exit(main())
