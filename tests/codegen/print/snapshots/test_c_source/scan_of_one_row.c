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
    int64_t from, to;
    tg_range(a->count, 1, part, parts, &from, &to);
    for (int64_t turn = from; turn < to; turn++) {
        const int64_t _j2p = turn;
        (void)_j2p;
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
    int64_t from, to;
    tg_range(a->count, 1, part, parts, &from, &to);
    (void)from, (void)to;
    /* before each part */
    {
        uint32_t running6 = 0;
        for (int64_t begin = 0, end; begin < 5; begin = end) {
            end = tg_min(begin + 128, 5);
            int32_t block6[129];
            block6[0] = (int32_t)running6;
            #pragma GCC ivdep
            for (int64_t _j2t = begin; _j2t < end; _j2t++) {
                const int32_t v6 = y0p[_j2t];
                block6[_j2t - begin + 1] = v6;
            }
            for (int64_t at = 1; at < end - begin + 1; at++) {
                running6 += (uint32_t)block6[at];
                block6[at] = (int32_t)running6;
            }
            #pragma GCC ivdep
            for (int64_t _j2t = begin; _j2t < end; _j2t++) {
                y0b[_j2t] = block6[_j2t - begin];
            }
        }
    }
}

static void generated_nest2(void *context, int part, int parts) {
    const generated_arguments *a = context;
    int32_t *restrict y0 = a->y0;
    const int32_t *restrict x0 = a->x0;
    int32_t *restrict y0b = a->y0b;
    int64_t from, to;
    tg_range(a->count, 1, part, parts, &from, &to);
    for (int64_t turn = from; turn < to; turn++) {
        const int64_t _j2p = turn;
        (void)_j2p;
        /* sum */
        {
            const int32_t v7 = y0b[_j2p];
            uint32_t running5 = v7;
            for (int64_t begin = 0, end; begin < 16384; begin = end) {
                end = tg_min(begin + 128, 16384);
                int32_t block5[128];
                #pragma GCC ivdep
                for (int64_t _j2q = begin; _j2q < end; _j2q++) {
                    const int32_t v5 = x0[(16384 * _j2p + _j2q)];
                    block5[_j2q - begin] = v5;
                }
                for (int64_t at = 0; at < end - begin; at++) {
                    running5 += (uint32_t)block5[at];
                    block5[at] = (int32_t)running5;
                }
                #pragma GCC ivdep
                for (int64_t _j2q = begin; _j2q < end; _j2q++) {
                    y0[(16384 * _j2p + _j2q)] = block5[_j2q - begin];
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
    if (a.count > 0) tg_parallel(generated_nest0, &a, tg_parts(tg_ceil(a.count, 1), tg_ceil(tg_ceil(PART_ELEMENTS, 16385), 1)));
    a.count = 1;
    generated_nest1(&a, 0, 1);
    a.count = 5;
    if (a.count > 0) tg_parallel(generated_nest2, &a, tg_parts(tg_ceil(a.count, 1), tg_ceil(tg_ceil(PART_ELEMENTS, 16385), 1)));
}
