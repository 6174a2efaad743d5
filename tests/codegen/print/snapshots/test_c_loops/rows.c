/* nest over _i0 in 0..n
 *     t3[0] = max over _r4 in 0..64 of (x0[64*_i0 + _r4] * 0.125)
 *     t2[_j3] = exp(((x0[64*_i0 + _j3] * 0.125) + (t3[0] * -1.0)))    over _j3 in 0..64
 *     t1[0] = sum over _r2 in 0..64 of t2[_r2]
 *     y0[64*_i0 + _j1] = over(t2[_j1], cast(t1[0]), inverted(v23), high(v23), low(v23))    over _j1 in 0..64
 *         where v23 = reciprocal(t1[0]) */
#include "numbers.h"

typedef struct generated_arguments {
    float *restrict y0;
    const float *restrict x0;
    int64_t d_n;
    int64_t count;
} generated_arguments;

static void generated_nest0(void *context, int part, int parts) {
    const generated_arguments *a = context;
    float *restrict y0 = a->y0;
    const float *restrict x0 = a->x0;
    const int64_t d_n = a->d_n;
    (void)d_n;
    char *scratch = tg_scratch(1, 256);
    float *restrict t2 = (float *)(scratch + 0);
    int64_t _from, _to;
    tg_range(a->count, 1, part, parts, &_from, &_to);
    for (int64_t _turn = _from; _turn < _to; _turn++) {
        const int64_t _i0 = _turn;
        /* reduce_max */
        float t3;
        {
            int32_t total13 = order_f32(-INFINITY);
            #pragma omp simd reduction(max : total13)
            for (int64_t _r4 = 0; _r4 < 64; _r4++) {
                const float v12 = x0[(64 * _i0 + _r4)];
                const float v13 = v12 * 0x1.0000000000000p-3f;
                const int32_t key = order_f32(v13); total13 = key > total13 ? key : total13;
            }
            t3 = unorder_f32(total13);
        }
        /* exp */
        const float v15 = t3 * (-0x1.0000000000000p+0f);
        #pragma GCC ivdep
        for (int64_t _j3 = 0; _j3 < 64; _j3++) {
            const float v4 = x0[(64 * _i0 + _j3)];
            const float v6 = v4 * 0x1.0000000000000p-3f;
            const float v16 = v6 + v15;
            const float v17 = f32_exp(v16);
            t2[_j3] = v17;
        }
        /* sum */
        double t1;
        {
            double total18 = 0;
            for (int64_t _begin = 0, _end; _begin < 64; _begin = _end) {
                _end = tg_min(_begin + 512, 64);
                double part18 = 0;
                float lane[VW];
                for (int64_t at = 0; at < VW; at++) lane[at] = 0;
                int64_t _at = _begin;
                for (; _at + VW <= _end; _at += VW) {
                    #pragma GCC ivdep
                    for (int64_t _l = 0; _l < VW; _l++) {
                        const int64_t _r2 = (_at + _l);
                        const float v18 = t2[_r2];
                        lane[_l] += v18;
                    }
                }
                #pragma omp simd reduction(+ : part18)
                for (int64_t _r2 = _at; _r2 < _end; _r2++) {
                    const float v18 = t2[_r2];
                    part18 += (double)v18;
                }
                f32_add_lanes(&part18, &lane[0]);
                total18 += part18;
            }
            t1 = total18;
        }
        /* div */
        const float v24 = (float)t1;
        const double v23 = 1.0 / t1;
        const int v25 = bool_inverted(v23);
        const float v26 = f32_high(v23);
        const float v27 = f32_low(v23);
        #pragma GCC ivdep
        for (int64_t _j1 = 0; _j1 < 64; _j1++) {
            const float v19 = t2[_j1];
            const float v28 = f32_over(v19, v24, v25, v26, v27);
            y0[(64 * _i0 + _j1)] = v28;
        }
    }
}

TG_KERNEL(generated) {
    (void)floats, (void)ints;
    generated_arguments a;
    a.y0 = ptr[0];
    a.x0 = ptr[1];
    const int64_t d_n = a.d_n = ints[0];
    (void)d_n;
    a.count = d_n;
    if (a.count > 0) tg_parallel(generated_nest0, &a, tg_parts(tg_ceil(a.count, 1), tg_ceil(tg_ceil(16384, 257), 1)));
}
