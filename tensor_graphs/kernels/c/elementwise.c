/* elementwise.c: arithmetic of two operands, f32 and f64, one of which may be one number for a whole run.
 *
 * Every loop body is plain arithmetic, so that the compiler vectorises it. out may be the same memory as an input. */
#include "loops.h"
#include "wide.h"

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

/* ptr: out, a, b.  ints: see PAIRS. */
PAIRS(tg_add, float, 1, x + y)
PAIRS(tg_sub, float, 1, x - y)
PAIRS(tg_mul, float, 1, x *y)
PAIRS(tg_div, float, 1, x / y)
PAIRS(tg_max, float, 1, f32_max(x, y))
PAIRS(tg_add_f64, double, 2, x + y)
PAIRS(tg_sub_f64, double, 2, x - y)
PAIRS(tg_mul_f64, double, 2, x *y)
PAIRS(tg_div_f64, double, 2, x / y)
PAIRS(tg_max_f64, double, 2, f64_max(x, y))
