/* nest over nothing
 *     y0[64*_j3 + _j4] = sum of all up to _j3 of x0[64*_j3 + _j4]    over _j3 in 0..n, _j4 in 0..64 */
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
    tg_range(a->count, 64, part, parts, &_from, &_to);
    /* sum */
    for (int64_t _first = _from, _past; _first < _to; _first = _past) {
        _past = tg_min(_first + 256, _to);
        double running3[256];
        for (int64_t at = 0; at < (-_first + _past); at++) running3[at] = 0;
        for (int64_t _j3 = 0; _j3 < d_n; _j3++) {
            #pragma GCC ivdep
            for (int64_t _j4 = _first; _j4 < _past; _j4++) {
                const float v3 = x0[(64 * _j3 + _j4)];
                running3[(-_first + _j4)] += (double)v3;
                y0[(64 * _j3 + _j4)] = (float)running3[(-_first + _j4)];
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
    a.count = 64;
    if (a.count > 0) tg_parallel(generated_nest0, &a, tg_parts(tg_ceil(a.count, 64), tg_ceil(tg_ceil(16384, 512), 64)));
}
