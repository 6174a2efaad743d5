"""wrong_cuda_kernels: CUDA kernels that are wrong in the ways in which such kernels are, each a right one with a few words changed.

FORMS are the right ones: a graph, a text, a launch. A row of WRONG names the form that it spoils, what is put in the place of what,
and with which statuses it may end. A worker imports this module by name, and only there all of them are registered.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import Kernel, Spec
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.node import apply
from tests.fake import cuda as cuda  # is the GPU of a worker where its variable says so


@dataclass(frozen=True)
class Form:
    """A right kernel: the graph that it computes, its text with KERNEL in the place of its name, and how it is launched. emulated:
    whether a C++ compiler of the host understands the text."""

    name: str
    graph: tg.Graph
    text: str
    launch: Mapping[str, Any]
    dtype: str = "f32"
    emulated: bool = True


@dataclass(frozen=True)
class Row:
    """A wrong kernel. statuses: with one of which it ends; said: a pattern that the verdict's log matches; changes: (what, by what)
    in its form's text; launch: what is launched otherwise; timeout: of its worker, in seconds; emulated: whether it is as wrong
    where threads take turns."""

    name: str
    form: str
    statuses: tuple[str, ...]
    said: str = ""
    changes: tuple[tuple[str, str], ...] = ()
    launch: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 60.0
    emulated: bool = True


FORMS: dict[str, Form] = {}
WRONG: list[Row] = []

N = tg.dim("n", 1, 4096)
FEW = tg.dim("n", 1, 96)
"""rows of which each is a block"""

HANGS = 12.0
"""seconds after which a kernel counts as hanging here: a context and a compilation have to fit in"""


def elements(spec: Spec) -> list[Dim]:
    return [math.prod(spec.outputs[0].shape)]


def blocks_of(threads: int) -> Any:
    def grid(spec: Spec) -> Dim:
        return d.ceil_div(math.prod(spec.outputs[0].shape), threads)

    return grid


def floats(name: str, *shape: Dim, dtype: Any = tg.f32) -> Any:
    return tg.input(name, shape, dtype)


def form(name: str, graph: tg.Graph, text: str, **given: Any) -> None:
    of_form = {key: given.pop(key) for key in ("dtype", "emulated") if key in given}
    FORMS[name] = Form(name, graph, text, given, **of_form)


def wrong(name: str, of: str, status: str, said: str = "", *changes: tuple[str, str], **options: Any) -> None:
    for before, _ in changes:
        assert FORMS[of].text.count(before) == 1, (name, before)
    own = {key: options.pop(key) for key in ("timeout", "emulated") if key in options}
    WRONG.append(Row(name, of, tuple(status.split("|")), said, changes, options, **own))


# ---- right ones ----

form("gate", tg.graph(tg.relu(floats("x", N, 24)) * floats("y", N, 24)), """
extern "C" __global__ void KERNEL(float *out, const float *x, const float *y, const long long *ints) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < ints[0]) out[i] = (x[i] != x[i] || x[i] > 0 ? x[i] : 0) * y[i];
}""", block=256, ints=elements, grid=blocks_of(256))

form("packs", tg.graph(floats("x", N, 32) * floats("y", N, 32) + floats("x", N, 32)), """
struct __align__(16) Four { float each[4]; };
extern "C" __global__ void KERNEL(float *out, const float *x, const float *y, const long long *ints) {
    const long long i = 4 * (blockIdx.x * 64LL + threadIdx.x);
    if (i >= ints[0]) return;
    const bool aligned = ((unsigned long long)out | (unsigned long long)x | (unsigned long long)y) % 16 == 0;
    if (aligned) {
        const Four a = *(const Four *)(x + i), b = *(const Four *)(y + i);
        Four made;
        for (int k = 0; k < 4; k++) made.each[k] = a.each[k] * b.each[k] + a.each[k];
        *(Four *)(out + i) = made;
    } else {
        for (int k = 0; k < 4; k++) out[i + k] = x[i + k] * y[i + k] + x[i + k];
    }
}""", block=64, ints=elements, grid=blocks_of(256))

TREE = """
    for (int step = 64; step > 0; step /= 2) {
        if (thread < step) parts[thread] = parts[thread] + parts[thread + step];
        /* each */ __syncthreads();
    }
    if (thread == 0) out[blockIdx.x] = parts[0];
}"""

form("rows", tg.graph(tg.sum(floats("x", FEW, 200) * floats("y", FEW, 200), axis=1)), """
extern "C" __global__ void KERNEL(float *out, const float *x, const float *y) {
    __shared__ float parts[128];
    const int thread = threadIdx.x;
    const long long row = blockIdx.x * 200LL;
    float sum = 0;
    for (int i = thread; i < 200; i += 128) sum += x[row + i] * y[row + i];
    parts[thread] = sum;
    /* first */ __syncthreads();""" + TREE, block=128, grid=blocks_of(1))

form("peaks", tg.graph(tg.max(floats("x", FEW, 200) * floats("y", FEW, 200), axis=1)), """
extern "C" __global__ void KERNEL(float *out, const float *x, const float *y) {
    __shared__ float parts[128];
    const int thread = threadIdx.x;
    const long long row = blockIdx.x * 200LL;
    float best = x[row + thread] * y[row + thread];
    for (int i = thread + 128; i < 200; i += 128) {
        const float other = x[row + i] * y[row + i];
        best = best != best || best > other ? best : other;
    }
    parts[thread] = best;
    __syncthreads();""" + TREE.replace("parts[thread] + parts[thread + step]",
                                      "parts[thread] != parts[thread] || parts[thread] > parts[thread + step] "
                                      "? parts[thread] : parts[thread + step]"), block=128, grid=blocks_of(1))

form("turned", tg.graph(tg.permute(floats("x", FEW, 40), (1, 0)) + floats("y", 40, FEW)), """
extern "C" __global__ void KERNEL(float *out, const float *x, const float *y, const long long *ints) {
    __shared__ float tile[32][33];
    const long long n = ints[0], across = (n + 31) / 32, row = blockIdx.x % across * 32, column = blockIdx.x / across * 32;
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32;
    for (int r = first; r < 32; r += 8)
        if (row + r < n && column + lane < 40) tile[r][lane] = x[(row + r) * 40 + column + lane];
    __syncthreads();
    for (int c = first; c < 32; c += 8) {
        const long long at = (column + c) * n + row + lane;
        if (column + c < 40 && row + lane < n) out[at] = tile[lane][c] + y[at];
    }
}""", block=256, ints=lambda spec: [spec.inputs[0].shape[0]], grid=lambda spec: 2 * d.ceil_div(spec.inputs[0].shape[0], 32))

form("sums", tg.graph(tg.sum(floats("x", N, 24) * floats("x", N, 24), axis=0)), """
__device__ unsigned arrived;
extern "C" __global__ void KERNEL(float *out, const float *x, const long long *ints, float *parts) {
    __shared__ int last;
    const int c = threadIdx.x;
    const long long first = blockIdx.x * 16LL;
    float sum = 0;
    for (long long r = first; c < 24 && r < first + 16 && r < ints[0]; r++) sum += x[r * 24 + c] * x[r * 24 + c];
    if (c < 24) parts[blockIdx.x * 24 + c] = sum;
    __threadfence();
    __syncthreads();
    if (c == 0) {
        last = atomicAdd(&arrived, 1u) == gridDim.x - 1;
        if (last) arrived = 0;
    }
    __syncthreads();
    if (!last || c >= 24) return;
    __threadfence();
    float all = 0;
    for (int b = 0; b < gridDim.x; b++) all += ((volatile float *)parts)[b * 24 + c];
    out[c] = all;
}""", block=32, ints=lambda spec: [spec.inputs[0].shape[0]], grid=lambda spec: d.ceil_div(spec.inputs[0].shape[0], 16),
     scratch=lambda spec: [96 * d.ceil_div(spec.inputs[0].shape[0], 16)])

form("ahead", tg.graph(tg.sum(floats("x", FEW, 128) * floats("y", FEW, 128), axis=1)), """
extern "C" __global__ void KERNEL(float *out, const float *x, const float *y) {
    __shared__ float row[128], parts[128];
    const int thread = threadIdx.x;
    const float *from = x + blockIdx.x * 128LL + thread;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((unsigned)__cvta_generic_to_shared(row + thread)), "l"(from));
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    /* first */ __syncthreads();
    parts[thread] = row[127 - thread] * y[blockIdx.x * 128LL + 127 - thread];
    __syncthreads();""" + TREE, block=128, grid=blocks_of(1), emulated=False)

form("halves", tg.graph(tg.relu(floats("x", N, 25, dtype=tg.bf16)) * floats("y", N, 25, dtype=tg.bf16)), """
#include "numbers.cuh"
extern "C" __global__ void KERNEL(uint16_t *out, const uint16_t *x, const uint16_t *y, const int64_t *ints) {
    const int64_t i = 2 * (blockIdx.x * 128LL + threadIdx.x);
    for (int64_t k = i; k < i + 2 && k < ints[0]; k++) {
        const float a = bf16_to_f32(x[k]);
        out[k] = bf16_of_f32((a != a || a > 0 ? a : 0) * bf16_to_f32(y[k]));
    }
}""", block=128, ints=elements, grid=blocks_of(256), dtype="bf16")

form("integers", tg.graph(floats("x", N, 24, dtype=tg.i32) * (floats("y", N, 24, dtype=tg.i32) + 1)), """
extern "C" __global__ void KERNEL(int *out, const int *x, const int *y, const long long *ints) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < ints[0]) out[i] = (int)((unsigned)x[i] * ((unsigned)y[i] + 1u));
}""", block=256, ints=elements, grid=blocks_of(256), dtype="i32")

# ---- too little work, or other work ----

NUMERICAL = "INCORRECT_NUMERICAL"
NOT_OVER_WRITTEN = "not written|nan instead of"
"""What lay there before is a NaN: a processor keeps its bits when something is added to it, a GPU makes them its own NaN's."""

WRITE = "if (i < ints[0]) out[i] = (x[i] != x[i] || x[i] > 0 ? x[i] : 0) * y[i];"
"""of gate"""


def instead(*lines: str) -> tuple[str, str]:
    return WRITE, "\n    ".join(lines)


wrong("leaves_the_last_element", "gate", NUMERICAL, "not written", ("i < ints[0]", "i < ints[0] - 1"))
wrong("launches_a_block_too_few", "gate", NUMERICAL, "not written", grid=lambda spec: math.prod(spec.outputs[0].shape) // 256)
wrong("launches_one_block", "gate", NUMERICAL, "not written", grid=1)
wrong("launches_half_the_threads", "gate", NUMERICAL, "not written", block=128)
wrong("one_block_is_wrong", "gate", NUMERICAL, "instead of",
      instead("if (i < ints[0]) out[i] = (x[i] != x[i] || x[i] > 0 ? x[i] : 0) * (blockIdx.x == 5 ? 0 : y[i]);"))
wrong("only_the_last_block_is_wrong", "gate", NUMERICAL, "instead of",
      instead(WRITE, "if (blockIdx.x == gridDim.x - 1 && gridDim.x > 1 && threadIdx.x == 0) out[i] = 1e9f;"))
wrong("an_index_of_16_bits", "gate", NUMERICAL, "not written",
      ("const long long i =", "const unsigned short i ="))
wrong("forgets_nan", "gate", NUMERICAL, "instead of", ("(x[i] != x[i] || x[i] > 0 ? x[i] : 0)", "fmaxf(x[i], 0)"))
wrong("an_odd_element_is_left", "halves", NUMERICAL, "not written",
      ("k < i + 2 && k < ints[0]", "k < i + 2 && i + 1 < ints[0]"))
wrong("takes_bf16_for_f16", "halves", NUMERICAL, "instead of", ("bf16_to_f32(y[k])", "f32_of_f16(y[k])"))
wrong("integers_as_floats", "integers", NUMERICAL, "instead of",
      ("(int)((unsigned)x[i] * ((unsigned)y[i] + 1u))", "(int)((float)x[i] * ((float)y[i] + 1))"))
wrong("reads_into_the_next_row", "rows", NUMERICAL, "instead of", ("i < 200;", "i < 256;"))
wrong("half_of_the_warps_count", "rows", NUMERICAL, "instead of", ("step = 64", "step = 32"))
wrong("a_tile_without_a_tail", "turned", f"{NUMERICAL}|INCORRECT_SHAPE", "",
      ("column + c < 40 && row + lane < n", "column + c < 40"))

# ---- where it may not write ----

wrong("writes_behind_its_output", "gate", "INCORRECT_SHAPE", "the memory of cuda:0, between its buffers", ("i < ints[0]", "true"))
wrong("writes_before_its_output", "gate", "INCORRECT_SHAPE", "the memory of cuda:0, between its buffers",
      instead(WRITE, "if (i == 0) out[-1] = 0;"))
wrong("writes_a_tile_away", "gate", "INCORRECT_SHAPE", "the memory of cuda:0, between its buffers",
      instead(WRITE, "if (i == 0) out[ints[0] + 4000] = 0;"))
wrong("writes_over_its_operand", "gate", "MUTATED_INPUT", "an operand was changed",
      instead(WRITE, "if (i < ints[0]) ((float *)x)[i] = 0;"))
wrong("writes_over_its_sizes", "gate", f"MUTATED_INPUT|{NUMERICAL}", "",
      instead(WRITE, "if (i == ints[0] - 1) ((long long *)ints)[0] = 1;"))
wrong("writes_behind_its_scratch", "sums", "INCORRECT_SHAPE", "the scratch of cuda:0, beside its pieces",
      ("parts[blockIdx.x * 24 + c] = sum", "parts[blockIdx.x * 24 + 24 + c] = sum"),
      ("parts)[b * 24 + c]", "parts)[b * 24 + 24 + c]"))

# ---- what it finds ----

wrong("writes_only_once", "gate", NUMERICAL, "not written",
      ('extern "C"', '__device__ unsigned launches;\nextern "C"'),
      instead("const bool first = ((volatile unsigned &)launches) == 0;", WRITE.replace("(i < ints[0])", "(first && i < ints[0])"),
              "__syncthreads();", "if (i == ints[0] - 1) atomicAdd(&launches, 1u);"))
wrong("keeps_its_first_answer", "gate", NUMERICAL, "instead of",
      ('extern "C"', '__device__ float kept[1 << 18];\nextern "C"'),
      instead("if (i < ints[0] && kept[i] == 0) kept[i] = (x[i] != x[i] || x[i] > 0 ? x[i] : 0) * y[i];",
              "if (i < ints[0]) out[i] = kept[i];"))
wrong("tires_after_100_launches", "gate", NUMERICAL, "instead of",
      ('extern "C"', '__device__ unsigned launches;\nextern "C"'),
      instead("const unsigned before = (volatile unsigned &)launches;", WRITE,
              "if (i < ints[0] && before > 100) out[i] = 0;", "if (i == ints[0] - 1) atomicAdd(&launches, 1u);"))
wrong("counts_on_zeroed_shared_memory", "rows", NUMERICAL, NOT_OVER_WRITTEN, ("parts[thread] = sum;", "parts[thread] += sum;"))
wrong("takes_the_largest_of_what_shared_memory_holds", "peaks", NUMERICAL, "instead of",
      ("parts[thread] = best;", "parts[thread] = parts[thread] > best ? parts[thread] : best;"))
wrong("adds_to_what_the_output_holds", "sums", NUMERICAL, NOT_OVER_WRITTEN, ("out[c] = all;", "out[c] += all;"))
wrong("adds_to_what_scratch_holds", "sums", NUMERICAL, NOT_OVER_WRITTEN,
      ("parts[blockIdx.x * 24 + c] = sum", "parts[blockIdx.x * 24 + c] += sum"))
wrong("counts_blocks_without_beginning_anew", "sums", NUMERICAL, NOT_OVER_WRITTEN, ("if (last) arrived = 0;", ""))

# ---- who waits for whom ----

RACE = """if (blockIdx.x == 0 && c < 24) out[c] = 0;
    __threadfence();
    if (c < 24) { const float before = ((volatile float *)out)[c]; __nanosleep(500); out[c] = before + sum; }"""

wrong("no_barrier_before_the_sum", "rows", NUMERICAL, "instead of", ("/* first */ __syncthreads();", ""))
wrong("no_barrier_in_the_sum", "rows", NUMERICAL, "instead of",
      ("/* each */ __syncthreads();", "if (thread / 32 == 0) __nanosleep(100);"),
      ("if (thread < step)", "if (thread / 32 == 1) __nanosleep(2000);\n        if (thread < step)"))
wrong("no_barrier_in_a_tile", "turned", NUMERICAL, "instead of", ("__syncthreads();", ""))
wrong("the_first_block_sums", "sums", NUMERICAL, NOT_OVER_WRITTEN,
      ("== gridDim.x - 1", "% gridDim.x == 0"), ("if (last) arrived = 0;", ""))
wrong("blocks_race_over_a_sum", "sums", NUMERICAL, "instead of",
      ("if (c < 24) parts[blockIdx.x * 24 + c] = sum;", RACE), ("out[c] = all;", ""), emulated=False)
wrong("a_copy_is_not_waited_for", "ahead", NUMERICAL, "instead of", ("cp.async.wait_group 0;", ""))
wrong("waits_for_all_copies_but_the_last", "ahead", NUMERICAL, "instead of", ("cp.async.wait_group 0;", "cp.async.wait_group 1;"))
wrong("each_waits_for_its_own_copy_alone", "ahead", NUMERICAL, "instead of",
      ("/* first */ __syncthreads();", ""),
      ("const float *from", "if (thread / 32 == 3) __nanosleep(2000);\n    const float *from"))

# ---- it does not end, or not well ----

wrong("never_ends", "gate", "TIMEOUT", "no answer",
      instead("while (((volatile const long long *)ints)[0] >= 0) {}", WRITE), timeout=HANGS)
wrong("never_ends_at_one_row", "gate", "TIMEOUT", "no answer",
      instead("while (ints[0] == 24 && ((volatile const long long *)ints)[0] >= 0) {}", WRITE), timeout=HANGS)
wrong("waits_for_a_block_that_nobody_launched", "gate", "TIMEOUT", "no answer",
      ('extern "C"', '__device__ unsigned there;\nextern "C"'),
      instead("if (threadIdx.x == 0) atomicAdd(&there, 1u);", "while ((volatile unsigned &)there <= gridDim.x) {}", WRITE),
      timeout=HANGS)
wrong("writes_at_address_8", "gate", "RUNTIME_ERROR", "is lost", instead(WRITE, "if (i == 0) *(volatile float *)8 = 1;"))
wrong("writes_a_terabyte_away", "gate", "RUNTIME_ERROR", "is lost", instead(WRITE, "if (i == 0) out[1LL << 40] = 1;"))
wrong("traps", "gate", "RUNTIME_ERROR", "is lost", instead(WRITE, 'if (i == 0) asm volatile("trap;");'), emulated=False)
wrong("faults_at_one_row", "gate", "RUNTIME_ERROR", "is lost", instead(WRITE, "if (ints[0] == 24) *(volatile float *)8 = 1;"))
wrong("takes_every_address_for_aligned", "packs", "RUNTIME_ERROR", "is lost", ("if (aligned)", "if (true)"))
wrong("asks_for_more_shared_memory_than_there_is", "gate", "RUNTIME_ERROR", "asking for shared memory failed", shared=400 << 10)
wrong("launches_more_blocks_than_there_can_be", "gate", "RUNTIME_ERROR", "a launch failed", grid=1 << 31)


# ---- as kernels ----

def declare(name: str, form: Form, changes: tuple[tuple[str, str], ...] = (), launch: Mapping[str, Any] | None = None) -> Kernel:
    """A form, spoiled or not, as a kernel of its graph; it is registered. Its name is `cuda.` and this one."""
    text = form.text
    for before, after in changes:
        text = text.replace(before, after)
    return tg.cuda_kernel(form.graph, source=text.replace("KERNEL", name), entry=name, dtypes=[form.dtype],
                          **{**form.launch, **(launch or {})})


def right(name: str) -> Kernel:
    return declare(f"right_{name}", FORMS[name])


def spoiled(row: Row) -> Kernel:
    return declare(row.name, FORMS[row.form], row.changes, row.launch)


def signature_of_form(name: str, kernel: Kernel) -> Signature:
    """What a kernel of this form computes, at any size."""
    assert kernel.composite is not None
    return signature_of(apply(kernel.composite, list(FORMS[name].graph.inputs.values())))


if os.environ.get("TENSOR_GRAPHS_WORKER"):                          # where a kernel of these is judged, and nowhere else
    for each in FORMS:
        right(each)
    for one in WRONG:
        spoiled(one)
