/* narrow_attention.c: attention of bfloat16 as that of f32, whose result is rounded once. */
#include "attention.h"
#include "vec.h"

#include <math.h>

typedef struct conversion {
    float *wide;
    const uint16_t *from; /* NULL: to is narrowed into */
    uint16_t *to;
    int64_t count;
} conversion;

static void convert_part(void *ctx, int part, int parts) {
    const conversion *c = ctx;
    int64_t from, to;
    tg_range(c->count, 64, part, parts, &from, &to);
    if (c->from)
        for (int64_t i = from; i < to; i++) c->wide[i] = bf16_to_f32(c->from[i]);
    else
        for (int64_t i = from; i < to; i++) c->to[i] = bf16_of_f32(c->wide[i]);
}

static float *widen(float *wide, const uint16_t *from, int64_t count) {
    tg_parallel(convert_part, &(conversion){wide, from, NULL, count}, tg_parts(tg_ceil(count, 64), 1024));
    return wide + count;
}

/* The score of a key for a query; -infinity where it is hidden. */
static double score_of(void *const *ptr, const int64_t *ints, const double *floats, int64_t i, int64_t head, int64_t j) {
    const int64_t s = ints[1], hq = ints[2], hkv = ints[3], d = ints[4], causal = ints[5], window = ints[6], at = ints[7] + i;
    const uint16_t *q = (const uint16_t *)ptr[1] + (i * hq + head) * d, *k = (const uint16_t *)ptr[2] + (j * hkv + head / (hq / hkv)) * d;
    if ((causal && j > at) || (window && at - j >= window) || (ptr[4] && !((const uint8_t *)ptr[4])[i * s + j])) return -INFINITY;
    double sum = 0;
    for (int64_t c = 0; c < d; c++) sum += (double)bf16_to_f32(q[c]) * bf16_to_f32(k[c]);
    sum *= floats[0];
    return floats[1] > 0 ? floats[1] * tanh(sum / floats[1]) : sum;
}

/* The definition, for when there is not even memory for a copy; seen from outside, so that it can be tried. */
TG_KERNEL(tg_attention_one_by_one) {
    const int64_t n = ints[0], s = ints[1], hq = ints[2], hkv = ints[3], d = ints[4];
    const uint16_t *v = ptr[3];
    for (int64_t i = 0; i < n; i++)
        for (int64_t head = 0; head < hq; head++) {
            double most = -INFINITY;
            for (int64_t j = 0; j < s; j++) {
                const double score = score_of(ptr, ints, floats, i, head, j);
                most = score > most || score != score ? score : most; /* NaN stays */
            }
            for (int64_t c = 0; c < d; c++) {
                double sum = 0, all = 0;
                for (int64_t j = 0; j < s; j++) {
                    const double score = score_of(ptr, ints, floats, i, head, j), weight = score == -INFINITY ? 0 : exp(score - most);
                    all += weight, sum += weight * bf16_to_f32(v[(j * hkv + head / (hq / hkv)) * d + c]);
                }
                ((uint16_t *)ptr[0])[(i * hq + head) * d + c] = bf16_of_f32(all == 0 ? 0 : (float)(sum / all));
            }
        }
}

/* As in attention.h, of bfloat16. It takes scratch slot 2, too.
 * ptr: out, q, k, v, mask or NULL.  ints: those of tg_attention; all contiguous.  floats: scale, softcap. */
TG_KERNEL(tg_attention_bf16) {
    const int64_t queries = ints[0] * ints[2] * ints[4], keys = ints[1] * ints[3] * ints[4];
    if (queries <= 0) return;
    float *q = tg_scratch(2, (size_t)(2 * queries + 2 * keys) * 4);
    if (!q) return tg_attention_one_by_one(ptr, ints, floats);
    float *k = widen(q, ptr[1], queries), *v = widen(k, ptr[2], keys), *out = widen(v, ptr[3], keys);
    tg_attention((void *const[]){out, q, k, v, ptr[4]}, ints, floats);
    tg_parallel(convert_part, &(conversion){out, NULL, ptr[0], queries}, tg_parts(tg_ceil(queries, 64), 1024));
}
