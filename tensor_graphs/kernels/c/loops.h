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

#endif
