/* nest over nothing
 *     y0[_j0] = sum over _r1 in 0..n of x0[_j0 + 64*_r1]    over _j0 in 0..64 */
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
        double total0[256];
        for (int64_t at = 0; at < (-_first + _past); at++) total0[at] = 0;
        for (int64_t _begin = 0, _end; _begin < d_n; _begin = _end) {
            _end = tg_min(_begin + 64, d_n);
            float part0[256];
            for (int64_t at = 0; at < (-_first + _past); at++) part0[at] = 0;
            for (int64_t _r1 = _begin; _r1 < _end; _r1++) {
                #pragma GCC ivdep
                for (int64_t _j0 = _first; _j0 < _past; _j0++) {
                    const float v0 = x0[(_j0 + 64 * _r1)];
                    part0[(-_first + _j0)] += v0;
                }
            }
            for (int64_t _at = 0; _at < (-_first + _past); _at++) {
                total0[_at] += (double)part0[_at];
            }
        }
        for (int64_t _j0 = _first; _j0 < _past; _j0++) {
            y0[_j0] = (float)total0[(-_first + _j0)];
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
