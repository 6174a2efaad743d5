/* narrow_linear.c: out[n,m] = x[n,k] . w[m,k]^T + bias[m] of bfloat16 x and w, by the processor's dot products of pairs, vdpbf16ps.
 *
 * Products of bfloat16 are exact in f32, and sums are made in f32; they are the result, or are rounded to one of bfloat16. The
 * instruction does twice the multiplications of a fused multiply-add, but reads numbers below 2^-126 as 0 and leaves none behind
 * (Intel, Architecture Instruction Set Extensions Programming Reference, VDPBF16PS). So tiles that have such operands, or sums so small
 * that what is lost counts, are computed with the operands widened. */
#include "narrow_linear.h"

#include "gemm.h"
#include "product.h"
#include "turned.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

enum { FEW = 8, GROUP_BYTES = 256 << 10, MOST_TILES = 16 };
enum { BLOCK = 256 }; /* pairs whose products one f32 sum adds up; the error of a longer one would grow with its length */

typedef struct narrow {
    void *out;
    const uint16_t *x, *w;
    const void *bias;
    int64_t n, m, k, bias_dtype, out_dtype;
    char *panels;         /* of pairs of x, PANEL rows of x each */
    struct about *panel;  /* what is known of each */
} narrow;

/* Store `count` sums plus the bias of the columns from `column` on, from element `at` of out on. The sums are overwritten. */
TG_INLINE void store_row(const narrow *l, int64_t at, float *sums, int64_t column, int64_t count) {
    if (l->bias && l->bias_dtype == TG_BF16)
        for (int64_t j = 0; j < count; j++) sums[j] += bf16_to_f32(((const uint16_t *)l->bias)[column + j]);
    else if (l->bias)
        for (int64_t j = 0; j < count; j++) sums[j] += ((const float *)l->bias)[column + j];
    if (l->out_dtype == TG_BF16)
        for (int64_t j = 0; j < count; j++) ((uint16_t *)l->out)[at + j] = bf16_of_f32(sums[j]);
    else memcpy((float *)l->out + at, sums, (size_t)count * 4);
}

static void one_by_one(const narrow *l, int64_t row, int64_t rows, int64_t from, int64_t to) {
    for (int64_t i = row; i < row + rows; i++)
        for (int64_t j = from; j < to; j++) {
            double sum = 0;
            for (int64_t p = 0; p < l->k; p++) sum += (double)bf16_to_f32(l->x[i * l->k + p]) * bf16_to_f32(l->w[j * l->k + p]);
            float narrow = (float)sum;
            store_row(l, i * l->m + j, &narrow, j, 1);
        }
}

/* --- few rows: widened, and past the weights as in multiply.h --- */

static void few_rows(const narrow *l) {
    float *x = tg_scratch(2, (size_t)(l->n * (l->k + l->m)) * 4), *sums = x + l->n * l->k;
    if (!x) return one_by_one(l, 0, l->n, 0, l->m);
    for (int64_t i = 0; i < l->n * l->k; i++) x[i] = bf16_to_f32(l->x[i]);
    void *ptr[] = {sums, x, (void *)l->w, NULL};
    const int64_t ints[] = {l->n, l->m, l->k};
    tg_linear_bf16(ptr, ints, NULL);
    for (int64_t i = 0; i < l->n; i++) store_row(l, i * l->m, sums + i * l->m, 0, l->m);
}

/* --- many rows: x packed once into panels of pairs whose lanes are rows of x; the weights are read where they are --- */

/* Which numbers are among bfloat16s: some that are not 0 and below 2^-126; none but zeros. */
typedef struct numbers {
    int tiny, zero;
} numbers;

TG_INLINE numbers numbers_of(const uint16_t *from, int64_t count) {
    uint16_t least = 0xffff, most = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint16_t size = from[i] & 0x7fff, below = (uint16_t)(size - 1); /* 0 becomes the largest */
        least = below < least ? below : least;
        most = size > most ? size : most;
    }
    return (numbers){least < 0x7f, most == 0};
}

typedef struct about {
    int tiny;
    uint32_t zero[PANEL]; /* all bits but the sign where a lane is all zeros */
} about;

/* Two bfloat16 in one word, the first one low; the one behind an odd row's last is 0. */
TG_INLINE uint32_t pair_at(const uint16_t *row, int64_t i, int64_t k) {
    return row[2 * i] | (2 * i + 1 < k ? (uint32_t)row[2 * i + 1] << 16 : 0);
}

TG_INLINE int64_t lanes_of(const narrow *l, int64_t row) { return l->n - row <= VW ? VW : PANEL; }

static void pack_part(void *ctx, int part, int parts) {
    const narrow *l = ctx;
    const int64_t k = l->k, pairs = (k + 1) / 2;
    int64_t from, to;
    tg_range(l->n, PANEL, part, parts, &from, &to);
    for (int64_t row = from; row < to; row += PANEL) {
        uint32_t *panel = (uint32_t *)l->panels + row * pairs;
        const int64_t rows = tg_min(PANEL, l->n - row), lanes = lanes_of(l, row);
        const uint16_t *x = l->x + row * k;
        about *known = l->panel + row / PANEL;
        known->tiny = 0;
        if (rows < lanes) memset(panel, 0, (size_t)(pairs * lanes) * 4);
        for (int64_t r = 0; r < PANEL; r++) {
            const numbers found = r < rows ? numbers_of(x + r * k, k) : (numbers){0, 1};
            known->tiny |= found.tiny, known->zero[r] = found.zero ? 0x7fffffffu : 0;
        }
        if (k % 2 == 0) turned_32(panel, lanes, x, pairs, pairs, rows);
        else
            for (int64_t r = 0; r < rows; r++)
                for (int64_t i = 0; i < pairs; i++) panel[i * lanes + r] = pair_at(x + r * k, i, k);
    }
}

/* c[lane] = sum of products of a row of weights, with the operands widened. */
static __attribute__((noinline)) void wide_row(const int64_t nv, const uint16_t *w, const uint32_t *panel, int64_t k, float *c) {
    for (int64_t v = 0; v < nv; v++) {
        vf low = {0}, high = {0};
        for (int64_t i = 0; i < (k + 1) / 2; i++) {
            const uint32_t pair = pair_at(w, i, k);
            vu words;
            memcpy(&words, panel + (i * nv + v) * VW, sizeof words);
            low += v_splat(float_of(pair << 16)) * (vf)(words << 16);
            high += v_splat(float_of(pair & 0xffff0000u)) * (vf)(words & 0xffff0000u);
        }
        v_store(c + v * VW, low + high);
    }
}

#if defined(__AVX512BF16__)
/* c[r][lane] = sum of products of `rows` rows of weights; `rows` and `nv` are constants. From `next` on 16 bytes per
 * pair are asked into the L2 cache on the way (NULL: none). */
TG_INLINE void pairs_tile(const int rows, const int nv, const uint16_t *w, const uint32_t *panel, int64_t k, float *c,
                          const char *next) {
    __m512 acc[TILE_ROWS][2];
    const char *base[(TILE_ROWS + 2) / 3]; /* every third row has its own pointer, as in gemm.c */
    const int64_t apart = 2 * k;
    for (int r = 0; r < (rows + 2) / 3; r++) base[r] = (const char *)w + 3 * r * apart;
#define STEP(at, bits)                                                                                                      \
    {                                                                                                                       \
        __m512bh lane[2];                                                                                                   \
        for (int v = 0; v < nv; v++) lane[v] = (__m512bh)_mm512_load_si512(panel + ((at) * nv + v) * VW);                   \
        _Pragma("GCC unroll 16") for (int r = 0; r < rows; r++) {                                                           \
            uint32_t word = 0;                                                                                              \
            memcpy(&word, base[r / 3] + (r % 3) * apart + (at) * 4, bits);                                                  \
            const __m512bh pair = (__m512bh)_mm512_set1_epi32((int)word);                                                   \
            for (int v = 0; v < nv; v++) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], pair, lane[v]);                            \
        }                                                                                                                   \
    }
    int64_t i = 0;
    do {
        const int64_t from = i, to = tg_min(i + BLOCK, k / 2);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < nv; v++) acc[r][v] = _mm512_setzero_ps();
        for (; i + 4 <= to; i += 4) {
            if (next) {
                __builtin_prefetch(next, 0, 2);
                next += 64;
            }
            STEP(0, 4) STEP(1, 4) STEP(2, 4) STEP(3, 4)
            panel += 4 * nv * VW;
            for (int r = 0; r < (rows + 2) / 3; r++) base[r] += 16;
        }
        for (; i < to; i++) {
            STEP(0, 4)
            panel += nv * VW;
            for (int r = 0; r < (rows + 2) / 3; r++) base[r] += 4;
        }
        if (i == k / 2 && k % 2) STEP(0, 2)
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < nv; v++) {
                float *sum = c + (r * nv + v) * VW;
                _mm512_store_ps(sum, from ? _mm512_add_ps(_mm512_load_ps(sum), acc[r][v]) : acc[r][v]);
            }
    } while (i < k / 2);
#undef STEP
}
#define ALL_ROWS(name, nv)                                                                                                      \
    static __attribute__((noinline)) void name(int64_t rows, const uint16_t *w, const uint32_t *panel, int64_t k, float *c,     \
                                               const char *next) {                                                              \
        int64_t r = 0;                                                                                                          \
        for (; k % 2048 == 0 && r + NEAR_ROWS <= rows; r += NEAR_ROWS) { /* as in gemm.c */                                     \
            pairs_tile(NEAR_ROWS, nv, w + r * k, panel, k, c + r * nv * VW, next);                                              \
            if (next) next += 8 * k * NEAR_ROWS / TILE_ROWS;                                                                    \
        }                                                                                                                       \
        for (; r + TILE_ROWS <= rows; r += TILE_ROWS) {                                                                         \
            pairs_tile(TILE_ROWS, nv, w + r * k, panel, k, c + r * nv * VW, next);                                              \
            if (next) next += 8 * k;                                                                                            \
        }                                                                                                                       \
        for (; r + 4 <= rows; r += 4) pairs_tile(4, nv, w + r * k, panel, k, c + r * nv * VW, NULL);                            \
        for (; r < rows; r++) pairs_tile(1, nv, w + r * k, panel, k, c + r * nv * VW, NULL);                                    \
    }
ALL_ROWS(rows_1, 1)
ALL_ROWS(rows_2, 2)

/* Whether no sum of a row is so small that the numbers below 2^-126 that the instruction dropped could count. */
TG_INLINE int lost_nothing(const int64_t nv, const float *c, const uint32_t *zero, uint32_t least) {
    uint32_t found = 0x7fffffffu;
    for (int64_t i = 0; i < nv * VW; i++) {
        const uint32_t size = (bits_of(c[i]) & 0x7fffffffu) | zero[i];
        found = size < found ? size : found;
    }
    return found >= least;
}

static void rows_product(const narrow *l, int64_t rows, int64_t nv, const uint16_t *w, const uint32_t *panel, float *c,
                         const about *known, const numbers *weights, const char *next) {
    const int64_t k = l->k;
    (nv == 1 ? rows_1 : rows_2)(rows, w, panel, k, c, next);
    /* what is dropped is below 2^-16 of a sum that is rounded to bfloat16, 2^-26 of another one */
    const uint32_t least = bits_of((float)(k + 1) * (l->out_dtype == TG_BF16 ? 0x1p-110f : 0x1p-100f));
    for (int64_t r = 0; r < rows; r++)
        if (known->tiny || weights[r].tiny || !(weights[r].zero || lost_nothing(nv, c + r * nv * VW, known->zero, least)))
            wide_row(nv, w + r * k, panel, k, c + r * nv * VW);
}
#else
static void rows_product(const narrow *l, int64_t rows, int64_t nv, const uint16_t *w, const uint32_t *panel, float *c,
                         const about *known, const numbers *weights, const char *next) {
    (void)known, (void)weights, (void)next;
    for (int64_t r = 0; r < rows; r++) wide_row(nv, w + r * l->k, panel, l->k, c + r * nv * VW);
}
#endif

/* Weights go through in groups of several tiles, as in multiply.h: a group stays in the L2 cache while all panels pass by. */
static void tile_part(void *ctx, int part, int parts) {
    const narrow *l = ctx;
    const int64_t k = l->k, pairs = (k + 1) / 2;
    int64_t from, to;
    tg_range(l->m, TILE_ROWS, part, parts, &from, &to);
    const int64_t tiles = tg_min(MOST_TILES, tg_max_i(4, GROUP_BYTES / (TILE_ROWS * 2 * tg_max_i(k, 1)))), group = tiles * TILE_ROWS;
    float *c = tg_scratch(1, (size_t)(2 * group * PANEL) * 4);
    if (!c) return one_by_one(l, 0, l->n, from, to);
    float *turned = c + group * PANEL;
    for (int64_t j = from; j < to; j += group) {
        const int64_t rows = tg_min(group, to - j);
        const uint16_t *w = l->w + j * k;
        numbers weights[MOST_TILES * TILE_ROWS];
        for (int64_t r = 0; r < rows; r++) weights[r] = numbers_of(w + r * k, k);
        const char *next = (const char *)(w + rows * k), *end = (const char *)(l->w + to * k);
        for (int64_t row = 0; row < l->n; row += PANEL) {
            const int64_t lanes = lanes_of(l, row);
            rows_product(l, rows, lanes / VW, w, (const uint32_t *)l->panels + row * pairs, c, l->panel + row / PANEL, weights,
                         next < end ? next : NULL);
            next += 8 * k * (rows / TILE_ROWS);
            turned_32(turned, group, c, lanes, lanes, rows);
            for (int64_t i = 0; i < tg_min(lanes, l->n - row); i++)
                store_row(l, (row + i) * l->m + j, turned + i * group, j, rows);
        }
    }
}

/* Rows that are left of whole vectors and fill a quarter of one at most go past the weights by themselves, as in multiply.h.
 * ptr: out, x, w, bias or NULL.  ints: n, m, k, dtype of bias, dtype of out (f32 or bf16); all contiguous. */
TG_KERNEL(tg_linear_narrow) {
    (void)floats;
    narrow l = {.out = ptr[0], .x = ptr[1], .w = ptr[2], .bias = ptr[3], .n = ints[0], .m = ints[1], .k = ints[2],
                .bias_dtype = ints[3], .out_dtype = ints[4]};
    if (l.n <= 0 || l.m <= 0) return;
    const int64_t rest = l.n % VW * 4 > VW ? 0 : l.n % VW, pairs = (l.k + 1) / 2;
    if (l.n > FEW) {
        const int64_t count = tg_ceil(l.n - rest, PANEL);
        l.panels = tg_scratch(0, (size_t)(count * PANEL * pairs) * 4 + (size_t)count * sizeof *l.panel);
    }
    if (!l.panels) return few_rows(&l); /* or no memory for the panels */
    l.n -= rest;
    l.panel = (about *)(l.panels + tg_ceil(l.n, PANEL) * PANEL * pairs * 4);
    tg_parallel(pack_part, &l, tg_parts(tg_ceil(l.n, PANEL), tg_ceil(16 << 10, PANEL * tg_max_i(l.k, 1))));
    tg_parallel(tile_part, &l, tg_parts(tg_ceil(l.m, TILE_ROWS), 2));
    l.out = (char *)l.out + l.n * l.m * weight_bytes(l.out_dtype), l.x += l.n * l.k, l.n = rest;
    if (rest) few_rows(&l);
}
