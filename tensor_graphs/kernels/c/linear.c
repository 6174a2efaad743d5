/* linear.c: out[n,m] = x[n,k] . w[m,k]^T + bias[m], for few rows (a stream over the weights) and for many (tiles). */
#include "gemm.h"
#include "matmul.h"

typedef struct linear {
    float *out;
    const float *x, *bias, *panels;
    const float *streamed; /* few rows: x in the order that the stream reads */
    const char *w;
    int64_t n, m, k;
    int weight_size; /* bytes: 4 (f32) or 2 (bf16) */
} linear;

/* The definition, for when there is not even memory for a copy of x, or an infinity went through a compensated sum. */
static __attribute__((noinline)) float plain_output(const linear *l, int64_t i, int64_t j) {
    double sum = l->bias ? l->bias[j] : 0.0;
    for (int64_t p = 0, at = j * l->k; p < l->k; p++, at++) {
        float weight = l->weight_size == 2 ? bf16_to_f32(((const uint16_t *)l->w)[at]) : ((const float *)l->w)[at];
        sum += (double)l->x[i * l->k + p] * weight;
    }
    return (float)sum;
}

/* --- few rows: every weight is read once, in memory order --- */

/* STREAM_X rows of x pass by each row of weights together. */
enum { STREAM_X = 4 };

/* Cache lines of weights whose products add up in f32, one or two vectors per row of x, before they go into a total that
 * keeps what additions round away. The error of a sum at k = 640 and 2048, against the rms of a row: 6e-8, and the largest of
 * 80000 3e-7 (7e-8, 4e-7 with 8 lines; one f32 sum per lane: 2e-7, 1e-6), at 97 % of the speed with 16 lanes. With bfloat16
 * and 3 or 4 rows of x, 4 lines would be slower than the memory. */
TG_INLINE int chain_lines(const int nx, const int bf16) { return (VW < 8 ? 2 : 4) * (bf16 && nx > 2 ? 2 : 1); }

/* Two bfloat16 lie in each 32-bit word, the even one low: one shift and one mask widen a whole vector of words, if x is
 * kept as [VW even elements][VW odd elements] per 2 * VW (split_pairs). What is left of a row after its last whole cache
 * line of weights stays in order. */
static void split_pairs(const float *x, int64_t n, int64_t k, float *to) {
    const int64_t whole = k / 32 * 32; /* the elements that row_products takes by whole lines */
    for (int64_t c = 0; c < n; c++, x += k, to += k) {
        int64_t i = 0;
        for (; i + 2 * VW <= whole; i += 2 * VW)
            for (int64_t l = 0; l < VW; l++) to[i + l] = x[i + 2 * l], to[i + VW + l] = x[i + 2 * l + 1];
        for (; i < k; i++) to[i] = x[i];
    }
}

/* acc[c][...] += one line of weights times the same elements of each row of x. */
TG_INLINE void line_products(const int nx, const int bf16, const char *w, const float *const *x, int64_t i, vf acc[STREAM_X][2]) {
    tg_ahead(w);
    for (int v = 0; v < 16; v += VW) { /* a line is 16 words */
        vf word = v_load((const float *)w + v);
        if (bf16) {
            vf even = (vf)((vu)word << 16), odd = (vf)((vu)word & 0xffff0000u);
            for (int c = 0; c < nx; c++) {
                acc[c][0] += even * v_load(x[c] + i + 2 * v);
                acc[c][1] += odd * v_load(x[c] + i + 2 * v + VW);
            }
        } else
            for (int c = 0; c < nx; c++) acc[c][0] += word * v_load(x[c] + i + v);
    }
}

/* sums[c] = w . x[c] for one row of weights and `nx` rows of x, k apart. One row at a time read the memory fastest: 2 and 4
 * rows side by side were 5 to 30 % slower. */
TG_INLINE void row_products(const int nx, const int bf16, const char *w, const float *rows, int64_t k, double *sums) {
    const int step = bf16 ? 32 : 16, chain = chain_lines(nx, bf16);
    const float *x[STREAM_X];
    v_total total[STREAM_X];
    for (int c = 0; c < nx; c++) x[c] = rows + c * k, total[c] = (v_total){{0}, {0}};
    for (int64_t lines = k / step; lines > 0; lines -= chain) {
        const int64_t count = tg_min(lines, chain);
        vf acc[STREAM_X][2];
        for (int c = 0; c < nx; c++) acc[c][0] = acc[c][1] = (vf){0};
        if (count == chain) {
            _Pragma("GCC unroll 8") for (int i = 0; i < chain; i++) line_products(nx, bf16, w + i * 64, x, i * step, acc);
        } else
            for (int64_t i = 0; i < count; i++) line_products(nx, bf16, w + i * 64, x, i * step, acc);
        w += count * 64;
        for (int c = 0; c < nx; c++) {
            x[c] += count * step;
            v_total_add(&total[c], bf16 ? acc[c][0] + acc[c][1] : acc[c][0]);
        }
    }
    for (int c = 0; c < nx; c++) sums[c] = v_sum_wide(total[c].high); /* the last excess, half a unit of a lane, is let go */
    for (int64_t i = 0; i < k % step; i++) {
        float weight = bf16 ? bf16_to_f32(((const uint16_t *)w)[i]) : ((const float *)w)[i];
        for (int c = 0; c < nx; c++) sums[c] += (double)weight * x[c][i];
    }
}

TG_INLINE void row_outputs(const linear *l, int64_t j, int64_t c0, const int nx, const int bf16) {
    double sums[STREAM_X];
    row_products(nx, bf16, l->w + j * l->k * l->weight_size, l->streamed + c0 * l->k, l->k, sums);
    for (int c = 0; c < nx; c++) { /* a sum that met an infinity is NaN, whatever it should be: it is made again */
        float *out = l->out + (c0 + c) * l->m + j;
        *out = sums[c] == sums[c] ? (float)(sums[c] + (l->bias ? l->bias[j] : 0.0f)) : plain_output(l, c0 + c, j);
    }
}

TG_INLINE void stream_rows(const linear *l, int64_t from, int64_t to, const int bf16) {
    for (int64_t j = from; j < to; j++) {
        int64_t c = 0; /* more than STREAM_X rows of x: the weight row comes from the L1 cache after the first turn */
        for (; c + 4 <= l->n; c += 4) row_outputs(l, j, c, 4, bf16);
        switch (l->n - c) {
            case 3: row_outputs(l, j, c, 3, bf16); break;
            case 2: row_outputs(l, j, c, 2, bf16); break;
            case 1: row_outputs(l, j, c, 1, bf16); break;
        }
    }
}

static void stream_part(void *ctx, int part, int parts) {
    const linear *l = ctx;
    int64_t from, to;
    tg_range(l->m, 8, part, parts, &from, &to);
    if (l->weight_size == 2) stream_rows(l, from, to, 1);
    else stream_rows(l, from, to, 0);
}

/* --- many rows: x packed once into panels whose lanes are rows of x, weights widened tile by tile --- */

static void pack_part(void *ctx, int part, int parts) {
    const linear *l = ctx;
    int64_t from, to, k = l->k;
    tg_range(l->n, PANEL, part, parts, &from, &to);
    for (int64_t row = from; row < to; row += PANEL) {
        float *panel = (float *)l->panels + row * k;
        int64_t rows = tg_min(PANEL, l->n - row);
        const int lanes = rows <= VW ? VW : PANEL;
        for (int64_t i0 = 0; i0 < k; i0 += 16) { /* 16 at a time: one cache line of each row */
            int64_t i1 = tg_min(k, i0 + 16);
            for (int64_t r = 0; r < lanes; r++)
                for (int64_t i = i0; i < i1; i++) panel[i * lanes + r] = r < rows ? l->x[(row + r) * k + i] : 0.0f;
        }
    }
}

/* Weight rows [j, j + rows) as f32, k apart plus a pad that keeps rows of 4096 bytes out of each other's cache sets. */
TG_INLINE void widen(const linear *l, int64_t j, int64_t rows, float *to, int64_t stride) {
    int64_t k = l->k;
    for (int64_t r = 0; r < rows; r++) {
        if (l->weight_size == 4) memcpy(to + r * stride, l->w + (j + r) * k * 4, (size_t)k * 4);
        else {
            const uint16_t *from = (const uint16_t *)l->w + (j + r) * k;
            for (int64_t i = 0; i < k; i++) to[r * stride + i] = bf16_to_f32(from[i]);
        }
    }
}

/* out[i][j] = c[j][i] + bias[j] for `lanes` rows i and `rows` columns j, in blocks of 4 x 4; c rows are `width` apart. */
TG_INLINE void store_transposed(float *out, int64_t apart, const float *c, int64_t width, int64_t lanes, int64_t rows,
                                const float *bias) {
    for (int64_t i = 0; i < lanes; i += 4) {
        int64_t j = 0;
        if (i + 4 <= lanes)
            for (; j + 4 <= rows; j += 4) {
                v4 in[4], add = {0};
                for (int r = 0; r < 4; r++) memcpy(&in[r], c + (j + r) * width + i, 16);
                if (bias) memcpy(&add, bias + j, 16);
                for (int r = 0; r < 4; r++) {
                    v4 column = (v4){in[0][r], in[1][r], in[2][r], in[3][r]} + add;
                    memcpy(out + (i + r) * apart + j, &column, 16);
                }
            }
        for (; j < rows; j++)
            for (int64_t r = i; r < tg_min(i + 4, lanes); r++) out[r * apart + j] = c[j * width + r] + (bias ? bias[j] : 0.0f);
    }
}

/* Weights go through in groups of several tiles: the group stays in the L2 cache while all panels pass by, and a row of out
 * is written some cache lines at a time (one tile at a time, the stores cost 25 % of the whole). */
static void tile_part(void *ctx, int part, int parts) {
    const linear *l = ctx;
    int64_t from, to, k = l->k, stride = (k + 15) / 16 * 16 + 16;
    tg_range(l->m, TILE_ROWS, part, parts, &from, &to);
    int64_t tiles = tg_min(16, tg_max_i(4, (192 << 10) / (TILE_ROWS * stride * 4))), group = tiles * TILE_ROWS;
    /* Few panels pass by too seldom to pay for a copy of the weights: 32 rows by 784 x 2048 take 0.53 ms without, 0.66 with it. */
    const int direct = l->weight_size == 4 && l->n <= 2 * PANEL && k % 512; /* no rows that share cache sets */
    float *weights = tg_scratch(1, (size_t)(group * stride + group * PANEL) * 4), *c = weights + group * stride;
    if (!weights) {
        for (int64_t i = 0; i < l->n; i++)
            for (int64_t j = from; j < to; j++) l->out[i * l->m + j] = plain_output(l, i, j);
        return;
    }
    for (int64_t j = from; j < to; j += group) {
        int64_t rows = tg_min(group, to - j);
        const float *own = direct ? (const float *)l->w + j * k : weights;
        if (!direct) widen(l, j, rows, weights, stride);
        const char *next = l->w + (j + rows) * k * l->weight_size, *end = l->w + to * k * l->weight_size;
        for (int64_t row = 0; row < l->n; row += PANEL) {
            const int64_t lanes = tg_min(PANEL, l->n - row), nv = lanes <= VW ? 1 : 2;
            tg_rows_product(rows, (int)nv, K_CONTIGUOUS, own, direct ? k : stride, l->panels + row * k, k, c, NULL, next < end ? next : NULL);
            next += 16 * k * (rows / TILE_ROWS);
            store_transposed(l->out + row * l->m + j, l->m, c, nv * VW, lanes, rows, l->bias ? l->bias + j : NULL);
        }
    }
}

#ifndef TG_STREAM_LIMIT
#define TG_STREAM_LIMIT 8
#endif

static void plain(const linear *l) {
    for (int64_t i = 0; i < l->n; i++)
        for (int64_t j = 0; j < l->m; j++) l->out[i * l->m + j] = plain_output(l, i, j);
}

static void few_rows(linear l) {
    l.streamed = l.x;
    if (l.weight_size == 2) {
        float *split = tg_scratch(0, (size_t)(l.n * l.k) * 4 + 4);
        if (!split) return plain(&l);
        split_pairs(l.x, l.n, l.k, split);
        l.streamed = split;
    }
    tg_parallel(stream_part, &l, tg_parts(l.m, tg_ceil(32 << 10, tg_max_i(l.k * l.weight_size, 1))));
}

/* --- many rows by few columns: the weights are packed instead of x, and out is written in its own order --- */

static void bias_part(void *ctx, int part, int parts) {
    const linear *l = ctx;
    int64_t from, to;
    tg_range(l->n, 1, part, parts, &from, &to);
    for (int64_t i = from; i < to; i++)
        for (int64_t j = 0; j < l->m; j++) l->out[i * l->m + j] += l->bias[j];
}

/* 1.2 to 4.5 times as fast as tiles from n = 4 m on (1000 rows by 64 x 64: 0.05 ms instead of 0.14); no slower from n = 2 m on. */
static void few_columns(linear l) {
    tg_matmul_f32((void *[]){l.out, (void *)l.x, (void *)l.w},
                  (int64_t[]){1, l.n, l.m, l.k, l.n * l.m, l.m, 1, 0, l.k, 1, 0, 1, l.k}, NULL);
    if (l.bias) tg_parallel(bias_part, &l, tg_parts(l.n, tg_ceil(16 << 10, l.m)));
}

/* Rows that are left of whole vectors and fill a quarter of one at most go past the weights by themselves: as lanes they would cost
 * as much as a whole vector. */
static void run_linear(void *const *ptr, const int64_t *ints, int weight_size) {
    linear l = {.out = ptr[0], .x = ptr[1], .w = ptr[2], .bias = ptr[3],
                .n = ints[0], .m = ints[1], .k = ints[2], .weight_size = weight_size};
    if (l.n <= 0 || l.m <= 0) return;
    if (weight_size == 4 && l.n > TG_STREAM_LIMIT && l.n >= 2 * l.m) return few_columns(l);
    const int64_t rest = l.n % VW * 4 > VW ? 0 : l.n % VW;
    float *panels = NULL;
    if (l.n > TG_STREAM_LIMIT) panels = tg_scratch(0, (size_t)(tg_ceil(l.n - rest, PANEL) * PANEL * tg_max_i(l.k, 1)) * 4);
    if (!panels) return few_rows(l); /* or no memory for the panels */
    l.panels = panels;
    l.n -= rest;
    tg_parallel(pack_part, &l, tg_parts(tg_ceil(l.n, PANEL), tg_ceil(16 << 10, PANEL * tg_max_i(l.k, 1))));
    tg_parallel(tile_part, &l, tg_parts(tg_ceil(l.m, TILE_ROWS), 2));
    l.out += l.n * l.m, l.x += l.n * l.k, l.n = rest;
    if (rest) few_rows(l);
}

/* out[n,m] = x[n,k] . w[m,k]^T (+ bias[m]); all contiguous.
 * ptr: out, x, w, bias or NULL.  ints: n, m, k. */
TG_KERNEL(tg_linear_f32) { (void)floats, run_linear(ptr, ints, 4); }
TG_KERNEL(tg_linear_bf16) { (void)floats, run_linear(ptr, ints, 2); }

/* --- the yardstick: a pure read of the same bytes --- */

typedef struct stream {
    const char *data;
    int64_t bytes;
    _Atomic uint32_t *fold;
} stream;

static void read_part(void *ctx, int part, int parts) {
    const stream *s = ctx;
    int64_t from, to;
    tg_range(s->bytes / 64, 64, part, parts, &from, &to);
    vu acc[4] = {{0}};
    for (int64_t line = from; line < to; line++) {
        tg_ahead(s->data + line * 64);
        for (int v = 0; v < 16 / VW; v++) {
            vf word = v_load((const float *)(s->data + line * 64) + v * VW);
            acc[v] ^= (vu)word;
        }
    }
    uint32_t fold = 0;
    for (int v = 0; v < 4; v++)
        for (int i = 0; i < VW; i++) fold ^= acc[v][i];
    __atomic_fetch_xor((uint32_t *)s->fold, fold, __ATOMIC_RELAXED);
}

/* Reads bytes and folds them into 4 by exclusive or (whole 64-byte lines only): what the memory can deliver.
 * ptr: out u32[1], data.  ints: bytes. */
TG_KERNEL(tg_read_stream) {
    (void)floats;
    *(uint32_t *)ptr[0] = 0;
    stream s = {.data = ptr[1], .bytes = ints[0], .fold = ptr[0]};
    tg_parallel(read_part, &s, tg_parts(s.bytes, 64 << 10));
}
