/* nest over nothing
 *     y0[_j1_] = (((x0[_j1_] * 0.5) * erfc((x0[_j1_] * -0.7071067811865476))) * 2.0)    over _j1_ in 0..64*n */
#include "numbers.h"

typedef struct generated_arguments {
    uint16_t *restrict y0;
    const float *restrict x0;
    int64_t d_n;
    int64_t count;
} generated_arguments;

static void generated_nest0(void *context, int part, int parts) {
    const generated_arguments *a = context;
    uint16_t *restrict y0 = a->y0;
    const float *restrict x0 = a->x0;
    const int64_t d_n = a->d_n;
    (void)d_n;
    int64_t _from, _to;
    tg_range(a->count, 64, part, parts, &_from, &_to);
    /* mul */
    #pragma GCC ivdep
    for (int64_t _j1_ = _from; _j1_ < _to; _j1_++) {
        const float v9 = x0[_j1_];
        const float v10 = v9 * 0x1.0000000000000p-1f;
        const float v11 = v9 * (-0x1.6a09e667f3bcdp-1f);
        const float v12 = f32_erfc(v11);
        const float v13 = v10 * v12;
        const float v14 = v13 * 0x1.0000000000000p+1f;
        y0[_j1_] = bf16_of_f32(v14);
    }
}

TG_KERNEL(generated) {
    (void)floats, (void)ints;
    generated_arguments a;
    a.y0 = ptr[0];
    a.x0 = ptr[1];
    const int64_t d_n = a.d_n = ints[0];
    (void)d_n;
    a.count = (64 * d_n);
    if (a.count > 0) tg_parallel(generated_nest0, &a, tg_parts(tg_ceil(a.count, 64), tg_ceil(tg_ceil(16384, 8), 64)));
}
