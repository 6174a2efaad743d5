/* blocks.h: the numbers in blocks of bytes, the formats of language/composites/blocks.py, in the order of its table.
 *
 * A part is 32 numbers, code * scale - minimum: 32 codes of one byte, a scale for each 16 of them. Only what differs between formats is
 * here, as functions of a format that is a constant wherever they are used. */
#ifndef TG_BLOCKS_H
#define TG_BLOCKS_H

#include "vec.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, MXFP4, IQ4_NL, FORMATS };
enum { PART = 32 };

typedef int8_t codes __attribute__((vector_size(16)));
typedef uint8_t bytes __attribute__((vector_size(16)));
typedef uint32_t v4u __attribute__((vector_size(16)));

TG_INLINE int block_parts(const int format) { return format == Q4_K || format == Q5_K || format == Q6_K ? 8 : 1; }
TG_INLINE int64_t block_bytes(const int format) {
    static const uint8_t size[FORMATS] = {34, 18, 20, 22, 24, 144, 176, 210, 17, 18};
    return size[format];
}
/* Whether a part has a minimum, and two scales. */
TG_INLINE int has_minimum(const int format) { return format == Q4_1 || format == Q5_1 || format == Q4_K || format == Q5_K; }
TG_INLINE int has_two_scales(const int format) { return format == Q6_K; }

TG_INLINE uint32_t word_at(const uint8_t *at) {
    uint32_t word;
    memcpy(&word, at, 4);
    return word;
}

TG_INLINE bytes bytes_at(const uint8_t *at) {
    bytes b;
    memcpy(&b, at, sizeof b);
    return b;
}

/* Eight scales, then eight minima, of six bits each: the low bits of the last four are in the last four bytes. */
TG_INLINE void six_bits(const uint8_t *at, uint8_t *to) {
    const uint32_t low = word_at(at + 4), least = word_at(at + 8), high = word_at(at + 12);
    const uint32_t packed[4] = {low & 0x3f3f3f3fu, (high & 0x0f0f0f0fu) | (low >> 2 & 0x30303030u), least & 0x3f3f3f3fu,
                                (high >> 4 & 0x0f0f0f0fu) | (least >> 2 & 0x30303030u)};
    memcpy(to, packed, sizeof packed);
}

/* table[b], of numbers b below 16. */
TG_INLINE codes looked_up(codes table, bytes b) {
#if defined(__SSSE3__)
    return (codes)_mm_shuffle_epi8((__m128i)table, (__m128i)b);
#else
    codes out;
    for (int l = 0; l < 16; l++) out[l] = table[b[l]];
    return out;
#endif
}

/* 16 where the bit of a lane is set in the lower half of `bits`, else 0. */
TG_INLINE bytes fifth_bits(uint32_t bits) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return (bytes)_mm_maskz_set1_epi8((__mmask16)bits, 16);
#else
    const bytes mask = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const codes twice = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    const bytes both = (bytes)looked_up((codes)(v4u){bits}, (bytes)twice);
    return (bytes)((both & mask) == mask) & 16;
#endif
}

/* b >> by; to the left where `by` is negative. Bits of neighbours are for the caller to mask: no processor shifts bytes. */
TG_INLINE bytes shifted(bytes b, const int by) {
    typedef uint16_t pairs __attribute__((vector_size(16)));
    return by < 0 ? (bytes)((pairs)b << (uint16_t)-by) : (bytes)((pairs)b >> (uint16_t)by);
}

/* The numbers that codes of four bits stand for, if these are no numbers themselves. */
TG_INLINE int has_table(const int format) { return format == MXFP4 || format == IQ4_NL; }
TG_INLINE codes table_of(const int format) {
    const codes e2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const codes nonlinear = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    const codes plain = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return format == MXFP4 ? e2m1 : format == IQ4_NL ? nonlinear : format == Q4_0 ? plain - 8 : plain;
}

/* Bits of a code, and how much a number is less than its code (of a table: than its entry as a byte). */
TG_INLINE int code_bits(const int format) {
    return format == Q8_0 ? 8 : format == Q6_K ? 6 : format == Q5_0 || format == Q5_1 || format == Q5_K ? 5 : 4;
}
TG_INLINE int code_offset(const int format) {
    static const uint8_t offset[FORMATS] = {128, 8, 0, 16, 0, 0, 0, 32, 12, 128};
    return offset[format];
}

/* The codes of part j of a block, from 0 on: 16, and 16 more. */
TG_INLINE void codes_of(const int format, const uint8_t *block, const int j, bytes *out) {
    if (format == Q8_0) {
        out[0] = bytes_at(block + 2) ^ 128, out[1] = bytes_at(block + 18) ^ 128;
    } else if (format == Q4_K || format == Q5_K) { /* 32 bytes hold the low bits of two parts, bit j of 32 others the fifth ones */
        const uint8_t *at = block + (format == Q4_K ? 16 : 48) + j / 2 * 32;
        for (int h = 0; h < 2; h++) {
            const bytes b = bytes_at(at + 16 * h);
            out[h] = (j % 2 ? shifted(b, 4) : b) & 15;
            if (format == Q5_K) out[h] |= shifted(bytes_at(block + 16 + 16 * h), j - 4) & 16;
        }
    } else if (format == Q6_K) { /* of 128 numbers: 64 bytes of low bits of parts 0 and 2, 1 and 3; 32 bytes, two bits of each */
        const uint8_t *low = block + j / 4 * 64 + j % 2 * 32, *high = block + 128 + j / 4 * 32;
        for (int h = 0; h < 2; h++) {
            const bytes l = bytes_at(low + 16 * h), b = shifted(bytes_at(high + 16 * h), j % 4 * 2 - 4) & 48;
            out[h] = ((j % 4 > 1 ? shifted(l, 4) : l) & 15) | b;
        }
    } else {
        const bytes b = bytes_at(block + block_bytes(format) - 16), nibbles[2] = {b & 15, shifted(b, 4) & 15};
        const int fifth = code_bits(format) == 5;
        const uint32_t high = fifth ? word_at(block + block_bytes(format) - 20) : 0;
        for (int h = 0; h < 2; h++) out[h] = fifth ? nibbles[h] | fifth_bits(high >> 16 * h) : nibbles[h];
    }
}

/* 16 codes as floats. */
TG_INLINE void widen_codes(codes code, vf *to) {
#if defined(__AVX512F__)
    to[0] = (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)code));
#elif defined(__AVX2__)
    to[0] = (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32((__m128i)code));
    to[1] = (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128((__m128i)code, 8)));
#else
    float wide[16];
    for (int l = 0; l < 16; l++) wide[l] = (float)code[l];
    for (int v = 0; v < 16 / VW; v++) to[v] = v_load(wide + v * VW);
#endif
}

#endif
