"""tensor_cores.cuh: what it wraps is known to the compiler, for each architecture that it is for; no GPU is needed."""

from __future__ import annotations

import pytest

from tensor_graphs.codegen.backend_cuda import HEADER
from tensor_graphs.devices import nvrtc

NEWER = """#include "tensor_cores.cuh"
extern "C" __global__ void product(float *y, const __grid_constant__ TensorMaps<1> maps) {{
    extern __shared__ __align__(1024) char tiles[];
    __shared__ __align__(8) uint64_t ready[1];
    const uint32_t at = shared_at(tiles), barrier = shared_at(ready);
    if (threadIdx.x == 0) {{
        barrier_begin(barrier, 1);
        barriers_begun();
        arrive_expecting(barrier, 8192);
        copy_box(at, &maps.at[0], barrier, 0, 0, 0);
    }}
    __syncthreads();
    give_registers<40>();
    take_registers<232>();
    wait_for(barrier, 0);
    float d[{n} / 2];
    const uint32_t a[4] = {{1, 2, 3, 4}};
    products_begin();
    Warpgroup<{kind}, {n}>::add<0, 1>(d, tile_along(at), tile_across(at, 8192), 0);
    Warpgroup<{kind}, {n}>::add<0>(d, a, tile_along(at), 1);
    products_end();
    products_wait<0>();
    hold(d);
    for (int i = 0; i < {n} / 2; i++) y[threadIdx.x * {n} / 2 + i] = d[i];
    arrive(barrier);
    meet(1, 128);
}}
"""
OLDER = """#include "tensor_cores.cuh"
extern "C" __global__ void product(float *y, const uint16_t *x) {{
    __shared__ __align__(16) uint16_t tile[16 * 16];
    copy_16(shared_at(tile + threadIdx.x * 8), x + threadIdx.x * 8, 8);
    copies_end();
    copies_wait<0>();
    uint32_t a[4], b[4];
    four_blocks(a, shared_at(tile + threadIdx.x % 16 * 16));
    four_blocks_across(b, shared_at(tile + threadIdx.x % 16 * 16));
    float d[4] = {{}};
    add_product({kind}(), d, a, b[0], b[1]);
    y[threadIdx.x] = d[0] + two_of({kind}(), d[1], d[2]) + d[3];
}}
"""


@pytest.mark.parametrize("kind", ["Bf16", "F16"])
@pytest.mark.parametrize("n", [8, 16, 32, 64, 96, 128, 192, 256])
def test_products_of_a_warpgroup_and_what_feeds_them_compile(kind: str, n: int) -> None:
    assert nvrtc.compiled(NEWER.format(kind=kind, n=n), "sm_90a", HEADER.parent)[:4] == b"\x7fELF"


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_90a"])
@pytest.mark.parametrize("kind", ["Bf16", "F16"])
def test_products_of_a_warp_compile_for_every_architecture(kind: str, architecture: str) -> None:
    assert nvrtc.compiled(OLDER.format(kind=kind), architecture, HEADER.parent)[:4] == b"\x7fELF"
