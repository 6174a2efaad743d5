/* rope.c: rotary positions: the table of angles, and the rotation of halves (Su et al., RoFormer, 2021). */
#include "loops.h"

#include <math.h>

TG_INLINE void table_rows(const call *c, int64_t from, int64_t to) {
    const int64_t half = c->ints[1];
    const double theta = c->floats[0], scaling = c->floats[1];
    const int32_t *positions = c->ptr[2];
    enum { CHUNK = 64 };
    double frequency[CHUNK];
    for (int64_t i0 = 0; i0 < half; i0 += CHUNK) {
        int64_t count = tg_min(CHUNK, half - i0);
        /* libm in f64, one element at a time: 6.7 us per table of 128 frequencies at one position */
        for (int64_t i = 0; i < count; i++) frequency[i] = pow(theta, -(double)(i0 + i) / (double)half) / scaling;
        for (int64_t row = from; row < to; row++) {
            float *cosine = (float *)c->ptr[0] + row * half + i0, *sine = (float *)c->ptr[1] + row * half + i0;
            for (int64_t i = 0; i < count; i++) {
                double angle = positions[row] * frequency[i];
                cosine[i] = (float)cos(angle);
                sine[i] = (float)sin(angle);
            }
        }
    }
}

/* cos[n,half], sin[n,half] of positions[n] * theta^(-i / half) / scaling, computed in f64 and rounded once.
 * ptr: cos, sin, positions (i32).  ints: n, half (head_dim / 2).  floats: theta, scaling. */
ROWS_KERNEL(tg_rope_table, ints[0], 64 * ints[1], table_rows)

TG_INLINE void rope_rows(const call *c, int64_t from, int64_t to) {
    const int64_t heads = c->ints[1], d = c->ints[2], half = d / 2;
    for (int64_t row = from; row < to; row++) {
        const float *cosine = (const float *)c->ptr[2] + row * half, *sine = (const float *)c->ptr[3] + row * half;
        for (int64_t h = 0; h < heads; h++) {
            const float *x = (const float *)c->ptr[1] + (row * heads + h) * d;
            float *out = (float *)c->ptr[0] + (row * heads + h) * d;
            for (int64_t i = 0; i < half; i++) {
                float low = x[i], high = x[i + half];
                out[i] = low * cosine[i] - high * sine[i];
                out[i + half] = high * cosine[i] + low * sine[i];
            }
        }
    }
}

/* Rotates the pairs (i, i + d/2) of every head: the convention of Hugging Face's Llama and Gemma. In place is allowed.
 * ptr: out, x[n,h,d], cos[n,d/2], sin[n,d/2].  ints: n, h, d (even). */
ROWS_KERNEL(tg_rope, ints[0], 2 * ints[1] * ints[2], rope_rows)
