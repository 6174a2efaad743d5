/* nest over _j2p in 0..5
 *     y0p[_j2p] = sum over _j2q in 0..16384 of x0[16384*_j2p + _j2q]
 * nest over nothing
 *     y0b[_j2t] = sum of all before _j2t of y0p[_j2t]    over _j2t in 0..5
 * nest over _j2p in 0..5
 *     y0[16384*_j2p + _j2q] = sum of y0b[_j2p] and all up to _j2q of x0[16384*_j2p + _j2q]    over _j2q in 0..16384 */
#include "numbers.h"

typedef struct generated_arguments {
    int32_t *restrict y0;
    const int32_t *restrict x0;
    int32_t *restrict y0p;
    int32_t *restrict y0b;
    int64_t count;
} generated_arguments;

static void generated_nest0(void *context, int part, int parts) {
    const generated_arguments *a = context;
    const int32_t *restrict x0 = a->x0;
    int32_t *restrict y0p = a->y0p;
    int64_t _from, _to;
    tg_range(a->count, 1, part, parts, &_from, &_to);
    for (int64_t _turn = _from; _turn < _to; _turn++) {
        const int64_t _j2p = _turn;
        /* sum, in parts */
        {
            uint32_t total5 = 0;
            #pragma omp simd reduction(+ : total5)
            for (int64_t _j2q = 0; _j2q < 16384; _j2q++) {
                const int32_t v5 = x0[(16384 * _j2p + _j2q)];
                total5 += (uint32_t)v5;
            }
            y0p[_j2p] = (int32_t)total5;
        }
    }
}

static void generated_nest1(void *context, int part, int parts) {
    const generated_arguments *a = context;
    int32_t *restrict y0p = a->y0p;
    int32_t *restrict y0b = a->y0b;
    int64_t _from, _to;
    tg_range(a->count, 1, part, parts, &_from, &_to);
    /* before each part */
    {
        uint32_t running6 = 0;
        for (int64_t _begin = 0, _end; _begin < 5; _begin = _end) {
            _end = tg_min(_begin + 128, 5);
            int32_t block6[129];
            block6[0] = (int32_t)running6;
            #pragma GCC ivdep
            for (int64_t _j2t = _begin; _j2t < _end; _j2t++) {
                const int32_t v6 = y0p[_j2t];
                block6[(-_begin + _j2t + 1)] = v6;
            }
            for (int64_t _at = 1; _at < (-_begin + _end + 1); _at++) {
                running6 += (uint32_t)block6[_at];
                block6[_at] = (int32_t)running6;
            }
            #pragma GCC ivdep
            for (int64_t _j2t = _begin; _j2t < _end; _j2t++) {
                y0b[_j2t] = block6[(-_begin + _j2t)];
            }
        }
    }
}

static void generated_nest2(void *context, int part, int parts) {
    const generated_arguments *a = context;
    int32_t *restrict y0 = a->y0;
    const int32_t *restrict x0 = a->x0;
    int32_t *restrict y0b = a->y0b;
    int64_t _from, _to;
    tg_range(a->count, 1, part, parts, &_from, &_to);
    for (int64_t _turn = _from; _turn < _to; _turn++) {
        const int64_t _j2p = _turn;
        /* sum */
        {
            uint32_t running5;
            const int32_t v7 = y0b[_j2p];
            running5 = v7;
            for (int64_t _begin = 0, _end; _begin < 16384; _begin = _end) {
                _end = tg_min(_begin + 128, 16384);
                int32_t block5[128];
                #pragma GCC ivdep
                for (int64_t _j2q = _begin; _j2q < _end; _j2q++) {
                    const int32_t v5 = x0[(16384 * _j2p + _j2q)];
                    block5[(-_begin + _j2q)] = v5;
                }
                for (int64_t _at = 0; _at < (-_begin + _end); _at++) {
                    running5 += (uint32_t)block5[_at];
                    block5[_at] = (int32_t)running5;
                }
                #pragma GCC ivdep
                for (int64_t _j2q = _begin; _j2q < _end; _j2q++) {
                    y0[(16384 * _j2p + _j2q)] = block5[(-_begin + _j2q)];
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
    char *scratch = tg_scratch(0, 128);
    a.y0p = (int32_t *)(scratch + 0);
    a.y0b = (int32_t *)(scratch + 64);
    a.count = 5;
    if (a.count > 0) tg_parallel(generated_nest0, &a, tg_parts(tg_ceil(a.count, 1), tg_ceil(tg_ceil(16384, 16385), 1)));
    a.count = 1;
    generated_nest1(&a, 0, 1);
    a.count = 5;
    if (a.count > 0) tg_parallel(generated_nest2, &a, tg_parts(tg_ceil(a.count, 1), tg_ceil(tg_ceil(16384, 16385), 1)));
}
