/* nest over _r0p in 0..5
 *     y0p[_r0p] = max over _r0q in 0..16384 of x0[16384*_r0p + _r0q]
 * nest over nothing
 *     y0[0] = max over _r0t in 0..5 of y0p[_r0t] */
#include "numbers.h"

typedef struct generated_arguments {
    float *restrict y0;
    const float *restrict x0;
    float *restrict y0p;
    int64_t count;
} generated_arguments;

static void generated_nest0(void *context, int part, int parts) {
    const generated_arguments *a = context;
    const float *restrict x0 = a->x0;
    float *restrict y0p = a->y0p;
    int64_t _from, _to;
    tg_range(a->count, 1, part, parts, &_from, &_to);
    for (int64_t _turn = _from; _turn < _to; _turn++) {
        const int64_t _r0p = _turn;
        /* reduce_max, in parts */
        {
            int32_t total1 = order_f32(-INFINITY);
            #pragma omp simd reduction(max : total1)
            for (int64_t _r0q = 0; _r0q < 16384; _r0q++) {
                const float v1 = x0[(16384 * _r0p + _r0q)];
                const int32_t key = order_f32(v1); total1 = key > total1 ? key : total1;
            }
            y0p[_r0p] = unorder_f32(total1);
        }
    }
}

static void generated_nest1(void *context, int part, int parts) {
    const generated_arguments *a = context;
    float *restrict y0 = a->y0;
    float *restrict y0p = a->y0p;
    int64_t _from, _to;
    tg_range(a->count, 1, part, parts, &_from, &_to);
    /* reduce_max of the parts */
    {
        int32_t total2 = order_f32(-INFINITY);
        #pragma omp simd reduction(max : total2)
        for (int64_t _r0t = 0; _r0t < 5; _r0t++) {
            const float v2 = y0p[_r0t];
            const int32_t key = order_f32(v2); total2 = key > total2 ? key : total2;
        }
        y0[0] = unorder_f32(total2);
    }
}

TG_KERNEL(generated) {
    (void)floats, (void)ints;
    generated_arguments a;
    a.y0 = ptr[0];
    a.x0 = ptr[1];
    char *scratch = tg_scratch(0, 64);
    a.y0p = (float *)(scratch + 0);
    a.count = 5;
    if (a.count > 0) tg_parallel(generated_nest0, &a, tg_parts(tg_ceil(a.count, 1), tg_ceil(tg_ceil(16384, 16385), 1)));
    a.count = 1;
    generated_nest1(&a, 0, 1);
}
