/* gather_linear.c: out[p,m] = x[p/per,k] . w[index[p],m,k]^T + bias[index[p],m], where few of the matrices may be chosen.
 *
 * The rows that chose one matrix are one product of linear.c, so that a matrix is read once for all of them (for each BLOCK of
 * them), and not at all when nobody chose it. A row that is alone, as all are when one token decodes, is not even copied. */
#include <string.h>

#include "linear.h"

enum { BLOCK = 512 }; /* rows that are brought together at once: what bounds the scratch memory */

typedef struct choice {
    float *out, *rows, *made; /* rows, made: a block of x and of out */
    const float *x, *bias;
    const char *w;
    int64_t per, m, k, weight_size;
    tg_kernel product;
} choice;

static void multiply(const choice *c, int64_t matrix, int64_t n, const float *x, float *out) {
    const float *bias = c->bias ? c->bias + matrix * c->m : NULL;
    void *ptr[] = {out, (void *)x, (void *)(c->w + matrix * c->m * c->k * c->weight_size), (void *)bias};
    const int64_t ints[] = {n, c->m, c->k};
    c->product(ptr, ints, NULL);
}

/* The rows `which`[n] of out, all by one matrix. */
static void flush(const choice *c, int64_t matrix, const int64_t *which, int64_t n) {
    if (n == 1) return multiply(c, matrix, 1, c->x + which[0] / c->per * c->k, c->out + which[0] * c->m);
    for (int64_t i = 0; i < n; i++) memcpy(c->rows + i * c->k, c->x + which[i] / c->per * c->k, (size_t)c->k * 4);
    multiply(c, matrix, n, c->rows, c->made);
    for (int64_t i = 0; i < n; i++) memcpy(c->out + which[i] * c->m, c->made + i * c->m, (size_t)c->m * 4);
}

static void run(void *const *ptr, const int64_t *ints, tg_kernel product, int weight_size) {
    choice c = {.out = ptr[0], .x = ptr[1], .w = ptr[2], .bias = ptr[4], .per = ints[1], .m = ints[3], .k = ints[4],
                .weight_size = weight_size, .product = product};
    const int64_t pairs = ints[0], matrices = ints[2], block = tg_min(pairs, BLOCK);
    const int32_t *narrow = ptr[3];
    const int64_t *wide = ptr[3];
    if (pairs <= 0 || c.m <= 0) return;
    int64_t one, *which = pairs == 1 ? &one : tg_scratch(2, (size_t)block * (8 + (size_t)(c.k + c.m) * 4));
    const int64_t most = which ? block : 1; /* without memory one row at a time */
    if (!which) which = &one;
    c.rows = (float *)(which + most), c.made = c.rows + most * c.k;
#define INDEX(p) (ints[5] == TG_I64 ? wide[p] : narrow[p])
    for (int64_t p = 0; p < pairs; p++)
        if (INDEX(p) < 0 || INDEX(p) >= matrices) memset(c.out + p * c.m, 0, (size_t)c.m * 4);
    for (int64_t matrix = 0; matrix < matrices; matrix++) {
        int64_t n = 0;
        for (int64_t p = 0; p < pairs; p++) {
            if (INDEX(p) != matrix) continue;
            which[n++] = p;
            if (n == most) flush(&c, matrix, which, n), n = 0;
        }
        if (n) flush(&c, matrix, which, n);
    }
#undef INDEX
}

/* out[pairs,m] = x[pairs/per,k] . w[matrices,m,k][index[pairs]]^T (+ bias[matrices,m][index]); zeros where the index is out of range.
 * ptr: out, x, w, index, bias or NULL.  ints: pairs, per (pairs that read one row of x), matrices, m, k, dtype of index. */
TG_KERNEL(tg_gather_linear_f32) { (void)floats, run(ptr, ints, tg_linear_f32, 4); }
TG_KERNEL(tg_gather_linear_bf16) { (void)floats, run(ptr, ints, tg_linear_bf16, 2); }
