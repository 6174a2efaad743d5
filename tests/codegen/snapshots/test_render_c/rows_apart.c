/* nest over _i0 in 0..n
 *     t1[0] = sum over _r2 in 0..64 of (x0[_i0*_s0_0 + _r2] * x0[_i0*_s0_0 + _r2])
 *     y0[64*_i0 + _j1] = ((x0[_i0*_s0_0 + _j1] * reciprocal(sqrt(((t1[0] * reciprocal(64.0)) + 1e-06)))) * x1[_j1])    over _j1 in 0..64 */
#include "numbers.h"

typedef struct generated_arguments {
    float *restrict y0;
    const float *restrict x0;
    const float *restrict x1;
    int64_t d_n;
    int64_t _s0_0;
    int64_t count;
} generated_arguments;

static void generated_nest0(void *context, int part, int parts) {
    const generated_arguments *a = context;
    float *restrict y0 = a->y0;
    const float *restrict x0 = a->x0;
    const float *restrict x1 = a->x1;
    const int64_t d_n = a->d_n;
    (void)d_n;
    const int64_t _s0_0 = a->_s0_0;
    (void)_s0_0;
    int64_t from, to;
    tg_range(a->count, 1, part, parts, &from, &to);
    for (int64_t turn = from; turn < to; turn++) {
        const int64_t _i0 = turn;
        (void)_i0;
        /* sum */
        float t1;
        {
            double total13 = 0.0;
            for (int64_t begin = 0, end; begin < 64; begin = end) {
                end = tg_min(begin + 512, 64);
                float part13 = 0;
                #pragma omp simd reduction(+ : part13)
                for (int64_t _r2 = begin; _r2 < end; _r2++) {
                    const float v12 = x0[(_i0 * _s0_0 + _r2)];
                    const float v13 = v12 * v12;
                    part13 += v13;
                }
                total13 += part13;
            }
            t1 = (float)total13;
        }
        /* mul */
        const float v3 = 1.0f / 0x1.0000000000000p+6f;
        const float v15 = t1 * v3;
        const float v16 = v15 + 0x1.0c6f7a0b5ed8dp-20f;
        const float v17 = f32_sqrt(v16);
        const float v18 = 1.0f / v17;
        #pragma GCC ivdep
        for (int64_t _j1 = 0; _j1 < 64; _j1++) {
            const float v0 = x0[(_i0 * _s0_0 + _j1)];
            const float v19 = v0 * v18;
            const float v10 = x1[_j1];
            const float v20 = v19 * v10;
            y0[(64 * _i0 + _j1)] = v20;
        }
    }
}

TG_KERNEL(generated) {
    (void)floats, (void)ints;
    generated_arguments a;
    a.y0 = ptr[0];
    a.x0 = ptr[1];
    a.x1 = ptr[2];
    const int64_t d_n = a.d_n = ints[0];
    (void)d_n;
    const int64_t _s0_0 = a._s0_0 = ints[1];
    (void)_s0_0;
    a.count = d_n;
    if (a.count > 0) tg_parallel(generated_nest0, &a, tg_parts(tg_ceil(a.count, 1), tg_ceil(tg_ceil(PART_ELEMENTS, 129), 1)));
}
