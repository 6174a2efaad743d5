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
    int64_t from, to;
    tg_range(a->count, 64, part, parts, &from, &to);
    (void)from, (void)to;
    /* sum */
    for (int64_t first = from, past; first < to; first = past) {
        past = tg_min(first + 256, to);
        double total0[256];
        for (int64_t at = 0; at < past - first; at++) total0[at] = 0.0;
        for (int64_t begin = 0, end; begin < d_n; begin = end) {
            end = tg_min(begin + 64, d_n);
            float part0[256];
            for (int64_t at = 0; at < past - first; at++) part0[at] = 0.0f;
            for (int64_t _r1 = begin; _r1 < end; _r1++) {
                #pragma GCC ivdep
                for (int64_t _j0 = first; _j0 < past; _j0++) {
                    const float v0 = x0[(_j0 + 64 * _r1)];
                    part0[_j0 - first] += v0;
                }
            }
            for (int64_t at = 0; at < past - first; at++) total0[at] += part0[at];
        }
        for (int64_t _j0 = first; _j0 < past; _j0++) {
            y0[_j0] = (float)total0[_j0 - first];
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
    if (a.count > 0) tg_parallel(generated_nest0, &a, tg_parts(tg_ceil(a.count, 64), tg_ceil(tg_ceil(PART_ELEMENTS, 512), 64)));
}
