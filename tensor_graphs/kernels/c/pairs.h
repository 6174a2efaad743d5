/* pairs.h: products of bfloat16 by the processor's dot products of pairs, vdpbf16ps, and which numbers these lose.
 *
 * Products of bfloat16 are exact in f32, and sums are made in f32. The instruction does twice the multiplications of a fused
 * multiply-add, but reads numbers below 2^-126 as 0 and leaves none behind (Intel, Architecture Instruction Set Extensions Programming
 * Reference, VDPBF16PS). So operands are looked through as they are packed, and sums so small that what is lost could count are made
 * again. */
#ifndef TG_PAIRS_H
#define TG_PAIRS_H

#include "gemm.h"

#if defined(__AVX512BF16__) && VW == 16
#define PAIRS 1
#include <immintrin.h>
/* sum + the products of two pairs, in each lane. */
TG_INLINE vf plus_pairs(vf sum, uint32_t pair, vf pairs) {
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)pair), (__m512bh)pairs);
}
#else
#define PAIRS 0
TG_INLINE vf plus_pairs(vf sum, uint32_t pair, vf pairs) { return (void)pair, (void)pairs, sum; }
#endif

#define INFINITE 0x7f800000u /* the bits of infinity */

/* Of some numbers, as the bits of floats without signs. */
typedef struct extent {
    uint32_t most;  /* the largest */
    uint32_t below; /* one less than the smallest but 0; UINT32_MAX where all are 0 */
} extent;

#define NOTHING ((extent){0, UINT32_MAX})

TG_INLINE extent joined(extent a, extent b) {
    return (extent){a.most > b.most ? a.most : b.most, a.below < b.below ? a.below : b.below};
}

TG_INLINE extent of_bits(uint16_t most, uint16_t below) {
    return (extent){(uint32_t)most << 16, below == UINT16_MAX ? UINT32_MAX : (((uint32_t)below + 1) << 16) - 1};
}

TG_INLINE extent extent_of(const uint16_t *x, int64_t count) {
    uint16_t most = 0, below = UINT16_MAX;
    for (int64_t i = 0; i < count; i++) {
        const uint16_t size = x[i] & 0x7fff, less = (uint16_t)(size - 1); /* 0 becomes the largest */
        most = size > most ? size : most, below = less < below ? less : below;
    }
    return of_bits(most, below);
}

/* Whether nothing was lost: no product of two numbers is below 2^-126, nor is what is left of such that cancel. */
TG_INLINE int nothing_lost(extent row, extent lanes) {
    const float one = float_of(row.below + 1), two = float_of(lanes.below + 1); /* UINT32_MAX + 1: 0, where there is nothing else */
    return row.below == UINT32_MAX || lanes.below == UINT32_MAX || (one >= 0x1p-100f && two >= 0x1p-100f && one * two >= 0x1p-80f);
}

/* What a sum of k products is below if the numbers and products that were lost, 2^-125 of each operand times the largest of the other
 * one, may be more than 2^-26 of it; 2^-15 of one that is rounded to bfloat16. */
TG_INLINE uint32_t least_sum(int64_t k, int64_t out_dtype, extent a, extent b) {
    return bits_of((float)(k + 1) * (out_dtype == TG_BF16 ? 0x1p-109f : 0x1p-98f) * (float_of(a.most) + float_of(b.most) + 2));
}

/* Whether a sum says nothing: it is below `least`, or met an infinity. */
TG_INLINE int says_nothing(float sum, uint32_t least) {
    const uint32_t size = bits_of(sum) & 0x7fffffffu;
    return size < least || size >= INFINITE;
}

#endif
