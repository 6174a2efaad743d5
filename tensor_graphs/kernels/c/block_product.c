/* block_product.c: products of f32 rows with weights in blocks (blocks.h), which are read as they are stored.
 *
 * Of few rows of x each row of weights is read once: its codes become floats in registers. Of many, rows of weights are widened a group at
 * a time, and multiplied as weights of any narrow dtype are (multiply.h); a group stays in the L2 cache. */
#include "blocks.h"
#include "product.h"

enum { FEW = 8 /* rows of x that the weights stream past */, TOGETHER = 4 /* of them at once */, CHAIN = 4 /* parts */ };

typedef struct blocks {
    float *out;
    const float *x, *bias;
    const uint8_t *w;
    int64_t n, m, k, row; /* row: bytes of one */
    tg_decode decode;
} blocks;

/* A sum of vectors that knows what its additions rounded away, as in multiply.h. */
typedef struct exact {
    vf high, excess;
} exact;

TG_INLINE void add_to(exact *t, vf v) {
    const vf missing = v - t->excess, high = t->high + missing;
    t->excess = (high - t->high) - missing;
    t->high = high;
}

/* acc[c] += part j of a block times the same elements of each row of x. */
TG_INLINE void part_products(const int format, const int nx, const uint8_t *block, const int j, const scales *s, const float *const *x,
                             int64_t at, vf *acc) {
    enum { V = 16 / VW };
    vf w[2 * V];
    if (by_table(format) || has_minimum(format) || has_two_scales(format) || nx > 1) {
        numbers_of(format, block, j, s, w);
        for (int c = 0; c < nx; c++)
            for (int v = 0; v < 2 * V; v++) acc[c] += w[v] * v_load(x[c] + at + v * VW);
    } else { /* one scale for all: of the sum */
        codes code[2];
        codes_of(format, block, j, code);
        for (int h = 0; h < 2; h++) widen_codes(code[h], w + h * V);
        vf sum = w[0] * v_load(x[0] + at);
        for (int v = 1; v < 2 * V; v++) sum += w[v] * v_load(x[0] + at + v * VW);
        acc[0] += sum * v_splat(scale_at(format, s, j, 0));
    }
}

/* One output by its definition: of a sum that met an infinity, which is NaN, whatever it should be. */
static __attribute__((noinline)) float one_output(const blocks *b, int64_t i, int64_t c) {
    double sum = b->bias ? b->bias[i] : 0;
    for (int64_t from = 0; from < b->k; from += PART) {
        float w[PART];
        b->decode((const char *)b->w + i * b->row, from, PART, w);
        for (int l = 0; l < PART; l++) sum += (double)w[l] * b->x[c * b->k + from + l];
    }
    return (float)sum;
}

/* The outputs of row i of the weights for `nx` rows of x. */
TG_INLINE void row_products(const blocks *b, const int format, const int nx, int64_t i, int64_t first) {
    const int parts = block_parts(format), chain = parts == 1 ? CHAIN : CHAIN * 2;
    const uint8_t *at = b->w + i * b->row;
    const float *x[TOGETHER];
    exact sum[TOGETHER];
    for (int c = 0; c < nx; c++) x[c] = b->x + (first + c) * b->k, sum[c] = (exact){{0}, {0}};
    for (int64_t l = 0; l < b->k;) {
        const int64_t left = tg_min(chain, (b->k - l) / PART);
        vf acc[TOGETHER];
        scales s;
        for (int c = 0; c < nx; c++) acc[c] = (vf){0};
        tg_ahead(at), tg_ahead(at + 64);
        if (parts > 1) {
            scales_of(format, at, &s);
            _Pragma("GCC unroll 8") for (int j = 0; j < MOST_PARTS_OF_BLOCK; j++)
                part_products(format, nx, at, j, &s, x, l + j * PART, acc);
            at += block_bytes(format);
        } else if (left == CHAIN) {
            _Pragma("GCC unroll 4") for (int j = 0; j < CHAIN; j++, at += block_bytes(format)) {
                scales_of(format, at, &s);
                part_products(format, nx, at, 0, &s, x, l + j * PART, acc);
            }
        } else
            for (int64_t j = 0; j < left; j++, at += block_bytes(format)) {
                scales_of(format, at, &s);
                part_products(format, nx, at, 0, &s, x, l + j * PART, acc);
            }
        l += left * PART;
        for (int c = 0; c < nx; c++) add_to(&sum[c], acc[c]);
    }
    for (int c = 0; c < nx; c++) {
        const float value = (float)(v_sum_wide(sum[c].high) + (b->bias ? b->bias[i] : 0));
        b->out[(first + c) * b->m + i] = value - value == 0 ? value : one_output(b, i, first + c);
    }
}

TG_INLINE void few_rows(void *ctx, int part, int parts, const int format) {
    const blocks *b = ctx;
    int64_t from, to;
    tg_range(b->m, 8, part, parts, &from, &to);
    for (int64_t i = from; i < to; i++) {
        int64_t c = 0;
        for (; c + 4 <= b->n; c += 4) row_products(b, format, 4, i, c);
        if (b->n - c == 3) row_products(b, format, 3, i, c);
        if (b->n - c == 2) row_products(b, format, 2, i, c);
        if (b->n - c == 1) row_products(b, format, 1, i, c);
    }
}

/* The numbers [from, from + count) of a row of weights, from a multiple of PART. */
TG_INLINE void decode(const int format, const uint8_t *row, int64_t from, int64_t count, float *to) {
    enum { V = 16 / VW };
    const int parts = block_parts(format);
    scales s;
    for (int64_t l = from; l < from + count; l += PART, to += PART) {
        const uint8_t *block = row + l / PART / parts * block_bytes(format);
        const int j = (int)(l / PART % parts);
        vf w[2 * V];
        if (j == 0 || l == from) scales_of(format, block, &s);
        numbers_of(format, block, j, &s, w);
        for (int v = 0; v < 2 * V; v++) v_store(to + v * VW, w[v]);
    }
}

#define FORMAT(name)                                                                                        \
    static void few_##name(void *ctx, int part, int parts) { few_rows(ctx, part, parts, name); }            \
    static void decode_##name(const char *row, int64_t from, int64_t count, float *to) {                    \
        decode(name, (const uint8_t *)row, from, count, to);                                                \
    }
#define EACH(f) f(Q8_0) f(Q4_0) f(Q4_1) f(Q5_0) f(Q5_1) f(Q4_K) f(Q5_K) f(Q6_K) f(MXFP4) f(IQ4_NL)
EACH(FORMAT)

#define FEW_OF(name) few_##name,
#define DECODE_OF(name) decode_##name,
static void (*const few_of[FORMATS])(void *, int, int) = {EACH(FEW_OF)};
static const tg_decode decode_of[FORMATS] = {EACH(DECODE_OF)};

/* out[n,m] = x[n,k] . w[m,k]^T (+ bias[m]) of f32, w in blocks of a format.
 * ptr: out, x, w, bias or NULL.  ints: n, m, k, format (as blocks.h numbers them), bytes of a row of w. */
TG_KERNEL(tg_block_linear) {
    (void)floats;
    blocks b = {ptr[0], ptr[1], ptr[3], ptr[2], ints[0], ints[1], ints[2], ints[4], decode_of[ints[3]]};
    if (b.n <= 0 || b.m <= 0) return;
    if (b.n > FEW) return tg_linear_decoded(ptr, ints, b.decode);
    tg_parallel(few_of[ints[3]], &b, tg_parts(b.m, tg_ceil(16 << 10, tg_max_i(b.row, 1))));
}
