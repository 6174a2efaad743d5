/* packed_blocks.h: weights in blocks, 16 rows side by side, in the order in which products read them; and their products with x.
 *
 * A tile is 16 rows: first the codes of all parts, then the scales of all blocks. Of a part there are eight groups of four codes of each
 * row, 64 bytes a group; a byte holds the low bits of a code of group q < 4 and, above them, of group q + 4. The fifth and sixth bits
 * follow, those of several groups in a byte; codes of eight bits fill their bytes. Scales stay as narrow as they are stored:
 * f16 (MXFP4: bf16), in blocks of 256 also a byte for each part. */
#ifndef TG_PACKED_BLOCKS_H
#define TG_PACKED_BLOCKS_H

#include "blocks.h"

enum { LANES = 16 /* rows of a tile */, N = LANES / VW /* registers of one number of each of these rows */, GROUPS = PART / 4 };

typedef int32_t vi __attribute__((vector_size(VW * 4)));
typedef uint8_t vb __attribute__((vector_size(VW * 4)));
typedef uint16_t vp __attribute__((vector_size(VW * 4)));

TG_INLINE int64_t packed_part(const int format) { return code_bits(format) == 8 ? 512 : 256 + 64 * (code_bits(format) - 4); }
TG_INLINE int64_t packed_scales(const int format) { /* of a block */
    return 32 + 32 * has_minimum(format) + (block_parts(format) == 8 ? 32 * 8 : 0);
}
TG_INLINE int64_t tile_bytes(const int format, int64_t k) {
    return k / PART * packed_part(format) + tg_ceil(k / PART / block_parts(format) * packed_scales(format), 64) * 64;
}

/* --- packing --- */

/* Packs a part of all rows: code[lane][q] is four codes of a row. */
TG_INLINE void pack_part(const int format, const uint32_t code[LANES][GROUPS], uint8_t *part) {
    const int bits = code_bits(format);
    uint32_t *to = (uint32_t *)part;
    for (int q = 0; q < (bits == 8 ? GROUPS : GROUPS / 2); q++, to += LANES)
        for (int i = 0; i < LANES; i++)
            to[i] = bits == 8 ? code[i][q] : (code[i][q] & 0x0f0f0f0fu) | (code[i][q + 4] & 0x0f0f0f0fu) << 4;
    for (int i = 0; i < LANES && bits == 5; i++) {
        uint32_t high = 0;
        for (int q = 0; q < GROUPS; q++) high |= (code[i][q] >> 4 & 0x01010101u) << q;
        to[i] = high;
    }
    for (int i = 0; i < 2 * LANES && bits == 6; i++) {
        uint32_t high = 0;
        for (int q = 0; q < 4; q++) high |= (code[i % LANES][i / LANES * 4 + q] >> 4 & 0x03030303u) << 2 * q;
        to[i] = high;
    }
}

/* Packs what scales a block of row `lane` of a tile. */
TG_INLINE void pack_scales(const int format, const uint8_t *block, int lane, uint8_t *to) {
    uint8_t part[16];
    if (format == MXFP4) { /* half of 2^(e - 127), as codes are twice the numbers */
        const uint16_t scale = (uint16_t)(block[0] > 1 ? (block[0] - 1) << 7 : 0x20 << block[0]);
        memcpy(to + 2 * lane, &scale, 2);
        return;
    }
    memcpy(to + 2 * lane, block + (format == Q6_K ? 208 : 0), 2);
    if (has_minimum(format)) memcpy(to + 32 + 2 * lane, block + 2, 2);
    if (block_parts(format) == 1) return;
    if (format == Q6_K) memcpy(part, block + 192, sizeof part);
    else six_bits(block, part);
    for (int j = 0; j < 8; j++) {
        uint8_t *at = to + packed_scales(format) - 256 + 32 * j + lane;
        at[0] = part[format == Q6_K ? 2 * j : j], at[16] = part[format == Q6_K ? 2 * j + 1 : 8 + j];
    }
}

/* Packs `rows` rows, `apart` bytes from each other, as a tile. */
TG_INLINE void pack_tile(const int format, const uint8_t *w, int64_t rows, int64_t apart, int64_t k, uint8_t *to) {
    const int parts = block_parts(format);
    const int64_t of_row = k / PART;
    uint8_t *scale = to + of_row * packed_part(format);
    memset(scale, 0, (size_t)(tile_bytes(format, k) - of_row * packed_part(format)));
    for (int64_t l = 0; l < of_row; l += parts, w += block_bytes(format), scale += packed_scales(format)) {
        for (int64_t i = 0; i < rows; i++) pack_scales(format, w + i * apart, (int)i, scale);
        for (int j = 0; j < parts; j++, to += packed_part(format)) {
            uint32_t code[LANES][GROUPS] = {{0}};
            for (int64_t i = 0; i < rows; i++) {
                bytes of_lane[2];
                codes_of(format, w + i * apart, j, of_lane);
                memcpy(code[i], of_lane, sizeof of_lane);
            }
            pack_part(format, code, to);
        }
    }
}

/* --- reading --- */

TG_INLINE vb b_load(const uint8_t *p) {
    vb b;
    memcpy(&b, p, sizeof b);
    return b;
}
TG_INLINE vb b_splat(uint8_t b) { return b - (vb){0}; }
TG_INLINE vi i_splat(int32_t i) { return i - (vi){0}; }

/* b >> by, to the left where `by` is negative; bits of neighbours are for the caller to mask. */
TG_INLINE vb b_shifted(vb b, const int by) { return by < 0 ? (vb)((vp)b << (uint16_t)-by) : (vb)((vp)b >> (uint16_t)by); }

/* table[b] + offset of numbers b below 16. */
TG_INLINE vb looked_up_bytes(const int format, vb b) {
    const codes table = (codes)((bytes)table_of(format) + (uint8_t)code_offset(format));
#if defined(__AVX512BW__)
    return (vb)_mm512_shuffle_epi8(_mm512_broadcast_i32x4((__m128i)table), (__m512i)b);
#elif defined(__AVX2__)
    return (vb)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256((__m128i)table), (__m256i)b);
#else
    for (int l = 0; l < VW * 4; l++) b[l] = (uint8_t)table[b[l]];
    return b;
#endif
}

/* The codes of group q of rows [r * VW, (r + 1) * VW) of a part: of each row four bytes, numbers + code_offset. */
TG_INLINE vb group_of_codes(const int format, const uint8_t *part, const int q, const int r) {
    if (code_bits(format) == 8) return b_load(part + q * 64 + r * VW * 4);
    const vb low = b_load(part + q % 4 * 64 + r * VW * 4);
    vb code = (q < 4 ? low : b_shifted(low, 4)) & 15;
    if (code_bits(format) == 5) code |= b_shifted(b_load(part + 256 + r * VW * 4), q - 4) & 16;
    if (code_bits(format) == 6) code |= b_shifted(b_load(part + 256 + q / 4 * 64 + r * VW * 4), q % 4 * 2 - 4) & 48;
    return has_table(format) ? looked_up_bytes(format, code) : code;
}

TG_INLINE void halves_at(const int format, const uint8_t *at, vf *to) {
    for (int r = 0; r < N; r++, at += 2 * VW) {
        uint16_t half[VW];
        memcpy(half, at, sizeof half);
        if (format == MXFP4) to[r] = v_load_bf16(half);
#if defined(__AVX512F__)
        else to[r] = (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)half));
#elif defined(__F16C__)
        else to[r] = (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)half));
#else
        else
            for (int l = 0; l < VW; l++) to[r][l] = f32_of_f16(half[l]);
#endif
    }
}

/* What scales part j of a block, of each row: one scale or two, and a minimum. */
typedef struct part_scales {
    vf scale[2][N], minimum[N];
} part_scales;

TG_INLINE void packed_scales_of(const int format, const uint8_t *at, const int j, part_scales *s) {
    halves_at(format, at, s->scale[0]);
    if (has_minimum(format)) halves_at(Q4_1, at + 32, s->minimum);
    if (block_parts(format) == 1) {
        for (int r = 0; r < N && has_minimum(format); r++) s->minimum[r] = -s->minimum[r];
        return;
    }
    vf first[N], second[N];
    at += packed_scales(format) - 256 + 32 * j;
    widen_codes((codes)bytes_at(at), first), widen_codes((codes)bytes_at(at + 16), second);
    for (int r = 0; r < N; r++) {
        if (has_two_scales(format)) s->scale[1][r] = s->scale[0][r] * second[r];
        else s->minimum[r] *= second[r];
        s->scale[0][r] *= first[r];
    }
}

/* --- products --- */

/* sum + the products of four bytes of each lane, which have no sign, and the four bytes of x, which have one. */
TG_INLINE vi dot4(vi sum, vb w, int32_t x) {
#if defined(__AVX512F__) && defined(__AVX512VNNI__)
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, _mm512_set1_epi32(x));
#elif defined(__AVX2__) && !defined(__AVX512F__) && defined(__AVXVNNI__)
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, _mm256_set1_epi32(x));
#elif defined(__AVX2__) /* pairs of 16 bits: sums of two products of bytes may leave them */
    typedef int16_t vs __attribute__((vector_size(VW * 4)));
    const vs both = (vs)i_splat(x), even = (vs)((vp)both << 8) >> 8, odd = both >> 8, first = (vs)((vp)w & 255), second = (vs)((vp)w >> 8);
#if defined(__AVX512BW__)
    return sum + (vi)_mm512_madd_epi16((__m512i)first, (__m512i)even) + (vi)_mm512_madd_epi16((__m512i)second, (__m512i)odd);
#elif !defined(__AVX512F__)
    return sum + (vi)_mm256_madd_epi16((__m256i)first, (__m256i)even) + (vi)_mm256_madd_epi16((__m256i)second, (__m256i)odd);
#endif
#endif
    for (int b = 0; b < 4; b++) sum += (vi)((vu)w >> (8 * b) & 255u) * (int32_t)(int8_t)((uint32_t)x >> (8 * b));
    return sum;
}

TG_INLINE int32_t four_at(const void *at) {
    int32_t four;
    memcpy(&four, at, 4);
    return four;
}

/* How x is rounded: not at all; to integers that are multiples of a scale of each part, of one byte, or of two, high * 256 + low. */
enum { IN_F32, IN_INT8, IN_INT8X2 };

/* The integers of 32 numbers of x, the scale, and what starts a sum of products: minus code_offset times their sum, of each half where
 * halves have scales of their own. */
typedef struct rounded_part {
    int8_t high[PART], low[PART];
    float scale, sum;
    int32_t start[2];
} rounded_part;

TG_INLINE void round_part(const int format, const int how, const float *x, rounded_part *to) {
    const float levels = how == IN_INT8 ? 127.0f : 32639.0f;
    uint32_t most = 0;
    int32_t code[PART], sum[2] = {0, 0};
    for (int l = 0; l < PART; l++) {
        const uint32_t size = bits_of(x[l]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
    const float top = float_of(most), up = top < 1e-30f ? 0x1p90f : 1.0f, by = most ? levels / (top * up) : 0.0f;
    if (most >= 0x7f800000u) { /* the outputs are NaN, and made by their definition */
        memset(to, 0, sizeof *to);
        to->scale = to->sum = float_of(0x7fc00000u);
        return;
    }
    for (int l = 0; l < PART; l++) code[l] = (int32_t)(bits_of(x[l] * up * by + 12582912.0f) - 0x4b400000u);
    for (int l = 0; l < PART; l++) {
        to->high[l] = (int8_t)(how == IN_INT8 ? code[l] : (code[l] + 128) >> 8);
        to->low[l] = (int8_t)code[l];
    }
    for (int l = 0; l < PART; l++) sum[has_two_scales(format) && l >= PART / 2] += code[l];
    to->scale = top / levels;
    to->sum = (float)(sum[0] + sum[1]) * to->scale;
    for (int h = 0; h < 2; h++) to->start[h] = -code_offset(format) * sum[h];
}

/* out[c] += the products of a part with those of `nx` rows of x, which lie `apart` parts from each other. */
TG_INLINE void add_rounded_products(const int format, const int how, const int nx, const uint8_t *part, const part_scales *s,
                                    const rounded_part *x, int64_t apart, vf out[][N]) {
    const int halves = has_two_scales(format) ? 2 : 1;
    for (int h = 0; h < halves; h++) {
        vi low[4][N], high[4][N];
        for (int c = 0; c < nx; c++)
            for (int r = 0; r < N; r++) low[c][r] = i_splat(x[c * apart].start[h]), high[c][r] = (vi){0};
        _Pragma("GCC unroll 8") for (int q = h * GROUPS / 2; q < (h + 1) * GROUPS / halves; q++)
            for (int r = 0; r < N; r++) {
                const vb code = group_of_codes(format, part, q, r);
                for (int c = 0; c < nx; c++) {
                    const rounded_part *p = x + c * apart;
                    if (how == IN_INT8X2) high[c][r] = dot4(high[c][r], code, four_at(p->high + 4 * q));
                    low[c][r] = dot4(low[c][r], code, four_at(p->low + 4 * q));
                }
            }
        for (int c = 0; c < nx; c++)
            for (int r = 0; r < N; r++) {
                const vi sum = how == IN_INT8X2 ? (high[c][r] << 8) + low[c][r] : low[c][r];
                out[c][r] += __builtin_convertvector(sum, vf) * (s->scale[h][r] * v_splat(x[c * apart].scale));
                if (has_minimum(format) && h == 0) out[c][r] -= s->minimum[r] * v_splat(x[c * apart].sum);
            }
    }
}

/* Four numbers of group q of rows [r * VW, (r + 1) * VW) of a part; without `scaled` they are the codes alone. */
TG_INLINE void four_numbers(const int format, const uint8_t *part, const part_scales *s, const int q, const int r, const int scaled, vf *w) {
#if defined(__AVX512F__)
    const vi low = code_bits(format) == 4 ? (vi)b_load(part + q % 4 * 64) : (vi){0};
#endif
    const vi code = (vi)(group_of_codes(format, part, q, r) - (uint8_t)code_offset(format));
    for (int b = 0; b < 4; b++) {
#if defined(__AVX512F__)
        if (code_bits(format) == 4) {
            vf table;
            widen_codes(table_of(format), &table);
            w[b] = (vf)_mm512_permutexvar_ps((__m512i)((vu)low >> (8 * b + q / 4 * 4)), (__m512)table);
        } else
#endif
            w[b] = __builtin_convertvector((vi)((vu)code << (24 - 8 * b)) >> 24, vf);
        if (scaled) w[b] *= s->scale[has_two_scales(format) ? q / 4 : 0][r];
        if (has_minimum(format)) w[b] -= s->minimum[r];
    }
}

/* out[c] += the products of a part with 32 numbers of `nx` rows of x, which lie `apart` numbers from each other. */
TG_INLINE void add_products(const int format, const int nx, const uint8_t *part, const part_scales *s, const float *x, int64_t apart,
                            vf out[][N]) {
    const int scaled = has_minimum(format) || has_two_scales(format);
    for (int r = 0; r < N; r++) {
        vf sum[4][4];
        for (int c = 0; c < nx; c++)
            for (int b = 0; b < 4; b++) sum[c][b] = (vf){0};
        _Pragma("GCC unroll 8") for (int q = 0; q < GROUPS; q++) {
            vf w[4];
            four_numbers(format, part, s, q, r, scaled, w);
            for (int b = 0; b < 4; b++)
                for (int c = 0; c < nx; c++) sum[c][b] += w[b] * v_splat(x[c * apart + 4 * q + b]);
        }
        for (int c = 0; c < nx; c++) {
            const vf total = (sum[c][0] + sum[c][1]) + (sum[c][2] + sum[c][3]);
            out[c][r] += scaled ? total : total * s->scale[0][r];
        }
    }
}

#endif
