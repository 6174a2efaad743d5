/* nest over _i0 in 0..n + 1
 *     y0[16*_i0 + _j1] = where(v6, where(v12, ((v6 & v12) and x0[16*_g15 + _j1]), 0), 0.0)    over _j1 in 0..16
 *         where v6 = (at_least(i64(_i0 - 1), i64(0)) & at_least(i64(n), i64(_i0)))
 *         where v8 = cast((v6 and x1[_i0 - 1]))
 *         where v12 = (at_least(v8, i64(0)) & (v8 < i64(100)))
 * where _g15 = where((v6 & (at_least(v8, i64(0)) & (v8 < i64(100)))), v8, 0)
 * where v6 = (at_least(i64(_i0 - 1), i64(0)) & at_least(i64(n), i64(_i0)))
 * where v8 = cast((v6 and x1[_i0 - 1])) */
#include "numbers.h"

typedef struct generated_arguments {
    float *restrict y0;
    const float *restrict x0;
    const int32_t *restrict x1;
    int64_t d_n;
    int64_t count;
} generated_arguments;

static void generated_nest0(void *context, int part, int parts) {
    const generated_arguments *a = context;
    float *restrict y0 = a->y0;
    const float *restrict x0 = a->x0;
    const int32_t *restrict x1 = a->x1;
    const int64_t d_n = a->d_n;
    (void)d_n;
    int64_t _from, _to;
    tg_range(a->count, 1, part, parts, &_from, &_to);
    for (int64_t _turn = _from; _turn < _to; _turn++) {
        const int64_t _i0 = _turn;
        /* pad */
        const int64_t v0 = (_i0 - 1);
        const int64_t v1 = 0;
        const int v2 = v0 >= v1;
        const int64_t v3 = d_n;
        const int64_t v4 = _i0;
        const int v5 = v3 >= v4;
        const int v6 = v2 & v5;
        const int32_t v7 = v6 ? x1[(_i0 - 1)] : 0;
        const int64_t v8 = (int64_t)v7;
        const int v9 = v8 >= v1;
        const int64_t v10 = 100;
        const int v11 = v8 < v10;
        const int v12 = v9 & v11;
        const int v13 = v6 & v12;
        const int64_t v15 = v13 ? v8 : (int64_t)0LL;
        #pragma GCC ivdep
        for (int64_t _j1 = 0; _j1 < 16; _j1++) {
            const int64_t _g15 = v15;
            const float v16 = v13 ? x0[(16 * _g15 + _j1)] : 0;
            const float v18 = v12 ? v16 : 0x0.0p+0f;
            const float v20 = v6 ? v18 : 0x0.0p+0f;
            y0[(16 * _i0 + _j1)] = v20;
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
    a.count = (d_n + 1);
    if (a.count > 0) tg_parallel(generated_nest0, &a, tg_parts(tg_ceil(a.count, 1), tg_ceil(tg_ceil(16384, 17), 1)));
}
