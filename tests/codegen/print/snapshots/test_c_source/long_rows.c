/* nest over _i0 in 0..n
 *     y0[_i0] = sum over _r1 in 0..1024 of x0[1024*_i0 + _r1] */
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
    int64_t from, to;
    tg_range(a->count, 1, part, parts, &from, &to);
    for (int64_t turn = from; turn < to; turn++) {
        const int64_t _i0 = turn;
        (void)_i0;
        /* sum */
        {
            double total0 = 0;
            for (int64_t begin = 0, end; begin < 1024; begin = end) {
                end = tg_min(begin + 2048, 1024);
                double part0 = 0;
                float lane[4 * VW];
                for (int64_t l = 0; l < 4 * VW; l++) lane[l] = 0;
                int64_t at = begin;
                for (; at + 4 * VW <= end; at += 4 * VW) {
                    #pragma GCC ivdep
                    for (int64_t l = 0; l < 4 * VW; l++) {
                        const int64_t _r1 = at + l;
                        const float v0 = x0[(1024 * _i0 + _r1)];
                        lane[l] += v0;
                    }
                }
                #pragma omp simd reduction(+ : part0)
                for (int64_t _r1 = at; _r1 < end; _r1++) {
                    const float v0 = x0[(1024 * _i0 + _r1)];
                    part0 += v0;
                }
                for (int64_t l = 0; l < VW; l++) lane[l] = lane[0 * VW + l] + lane[1 * VW + l] + lane[2 * VW + l] + lane[3 * VW + l];
                part0 += v_sum_wide(v_load(lane));
                total0 += part0;
            }
            y0[_i0] = (float)total0;
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
    if (a.count > 0) tg_parallel(generated_nest0, &a, tg_parts(tg_ceil(a.count, 1), tg_ceil(tg_ceil(PART_ELEMENTS, 1025), 1)));
}
