/* gated.h: an activation of one operand times another one: out[n,d] = act(gate) * up, out contiguous, gate and up with row strides
 * (a fused [n,2d] product is cut by pointers). out may be the same memory as an operand.
 * ptr: out, gate, up.  ints: n, d, gate_stride, up_stride. */
#ifndef TG_GATED_H
#define TG_GATED_H

#include "loops.h"

#define GATED(name, type, cost, act)                                                                \
    TG_INLINE void name##_rows(const call *c, int64_t from, int64_t to) {                           \
        const int64_t d = c->ints[1];                                                               \
        for (int64_t i = from; i < to;) {                                                           \
            int64_t row = i / d, end = tg_min(to, (row + 1) * d), j = i - row * d;                  \
            type *out = (type *)c->ptr[0] + i;                                                      \
            const type *gate = (const type *)c->ptr[1] + row * c->ints[2] + j;                      \
            const type *up = (const type *)c->ptr[2] + row * c->ints[3] + j;                        \
            for (int64_t l = 0; l < end - i; l++) out[l] = act(gate[l]) * up[l];                    \
            i = end;                                                                                \
        }                                                                                           \
    }                                                                                               \
    ROWS_KERNEL(name, ints[0] * ints[1], cost, name##_rows)

#endif
