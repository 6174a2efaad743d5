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
    int64_t _from, _to;
    tg_range(a->count, 1, part, parts, &_from, &_to);
    for (int64_t _turn = _from; _turn < _to; _turn++) {
        const int64_t _i0 = _turn;
        /* sum */
        {
            double total0 = 0;
            for (int64_t _begin = 0, _end; _begin < 1024; _begin = _end) {
                _end = tg_min(_begin + 2048, 1024);
                double part0 = 0;
                float lane[(4 * VW)];
                for (int64_t at = 0; at < (4 * VW); at++) lane[at] = 0;
                int64_t _at = _begin;
                for (; _at + (4 * VW) <= _end; _at += (4 * VW)) {
                    #pragma GCC ivdep
                    for (int64_t _l = 0; _l < (4 * VW); _l++) {
                        const int64_t _r1 = (_at + _l);
                        const float v0 = x0[(1024 * _i0 + _r1)];
                        lane[_l] += v0;
                    }
                }
                #pragma omp simd reduction(+ : part0)
                for (int64_t _r1 = _at; _r1 < _end; _r1++) {
                    const float v0 = x0[(1024 * _i0 + _r1)];
                    part0 += (double)v0;
                }
                for (int64_t _l = 0; _l < VW; _l++) {
                    const float v3 = lane[_l] + lane[(_l + VW)];
                    const float v5 = v3 + lane[(_l + 2 * VW)];
                    const float v7 = v5 + lane[(_l + 3 * VW)];
                    lane[_l] = v7;
                }
                f32_add_lanes(&part0, &lane[0]);
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
    if (a.count > 0) tg_parallel(generated_nest0, &a, tg_parts(tg_ceil(a.count, 1), tg_ceil(tg_ceil(16384, 1025), 1)));
}
