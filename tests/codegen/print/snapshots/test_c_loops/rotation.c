/* nest over _i0 in 0..n, _i1 in 0..2
 *     y0[64*_i0 + 32*_i1 + _j2h] = where(v5, (((v5 and x0[64*_i0 + 32*_i1 + _j2h]) * (v5 and x1[16*_i0 + _j2h])) + (((v5 and x0[64*_i0 + 32*_i1 + _j2h + 16]) * (v5 and x2[16*_i0 + _j2h])) * -1.0)), 0.0)    over _j2h in 0..16
 *         where v5 = at_least(i64(n), i64(_i0 + 1))
 *     y0[64*_i0 + 32*_i1 + _j2h + 16] = where(v5, (((v5 and x0[64*_i0 + 32*_i1 + _j2h + 16]) * (v5 and x1[16*_i0 + _j2h])) + ((v5 and x0[64*_i0 + 32*_i1 + _j2h]) * (v5 and x2[16*_i0 + _j2h]))), 0.0)    over _j2h in 0..16
 *         where v5 = at_least(i64(n), i64(_i0 + 1)) */
#include "numbers.h"

typedef struct generated_arguments {
    float *restrict y0;
    const float *restrict x0;
    const float *restrict x1;
    const float *restrict x2;
    int64_t d_n;
    int64_t count;
} generated_arguments;

static void generated_nest0(void *context, int part, int parts) {
    const generated_arguments *a = context;
    float *restrict y0 = a->y0;
    const float *restrict x0 = a->x0;
    const float *restrict x1 = a->x1;
    const float *restrict x2 = a->x2;
    const int64_t d_n = a->d_n;
    (void)d_n;
    int64_t _from, _to;
    tg_range(a->count, 1, part, parts, &_from, &_to);
    for (int64_t _turn = _from; _turn < _to; _turn++) {
        const int64_t _i1_rest = (_turn / 2);
        const int64_t _i1 = (-2 * _i1_rest + _turn);
        const int64_t _i0 = _i1_rest;
        /* where */
        const int64_t v3 = d_n;
        const int64_t v4 = (_i0 + 1);
        const int v5 = v3 >= v4;
        #pragma GCC ivdep
        for (int64_t _j2h = 0; _j2h < 16; _j2h++) {
            const float v39 = v5 ? x0[(64 * _i0 + 32 * _i1 + _j2h)] : 0;
            const float v40 = v5 ? x1[(16 * _i0 + _j2h)] : 0;
            const float v41 = v39 * v40;
            const float v42 = v5 ? x0[(64 * _i0 + 32 * _i1 + _j2h + 16)] : 0;
            const float v43 = v5 ? x2[(16 * _i0 + _j2h)] : 0;
            const float v44 = v42 * v43;
            const float v45 = v44 * (-0x1.0000000000000p+0f);
            const float v46 = v41 + v45;
            const float v47 = v5 ? v46 : 0x0.0p+0f;
            y0[(64 * _i0 + 32 * _i1 + _j2h)] = v47;
            const float v62 = v42 * v40;
            const float v63 = v39 * v43;
            const float v64 = v62 + v63;
            const float v65 = v5 ? v64 : 0x0.0p+0f;
            y0[(64 * _i0 + 32 * _i1 + _j2h + 16)] = v65;
        }
    }
}

TG_KERNEL(generated) {
    (void)floats, (void)ints;
    generated_arguments a;
    a.y0 = ptr[0];
    a.x0 = ptr[1];
    a.x1 = ptr[2];
    a.x2 = ptr[3];
    const int64_t d_n = a.d_n = ints[0];
    (void)d_n;
    a.count = (2 * d_n);
    if (a.count > 0) tg_parallel(generated_nest0, &a, tg_parts(tg_ceil(a.count, 1), tg_ceil(tg_ceil(16384, 33), 1)));
}
