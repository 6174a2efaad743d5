/* nest over _i0 in 0..n
 *     t1[0] = sum over _r2 in 0..64 of (x0[_i0*_s0_0 + _r2] * x0[_i0*_s0_0 + _r2])
 *     y0[64*_i0 + _j1] = ((x0[_i0*_s0_0 + _j1] * cast(reciprocal(sqrt(((t1[0] * reciprocal(64.0)) + 1e-06))))) * x1[_j1])    over _j1 in 0..64 */
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
    int64_t _from, _to;
    tg_range(a->count, 1, part, parts, &_from, &_to);
    const double v3 = 1.0 / 0x1.0000000000000p+6;
    for (int64_t _turn = _from; _turn < _to; _turn++) {
        const int64_t _i0 = _turn;
        /* sum */
        double t1;
        {
            double total24 = 0;
            for (int64_t _begin = 0, _end; _begin < 64; _begin = _end) {
                _end = tg_min(_begin + 512, 64);
                double part24 = 0;
                float lane[VW];
                for (int64_t at = 0; at < VW; at++) lane[at] = 0;
                int64_t _at = _begin;
                for (; _at + VW <= _end; _at += VW) {
                    #pragma GCC ivdep
                    for (int64_t _l = 0; _l < VW; _l++) {
                        const int64_t _r2 = (_at + _l);
                        const float v13 = x0[(_i0 * _s0_0 + _r2)];
                        const float v24 = v13 * v13;
                        lane[_l] += v24;
                    }
                }
                #pragma omp simd reduction(+ : part24)
                for (int64_t _r2 = _at; _r2 < _end; _r2++) {
                    const float v13 = x0[(_i0 * _s0_0 + _r2)];
                    const float v24 = v13 * v13;
                    part24 += (double)v24;
                }
                f32_add_lanes(&part24, &lane[0]);
                const int v27 = bool_out_of_range(part24);
                if (v27) {
                    part24 = 0;
                    #pragma omp simd reduction(+ : part24)
                    for (int64_t _r2 = _begin; _r2 < _end; _r2++) {
                        const float v13 = x0[(_i0 * _s0_0 + _r2)];
                        const double v14 = (double)v13;
                        const double v15 = v14 * v14;
                        part24 += v15;
                    }
                }
                total24 += part24;
            }
            t1 = total24;
        }
        /* mul */
        const double v17 = t1 * v3;
        const double v18 = v17 + 0x1.0c6f7a0b5ed8dp-20;
        const double v19 = f64_sqrt(v18);
        const double v20 = 1.0 / v19;
        const float v21 = (float)v20;
        #pragma GCC ivdep
        for (int64_t _j1 = 0; _j1 < 64; _j1++) {
            const float v0 = x0[(_i0 * _s0_0 + _j1)];
            const float v22 = v0 * v21;
            const float v11 = x1[_j1];
            const float v23 = v22 * v11;
            y0[(64 * _i0 + _j1)] = v23;
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
    if (a.count > 0) tg_parallel(generated_nest0, &a, tg_parts(tg_ceil(a.count, 1), tg_ceil(tg_ceil(16384, 129), 1)));
}
