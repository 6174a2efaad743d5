/* nest over _i0 in 0..n, in tiles along _i0
 *     y0[64*_i0 + _j1] = (x0[_j1*n + _i0] + x1[64*_i0 + _j1])    over _j1 in 0..64 */
#include "numbers.h"

typedef struct generated_arguments {
    float *restrict y0;
    const float *restrict x0;
    const float *restrict x1;
    int64_t d_n;
    int64_t count;
} generated_arguments;

static void generated_nest0(void *context, int part, int parts) {
    const generated_arguments *a = context;
    float *restrict y0 = a->y0;
    const float *restrict x0 = a->x0;
    const float *restrict x1 = a->x1;
    const int64_t d_n = a->d_n;
    (void)d_n;
    int64_t _from, _to;
    tg_range(a->count, 1, part, parts, &_from, &_to);
    for (int64_t _turn = _from; _turn < _to; _turn++) {
        const int64_t _block = _turn;
        const int64_t _skew = (int64_t)((uintptr_t)&x0[0] / 4 % 16);
        const int64_t _i0_first = tg_max_i(0, (16 * _block - _skew));
        const int64_t _i0_past = tg_min((16 * _block - _skew + 16), d_n);
        for (int64_t _j1_begin = 0; _j1_begin < 64; _j1_begin += 256) {
            const int64_t _j1_first = _j1_begin;
            const int64_t _j1_past = 64;
            float tile0[4096];
            turned_32(&tile0[0], 256, &x0[(_j1_first * d_n + _i0_first)], d_n, (-_i0_first + _i0_past), (-_j1_first + _j1_past));
            for (int64_t _i0 = _i0_first; _i0 < _i0_past; _i0++) {
                /* add */
                #pragma GCC ivdep
                for (int64_t _j1 = _j1_first; _j1 < _j1_past; _j1++) {
                    const float v0 = tile0[(256 * _i0 - 256 * _i0_first + _j1 - _j1_first)];
                    const float v1 = x1[(64 * _i0 + _j1)];
                    const float v2 = v0 + v1;
                    y0[(64 * _i0 + _j1)] = v2;
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
    a.x1 = ptr[2];
    const int64_t d_n = a.d_n = ints[0];
    (void)d_n;
    a.count = (((d_n + 14) / 16) + 1);
    if (a.count > 0) tg_parallel(generated_nest0, &a, tg_parts(tg_ceil(a.count, 1), tg_ceil(tg_ceil(16384, 1024), 1)));
}
