"""mutated_onnx: ONNX files with faults. Each is imported, or refused with one error that names the file, the fault and a fix.

    python benchmarks/mutated_onnx.py                       # 300 files of seed 0, 10 seconds
    python benchmarks/mutated_onnx.py --count 30 --seed 7

The files are those of the onnx package's own tests (its sets "light", "pytorch-converted" and "simple"), changed by one fault each:
cut off, bytes changed, a tensor renamed, an op, a dtype or an attribute exchanged, sizes of 2^40, a cycle, data that is missing,
an unknown domain, functions that call each other. Prints counts and the largest memory; exits with 1 where anything else than an
error of the package is raised, where its text lacks a fix, where a file is left behind, or where memory grows by more than 64 MB.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

import tensor_graphs as tg

MOST_MEMORY = 64 << 20
"""bytes that one import may take"""

Fault = Callable[[Any, random.Random], None]


def rename(model: Any, rng: random.Random) -> None:
    rng.choice(model.graph.node).input[:] = ["nowhere"]


def cycle(model: Any, rng: random.Random) -> None:
    node = rng.choice(model.graph.node)
    node.input[:] = [model.graph.node[-1].output[0], *node.input[1:]]


def twice(model: Any, rng: random.Random) -> None:
    rng.choice(model.graph.node).output[0] = model.graph.node[0].output[0]


def exchange(model: Any, rng: random.Random) -> None:
    rng.choice(model.graph.node).op_type = rng.choice([s.name for s in onnx.defs.get_all_schemas()])


def domain(model: Any, rng: random.Random) -> None:
    rng.choice(model.graph.node).domain = rng.choice(["com.nobody", "ai.onnx.ml", "ai.onnx.preview.training"])


def attribute(model: Any, rng: random.Random) -> None:
    node = rng.choice(model.graph.node)
    name = rng.choice([a.name for a in node.attribute] or ["axis"])
    others = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    value: Any = rng.choice([-7, 1 << 40, [1 << 40] * 2, [], "text", 1.5, [0, 0, 0, 0]])
    kind = onnx.AttributeProto.INTS if value == [] else None
    node.attribute.extend([*others, helper.make_attribute(name, value, attr_type=kind)])


def huge(model: Any, rng: random.Random) -> None:
    tensors = list(model.graph.initializer)
    if tensors and rng.random() < 0.5:
        rng.choice(tensors).dims[:] = [1 << 40]
    else:
        rng.choice(model.graph.input).type.tensor_type.shape.dim.add(dim_value=1 << 40)


def dtype(model: Any, rng: random.Random) -> None:
    rng.choice(model.graph.input).type.tensor_type.elem_type = rng.choice([0, 6, 7, 8, 9, 10, 11, 14, 23, 99])


def external(model: Any, rng: random.Random) -> None:
    tensor = rng.choice(model.graph.initializer or [model.graph.initializer.add(name="w", data_type=1, dims=[64])])
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=rng.choice(["weights.bin", "../weights.bin", "/dev/zero", ""]))


def functions(model: Any, rng: random.Random) -> None:
    depth = rng.choice([2, 40, 400])
    for level in range(depth):
        called = f"f{level + 1}" if level + 1 < depth else rng.choice(["f0", "Nothing"])
        inner = helper.make_node(called, ["x"], ["y"], domain="mine")
        model.functions.append(helper.make_function("mine", f"f{level}", ["x"], ["y"], [inner],
                                                    [helper.make_opsetid("mine", 1)]))
    model.opset_import.append(helper.make_opsetid("mine", 1))
    node = rng.choice(model.graph.node)
    node.op_type, node.domain = "f0", "mine"
    node.ClearField("attribute")


FAULTS: tuple[Fault, ...] = (rename, cycle, twice, exchange, domain, attribute, huge, dtype, external, functions)


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[:rng.randrange(1, len(data))]


def bytes_changed(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 8)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def files(most: int) -> list[Path]:
    """Return models of the onnx package's tests that are no larger than this."""
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    models = [*data.glob("light/*.onnx"), *data.glob("pytorch-converted/*/model.onnx"), *data.glob("simple/*/model.onnx")]
    return sorted(file for file in models if file.stat().st_size <= most)


def mutants(count: int, seed: int, most: int = 1 << 20) -> Sequence[tuple[str, bytes]]:
    """Return (the fault and the file, the bytes) of this many changed files."""
    rng, sources, out = random.Random(seed), files(most), []
    for number in range(count):
        source = rng.choice(sources)
        if number % 4 == 0:
            change = rng.choice([cut, bytes_changed])
            out.append((f"{change.__name__}: {source.parent.name}", change(source.read_bytes(), rng)))
            continue
        fault, model = rng.choice(FAULTS), onnx.load(source, load_external_data=False)
        fault(model, rng)
        out.append((f"{fault.__name__}: {source.parent.name}", model.SerializeToString()))
    return out


def why_wrong(data: bytes, folder: Path, counts: Counter[str]) -> str:
    """Return what is wrong with the import of a file; "" where it is imported, or refused as it should be."""
    file = folder / "m.onnx"
    file.write_bytes(data)
    tracemalloc.start()
    try:
        tg.from_onnx(file)
        counts["imported"] += 1
    except tg.TensorGraphsError as e:
        counts[type(e).__name__] += 1
        if "\n  fix: " not in str(e) or str(file) not in str(e) or len(str(e)) > 1000:
            return f"an error without a file and a fix, or a long one: {e}"
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    finally:
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    counts["largest memory [MB]"] = max(counts["largest memory [MB]"], memory >> 20)
    left = [path.name for path in folder.iterdir() if path != file]
    return f"{memory >> 20} MB" if memory > MOST_MEMORY else f"it left {left}" if left else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    how = parser.parse_args()
    counts, wrong = Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        for name, data in mutants(how.count, how.seed):
            why = why_wrong(data, Path(folder), counts)
            if why:
                wrong += 1
                print(f"{name}: {why}")
    print(f"{how.count} files of seed {how.seed}: {', '.join(f'{count} {kind}' for kind, count in counts.items())}; {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
