/* nest over _i3 in 0..n
 *     y0[64*_i3 + _j4] = sum of all up to _j4 of x0[64*_i3 + _j4]    over _j4 in 0..64 */
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
        const int64_t _i3 = _turn;
        /* sum */
        {
            double running3 = 0;
            for (int64_t _begin = 0, _end; _begin < 64; _begin = _end) {
                _end = tg_min(_begin + 128, 64);
                float block3[128];
                #pragma GCC ivdep
                for (int64_t _j4 = _begin; _j4 < _end; _j4++) {
                    const float v3 = x0[(64 * _i3 + _j4)];
                    block3[(-_begin + _j4)] = v3;
                }
                f32_running_sum(&block3[0], (-_begin + _end), &running3);
                #pragma GCC ivdep
                for (int64_t _j4 = _begin; _j4 < _end; _j4++) {
                    y0[(64 * _i3 + _j4)] = block3[(-_begin + _j4)];
                }
            }
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
    if (a.count > 0) tg_parallel(generated_nest0, &a, tg_parts(tg_ceil(a.count, 1), tg_ceil(tg_ceil(16384, 65), 1)));
}
