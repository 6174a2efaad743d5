/* loops.h: cutting one loop over elements or rows into parts, for the kernels that are one loop. */
#ifndef TG_LOOPS_H
#define TG_LOOPS_H

#include "tg.h"

/* Elements a part should hold for a region to pay: about 4 us of streaming on one core. */
enum { PART_ELEMENTS = 16384 };

/* The arguments of a kernel, as its parts see them. */
typedef struct call {
    void *const *ptr;
    const int64_t *ints;
    const double *floats;
} call;

/* Cuts `rows` rows of `row_elements` each into parts. */
TG_INLINE void over_rows(void (*body)(void *, int, int), call *c, int64_t rows, int64_t row_elements) {
    if (rows <= 0) return;
    tg_parallel(body, c, tg_parts(rows, tg_ceil(PART_ELEMENTS, tg_max_i(row_elements, 1))));
}

/* Where a row begins, in elements. at: {group, far, near}, `near` from one row of a group to the next, `far` from one group to the
 * next (kernels/strides.py); group 0: rows of `d` one behind the other. */
TG_INLINE int64_t row_at(const int64_t *at, int64_t row, int64_t d) {
    return at[0] > 0 ? row / at[0] * at[1] + row % at[0] * at[2] : row * d;
}

/* KERNEL(name) with `body(c, from, to)` over the half-open range of rows; `rows` and `row` are expressions of `ints`. */
#define ROWS_KERNEL(name, rows, row, body)                                         \
    static void name##_part(void *ctx, int part, int parts) {                      \
        const call *c = ctx;                                                       \
        const int64_t *ints = c->ints;                                             \
        (void)ints;                                                                \
        int64_t from, to;                                                          \
        tg_range(rows, 1, part, parts, &from, &to);                                \
        body(c, from, to);                                                         \
    }                                                                              \
    TG_KERNEL(name) {                                                              \
        call c = {ptr, ints, floats};                                              \
        over_rows(name##_part, &c, rows, row);                                     \
    }

/* out[i] = expression of x = a[i] and y = b[i], for a kernel of two operands; out is contiguous and may be either's memory.
 * ints: count, step of a, step of b (1; 0: one number for a whole run), run, group, far and near of a, far and near of b. The
 * operands are runs of so many elements, which begin as rows do (row_at); run 0: one behind the other. weight: of one element. */
#define PAIRS(name, T, weight, expression)                                                               \
    TG_INLINE void name##_rows(const call *c, int64_t from, int64_t to) {                                \
        const int64_t *at = c->ints, step_a = at[1], step_b = at[2], run = at[3] > 0 ? at[3] : to;       \
        for (int64_t i = from; i < to;) {                                                                \
            const int64_t row = i / run, j = i - row * run, count = tg_min(to - i, run - j);             \
            const T *a = (const T *)c->ptr[1] + j * step_a, *b = (const T *)c->ptr[2] + j * step_b;      \
            T *out = (T *)c->ptr[0] + i;                                                                 \
            if (row) {                                                                                   \
                a += row / at[4] * at[5] + row % at[4] * at[6];                                          \
                b += row / at[4] * at[7] + row % at[4] * at[8];                                          \
            }                                                                                            \
            if (step_a && step_b) {                                                                      \
                for (int64_t l = 0; l < count; l++) {                                                    \
                    T x = a[l], y = b[l];                                                                \
                    out[l] = expression;                                                                 \
                }                                                                                        \
            } else if (step_a) {                                                                         \
                const T y = b[0];                                                                        \
                for (int64_t l = 0; l < count; l++) {                                                    \
                    T x = a[l];                                                                          \
                    out[l] = expression;                                                                 \
                }                                                                                        \
            } else {                                                                                     \
                const T x = a[0];                                                                        \
                for (int64_t l = 0; l < count; l++) {                                                    \
                    T y = b[l * step_b];                                                                 \
                    out[l] = expression;                                                                 \
                }                                                                                        \
            }                                                                                            \
            i += count;                                                                                  \
        }                                                                                                \
    }                                                                                                    \
    ROWS_KERNEL(name, ints[0], weight, name##_rows)

/* out[i] = expression of x = a[i]; out is contiguous and may be a's memory.
 * ints: count, run, group, far, near: as of PAIRS. */
#define UNARY(name, T, weight, expression)                                                               \
    TG_INLINE void name##_rows(const call *c, int64_t from, int64_t to) {                                \
        const int64_t *at = c->ints, run = at[1] > 0 ? at[1] : to;                                       \
        for (int64_t i = from; i < to;) {                                                                \
            const int64_t row = i / run, j = i - row * run, count = tg_min(to - i, run - j);             \
            const T *a = (const T *)c->ptr[1] + j;                                                       \
            T *out = (T *)c->ptr[0] + i;                                                                 \
            if (row) a += row / at[2] * at[3] + row % at[2] * at[4];                                     \
            for (int64_t l = 0; l < count; l++) {                                                        \
                T x = a[l];                                                                              \
                out[l] = expression;                                                                     \
            }                                                                                            \
            i += count;                                                                                  \
        }                                                                                                \
    }                                                                                                    \
    ROWS_KERNEL(name, ints[0], weight, name##_rows)

#endif
