/* rope_table.c: the table of angles of rotary positions (Su et al., RoFormer, 2021). */
#include "loops.h"

#include <math.h>

/* cos[n,half], sin[n,half] of positions[n] / scaling * theta^(-i / half), computed in f64 and rounded once, if at all.
 * ptr: cos, sin (f32, or f64), positions (i32).  ints: n, half (head_dim / 2).  floats: theta, scaling. */
#define TABLE(name, T)                                                                                              \
    TG_INLINE void name##_rows(const call *c, int64_t from, int64_t to) {                                           \
        const int64_t half = c->ints[1];                                                                            \
        const double theta = c->floats[0], scaling = c->floats[1];                                                  \
        const int32_t *positions = c->ptr[2];                                                                       \
        enum { CHUNK = 64 };                                                                                        \
        double frequency[CHUNK];                                                                                    \
        for (int64_t i0 = 0; i0 < half; i0 += CHUNK) {                                                              \
            int64_t count = tg_min(CHUNK, half - i0);                                                               \
            /* libm in f64, one element at a time: 6.7 us per table of 128 frequencies at one position */           \
            for (int64_t i = 0; i < count; i++) frequency[i] = pow(theta, -(double)(i0 + i) / (double)half);        \
            for (int64_t row = from; row < to; row++) {                                                             \
                T *cosine = (T *)c->ptr[0] + row * half + i0, *sine = (T *)c->ptr[1] + row * half + i0;             \
                const double position = positions[row] / scaling;                                                   \
                for (int64_t i = 0; i < count; i++) {                                                               \
                    double angle = position * frequency[i];                                                         \
                    cosine[i] = (T)cos(angle);                                                                      \
                    sine[i] = (T)sin(angle);                                                                        \
                }                                                                                                   \
            }                                                                                                       \
        }                                                                                                           \
    }                                                                                                               \
    ROWS_KERNEL(name, ints[0], 64 * ints[1], name##_rows)

TABLE(tg_rope_table, float)
TABLE(tg_rope_table_f64, double)
