/* wide_linear.c: out[n,m] = x[n,k] . w[m,k]^T + bias[m] with f64 x and out: linear.c's two ways, a stream over the weights for
 * few rows and tiles for many. Weights (f32, bf16 or f64) are widened in registers; sums are f64 throughout. */
#include "wide_gemm.h"

enum {
    STREAM_LIMIT = 6,  /* rows of x that are streamed past; of 4, 6 and 8 the best at k = 640 and 2048 */
    STREAM_X = 4,      /* rows of x that pass by each row of weights together */
    SUMS = 4,          /* vectors per row of x that add up side by side, to hide the latency of an addition */
    GROUP_BYTES = 256 << 10, /* widened weights that stay in the L2 cache while all panels pass by */
};

typedef struct linear {
    double *out;
    const double *x, *panels;
    const double *streamed; /* few rows: x in the order that the stream reads */
    const char *w;
    const void *bias;
    int64_t n, m, k, weight_dtype, bias_dtype;
} linear;

TG_INLINE double bias_at(const linear *l, int64_t j) { return l->bias ? widened(l->bias, l->bias_dtype, j) : 0.0; }

/* The definition, for when there is not even memory for a copy of x. */
static void plain_columns(const linear *l, int64_t from, int64_t to) {
    for (int64_t i = 0; i < l->n; i++)
        for (int64_t j = from; j < to; j++) {
            double sum = 0;
            for (int64_t p = 0; p < l->k; p++) sum += l->x[i * l->k + p] * widened(l->w, l->weight_dtype, j * l->k + p);
            l->out[i * l->m + j] = sum + bias_at(l, j);
        }
}

/* --- few rows: every weight is read once, in memory order --- */

/* Two bfloat16 lie in each 32-bit word, the even one low: one shift and one mask widen a vector of words to f32, if x is kept as
 * [VD even elements][VD odd elements] per 2 * VD. What is left of a row after its last whole cache line stays in order. */
static void split_pairs(const double *x, int64_t n, int64_t k, double *to) {
    const int64_t whole = k / 32 * 32;
    for (int64_t c = 0; c < n; c++, x += k, to += k) {
        int64_t i = 0;
        for (; i + 2 * VD <= whole; i += 2 * VD)
            for (int64_t l = 0; l < VD; l++) to[i + l] = x[i + 2 * l], to[i + VD + l] = x[i + 2 * l + 1];
        for (; i < k; i++) to[i] = x[i];
    }
}

TG_INLINE int line_weights(const int dtype) { return dtype == TG_F64 ? 8 : dtype == TG_BF16 ? 32 : 16; }

/* acc[c][...] += one cache line of weights times the same elements of each row of x. `odd` turns between the sums. */
TG_INLINE void line_products(const int nx, const int dtype, const char *w, const double *const *x, int64_t i, const int odd,
                             vd acc[STREAM_X][SUMS]) {
    tg_ahead(w);
    const int sums = nx > 2 ? 2 : SUMS;
    if (dtype == TG_BF16)
        for (int v = 0; v < 16 / VD; v++) {
            vnw word = (vnw)(*(const vnu *)(w + v * VD * 4));
            vd low = d_widen((vn)(word << 16)), high = d_widen((vn)(word & 0xffff0000u));
            for (int c = 0; c < nx; c++) {
                acc[c][2 * v % sums] += low * d_load(x[c] + i + 2 * v * VD);
                acc[c][(2 * v + 1) % sums] += high * d_load(x[c] + i + 2 * v * VD + VD);
            }
        }
    else
        for (int v = 0; v < line_weights(dtype) / VD; v++) {
            vd weight = dtype == TG_F64 ? d_load((const double *)w + v * VD) : d_widen(*(const vnu *)(w + v * VD * 4));
            for (int c = 0; c < nx; c++) acc[c][(odd * line_weights(dtype) / VD + v) % sums] += weight * d_load(x[c] + i + v * VD);
        }
}

/* sums[c] = w . x[c] for one row of weights and `nx` rows of x, k apart. */
TG_INLINE void row_products(const int nx, const int dtype, const char *w, const double *rows, int64_t k, double *sums) {
    const int step = line_weights(dtype);
    const double *x[STREAM_X];
    vd acc[STREAM_X][SUMS];
    for (int c = 0; c < nx; c++) {
        x[c] = rows + c * k;
        for (int s = 0; s < SUMS; s++) acc[c][s] = (vd){0};
    }
    int64_t i = 0;
    for (; i + 4 * step <= k; i += 4 * step, w += 4 * 64) {
        _Pragma("GCC unroll 4") for (int line = 0; line < 4; line++)
            line_products(nx, dtype, w + line * 64, x, i + line * step, line, acc);
    }
    for (; i + step <= k; i += step, w += 64) line_products(nx, dtype, w, x, i, 0, acc);
    for (int c = 0; c < nx; c++) {
        vd sum = acc[c][0] + acc[c][1];
        if (nx <= 2) sum += acc[c][2] + acc[c][3];
        sums[c] = d_sum(sum);
    }
    for (int64_t t = 0; t < k - i; t++)
        for (int c = 0; c < nx; c++) sums[c] += widened(w, dtype, t) * x[c][i + t];
}

TG_INLINE void row_outputs(const linear *l, int64_t j, int64_t c0, const int nx, const int dtype) {
    double sums[STREAM_X];
    row_products(nx, dtype, l->w + j * l->k * weight_bytes(dtype), l->streamed + c0 * l->k, l->k, sums);
    for (int c = 0; c < nx; c++) l->out[(c0 + c) * l->m + j] = sums[c] + bias_at(l, j);
}

TG_INLINE void stream_rows(const linear *l, int64_t from, int64_t to, const int dtype) {
    for (int64_t j = from; j < to; j++) {
        int64_t c = 0; /* more than STREAM_X rows of x: the weight row comes from the L1 cache after the first turn */
        for (; c + 4 <= l->n; c += 4) row_outputs(l, j, c, 4, dtype);
        switch (l->n - c) {
            case 3: row_outputs(l, j, c, 3, dtype); break;
            case 2: row_outputs(l, j, c, 2, dtype); break;
            case 1: row_outputs(l, j, c, 1, dtype); break;
        }
    }
}

static void stream_part(void *ctx, int part, int parts) {
    const linear *l = ctx;
    int64_t from, to;
    tg_range(l->m, 8, part, parts, &from, &to);
    switch (l->weight_dtype) {
        case TG_F32: stream_rows(l, from, to, TG_F32); break;
        case TG_BF16: stream_rows(l, from, to, TG_BF16); break;
        case TG_F64: stream_rows(l, from, to, TG_F64); break;
    }
}

static void plain_part(void *ctx, int part, int parts) {
    const linear *l = ctx;
    int64_t from, to;
    tg_range(l->m, 1, part, parts, &from, &to);
    plain_columns(l, from, to);
}

/* --- many rows: x packed once into panels whose lanes are rows of x, weights widened tile by tile --- */

static void pack_part(void *ctx, int part, int parts) {
    const linear *l = ctx;
    int64_t from, to, k = l->k;
    tg_range(l->n, WIDE_PANEL, part, parts, &from, &to);
    for (int64_t row = from; row < to; row += WIDE_PANEL) {
        double *panel = (double *)l->panels + row * k;
        int64_t rows = tg_min(WIDE_PANEL, l->n - row);
        const int lanes = rows <= VD ? VD : WIDE_PANEL;
        for (int64_t i0 = 0; i0 < k; i0 += 8) { /* 8 at a time: one cache line of each row */
            int64_t i1 = tg_min(k, i0 + 8);
            for (int64_t r = 0; r < lanes; r++)
                for (int64_t i = i0; i < i1; i++) panel[i * lanes + r] = r < rows ? l->x[(row + r) * k + i] : 0.0;
        }
    }
}

TG_INLINE void widen_row(const char *w, int64_t k, double *to, const int dtype) {
    for (int64_t i = 0; i < k; i++) to[i] = widened(w, dtype, i);
}

/* Weight rows [j, j + rows) as f64, `stride` apart. */
static void widen(const linear *l, int64_t j, int64_t rows, double *to, int64_t stride) {
    for (int64_t r = 0; r < rows; r++) {
        const char *row = l->w + (j + r) * l->k * weight_bytes(l->weight_dtype);
        switch (l->weight_dtype) {
            case TG_F32: widen_row(row, l->k, to + r * stride, TG_F32); break;
            case TG_BF16: widen_row(row, l->k, to + r * stride, TG_BF16); break;
            case TG_F64: widen_row(row, l->k, to + r * stride, TG_F64); break;
        }
    }
}

/* out[i][j] = c[j][i] + bias[j] for `lanes` rows i and `rows` columns j, in blocks of 4 x 4; c rows are `width` apart. */
static void store_transposed(const linear *l, int64_t row, int64_t column, const double *c, int64_t width, int64_t lanes,
                             int64_t rows) {
    double *out = l->out + row * l->m + column;
    for (int64_t i = 0; i < lanes; i += 4) {
        int64_t j = 0;
        if (i + 4 <= lanes)
            for (; j + 4 <= rows; j += 4) {
                v4d in[4], add;
                for (int r = 0; r < 4; r++) memcpy(&in[r], c + (j + r) * width + i, 32), add[r] = bias_at(l, column + j + r);
                for (int r = 0; r < 4; r++) {
                    v4d block = (v4d){in[0][r], in[1][r], in[2][r], in[3][r]} + add;
                    memcpy(out + (i + r) * l->m + j, &block, 32);
                }
            }
        for (; j < rows; j++)
            for (int64_t r = i; r < tg_min(i + 4, lanes); r++) out[r * l->m + j] = c[j * width + r] + bias_at(l, column + j);
    }
}

static void tile_part(void *ctx, int part, int parts) {
    const linear *l = ctx;
    int64_t from, to, k = l->k, stride = (k + 7) / 8 * 8 + 8; /* a pad, which keeps rows out of each other's cache sets */
    tg_range(l->m, TILE_ROWS, part, parts, &from, &to);
    int64_t tiles = tg_min(16, tg_max_i(2, GROUP_BYTES / (TILE_ROWS * stride * 8))), group = tiles * TILE_ROWS;
    double *c = tg_scratch(1, (size_t)(group * stride + group * WIDE_PANEL) * 8), *weights = c + group * WIDE_PANEL;
    if (!c) return plain_columns(l, from, to);
    for (int64_t j = from; j < to; j += group) {
        int64_t rows = tg_min(group, to - j);
        widen(l, j, rows, weights, stride);
        for (int64_t row = 0; row < l->n; row += WIDE_PANEL) {
            const int64_t lanes = tg_min(WIDE_PANEL, l->n - row), nv = lanes <= VD ? 1 : 2;
            tg_wide_rows_product(rows, (int)nv, K_CONTIGUOUS, weights, stride, l->panels + row * k, k, c, NULL);
            store_transposed(l, row, j, c, nv * VD, lanes, rows);
        }
    }
}

/* out[n,m] = x[n,k] . w[m,k]^T (+ bias[m]); all contiguous.
 * ptr: out, x, w, bias or NULL.  ints: n, m, k, w_dtype, bias_dtype. */
TG_KERNEL(tg_linear_f64) {
    (void)floats;
    linear l = {.out = ptr[0], .x = ptr[1], .w = ptr[2], .bias = ptr[3], .n = ints[0], .m = ints[1], .k = ints[2],
                .weight_dtype = ints[3], .bias_dtype = ints[4]};
    if (l.n <= 0 || l.m <= 0) return;
    double *panels = NULL;
    if (l.n > STREAM_LIMIT) panels = tg_scratch(0, (size_t)(tg_ceil(l.n, WIDE_PANEL) * WIDE_PANEL * tg_max_i(l.k, 1)) * 8);
    if (panels) {
        l.panels = panels;
        tg_parallel(pack_part, &l, tg_parts(tg_ceil(l.n, WIDE_PANEL), tg_ceil(16 << 10, WIDE_PANEL * tg_max_i(l.k, 1))));
        tg_parallel(tile_part, &l, tg_parts(tg_ceil(l.m, TILE_ROWS), 2));
        return;
    }
    /* few rows, or no memory for the panels */
    const int parts = tg_parts(l.m, tg_ceil(32 << 10, tg_max_i(l.k * weight_bytes(l.weight_dtype), 1)));
    l.streamed = l.x;
    if (l.weight_dtype == TG_BF16) {
        double *split = tg_scratch(0, (size_t)(l.n * l.k) * 8 + 8);
        if (!split) {
            tg_parallel(plain_part, &l, parts);
            return;
        }
        split_pairs(l.x, l.n, l.k, split);
        l.streamed = split;
    }
    tg_parallel(stream_part, &l, parts);
}
