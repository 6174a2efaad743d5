/* product.c: products whose sums are f32 (multiply.h), and those by weights that an index chooses. */
#include "gemm.h"

#ifndef STREAM_LIMIT
#define STREAM_LIMIT 8 /* columns of b that stream past a */
#endif
#define ROWS_PRODUCT tg_rows_product
#include "multiply.h"

TG_KERNEL(tg_matmul_f32) { (void)floats, matmul(ptr, ints, TG_F32); }
TG_KERNEL(tg_matmul_bf16) { (void)floats, matmul(ptr, ints, TG_BF16); }
TG_KERNEL(tg_matmul_f16) { (void)floats, matmul(ptr, ints, TG_F16); }
TG_KERNEL(tg_linear_f32) { (void)floats, linear(ptr, ints[0], ints[1], ints[2], TG_F32, TG_F32, TG_F32, TG_F32); }
TG_KERNEL(tg_linear_bf16) { (void)floats, linear(ptr, ints[0], ints[1], ints[2], TG_F32, TG_F32, TG_BF16, TG_F32); }
TG_KERNEL(tg_linear_narrow) { (void)floats, linear(ptr, ints[0], ints[1], ints[2], ints[4], TG_BF16, TG_BF16, ints[3]); }
void tg_linear_decoded(void *const *ptr, const int64_t *ints, tg_decode decode) {
    const int64_t n = ints[0], m = ints[1], k = ints[2];
    by_panels((product){.out = ptr[0], .a = ptr[1], .b = ptr[2], .bias = ptr[3], .batch = 1, .m = n, .n = m, .k = k, .om = m, .on = 1,
                        .am = k, .ak = 1, .bias_of_columns = 1, .decode = decode});
}
TG_KERNEL(tg_conv_f32) { (void)floats, convolution(ptr, ints); }

/* --- a matrix for each row --- */

/* GATHERED: rows that are brought together at once: what bounds the scratch memory. EVEN: rows that every tile takes as whole vectors. */
enum { GATHERED = 512, EVEN = 16 };

typedef struct choice {
    float *out, *rows, *made; /* rows, made: a block of x and of out */
    const float *x, *bias;
    const char *w;
    int64_t per, m, k, dtype, even;
} choice;

/* The rows `which`[n] of out, all by one matrix. A row that is alone, as all are when one token decodes, is not even copied. Even: rows of
 * zeros fill the last vector, so that each row is computed as in any other company. */
static void by_matrix(const choice *c, int64_t matrix, const int64_t *which, int64_t n) {
    const void *w = c->w + matrix * c->m * c->k * weight_bytes(c->dtype);
    const float *bias = c->bias ? c->bias + matrix * c->m : NULL, *x = c->rows;
    const int64_t rows = c->even ? tg_ceil(n, EVEN) * EVEN : n, copied = rows > 1 ? n : 0;
    for (int64_t i = 0; i < copied; i++) memcpy(c->rows + i * c->k, c->x + which[i] / c->per * c->k, (size_t)c->k * 4);
    if (rows == 1) x = c->x + which[0] / c->per * c->k;
    else memset(c->rows + n * c->k, 0, (size_t)((rows - n) * c->k) * 4);
    void *ptr[] = {rows == 1 ? c->out + which[0] * c->m : c->made, (void *)x, (void *)w, (void *)bias};
    linear(ptr, rows, c->m, c->k, TG_F32, TG_F32, c->dtype, TG_F32);
    for (int64_t i = 0; i < copied; i++) memcpy(c->out + which[i] * c->m, c->made + i * c->m, (size_t)c->m * 4);
}

/* The rows that chose one matrix are one product, so that a matrix is read once for all of them (for each GATHERED of them), and not at
 * all when nobody chose it. */
static void gather_linear(void *const *ptr, const int64_t *ints, int64_t dtype) {
    choice c = {.out = ptr[0], .x = ptr[1], .w = ptr[2], .bias = ptr[4], .per = ints[1], .m = ints[3], .k = ints[4], .dtype = dtype,
                .even = ints[6]};
    const int64_t pairs = ints[0], matrices = ints[2], most_pairs = tg_min(pairs, GATHERED), block = c.even ? tg_ceil(most_pairs, EVEN) * EVEN : most_pairs;
    if (pairs <= 0 || c.m <= 0) return;
    int64_t one, *which = pairs == 1 ? &one : tg_scratch(2, (size_t)block * (8 + (size_t)(c.k + c.m) * 4));
    const int64_t most = which ? block : 1; /* without memory one row at a time */
    if (!which) which = &one, c.even = 0;
    c.rows = (float *)(which + most), c.made = c.rows + most * c.k;
#define CHOSEN(p) (ints[5] == TG_I64 ? ((const int64_t *)ptr[3])[p] : ((const int32_t *)ptr[3])[p])
    for (int64_t p = 0; p < pairs; p++)
        if (CHOSEN(p) < 0 || CHOSEN(p) >= matrices) memset(c.out + p * c.m, 0, (size_t)c.m * 4);
    for (int64_t matrix = 0; matrix < matrices; matrix++) {
        int64_t n = 0;
        for (int64_t p = 0; p < pairs; p++) {
            if (CHOSEN(p) != matrix) continue;
            which[n++] = p;
            if (n == most) by_matrix(&c, matrix, which, n), n = 0;
        }
        if (n) by_matrix(&c, matrix, which, n);
    }
#undef CHOSEN
}

/* out[pairs,m] = x[pairs/per,k] . w[matrices,m,k][index[pairs]]^T (+ bias[matrices,m][index]); zeros where the index is out of range.
 * ptr: out, x, w, index, bias or NULL.  ints: pairs, per (pairs that read one row of x), matrices, m, k, dtype of index, even (not 0: the
 * bits of a row depend on no other row). */
TG_KERNEL(tg_gather_linear_f32) { (void)floats, gather_linear(ptr, ints, TG_F32); }
TG_KERNEL(tg_gather_linear_bf16) { (void)floats, gather_linear(ptr, ints, TG_BF16); }
