/* scatter.c: rows written or added to where an index says. The indices are sorted by counting first, so that each row of the result is
 * made once, by one thread, whatever the others do: what is added to it is summed in double, in the order of the indices. */
#include <string.h>

#include "loops.h"

typedef struct plan {
    const call *c;
    const int64_t *first, *which; /* updates of row r: which[first[r]] to which[first[r + 1] - 1] */
} plan;

TG_INLINE int64_t index_at(const void *index, int64_t i64, int64_t i) {
    return i64 ? ((const int64_t *)index)[i] : ((const int32_t *)index)[i];
}

enum { BLOCK = 256 };

/* One unit is a row of one of outer. */
#define SCATTER(T, SUM, name)                                                                                          \
    static void name##_part(void *ctx, int part, int parts) {                                                          \
        const plan *p = ctx;                                                                                           \
        const int64_t outer = p->c->ints[0], size = p->c->ints[1], count = p->c->ints[2], inner = p->c->ints[3];       \
        const int add = (int)p->c->ints[5];                                                                            \
        int64_t from, to;                                                                                              \
        tg_range(outer * size, 1, part, parts, &from, &to);                                                            \
        for (int64_t unit = from; unit < to; unit++) {                                                                 \
            const int64_t o = unit / size, row = unit % size, begin = p->first[row], end = p->first[row + 1];          \
            const T *base = (const T *)p->c->ptr[1] + unit * inner;                                                    \
            const T *updates = (const T *)p->c->ptr[3] + o * count * inner;                                            \
            T *out = (T *)p->c->ptr[0] + unit * inner;                                                                 \
            if (begin == end) {                                                                                        \
                if (out != base) memcpy(out, base, (size_t)inner * sizeof(T));                                         \
            } else if (!add) {                                                                                         \
                memcpy(out, updates + p->which[end - 1] * inner, (size_t)inner * sizeof(T));                           \
            } else {                                                                                                   \
                for (int64_t at = 0; at < inner; at += BLOCK) {                                                        \
                    const int64_t n = tg_min(inner - at, BLOCK);                                                       \
                    SUM sum[BLOCK];                                                                                    \
                    for (int64_t i = 0; i < n; i++) sum[i] = (SUM)base[at + i];                                        \
                    for (int64_t u = begin; u < end; u++) {                                                            \
                        const T *one = updates + p->which[u] * inner + at;                                             \
                        for (int64_t i = 0; i < n; i++) sum[i] += (SUM)one[i];                                         \
                    }                                                                                                  \
                    for (int64_t i = 0; i < n; i++) out[at + i] = (T)sum[i];                                           \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void name##_one_by_one(const call *c) { /* without memory for the order */                                  \
        const int64_t outer = c->ints[0], size = c->ints[1], count = c->ints[2], inner = c->ints[3];                   \
        T *out = c->ptr[0];                                                                                            \
        if (out != c->ptr[1]) memcpy(out, c->ptr[1], (size_t)(outer * size * inner) * sizeof(T));                      \
        for (int64_t u = 0; u < outer * count; u++) {                                                                  \
            const int64_t row = index_at(c->ptr[2], c->ints[4], u % count);                                            \
            const T *one = (const T *)c->ptr[3] + u * inner;                                                           \
            if (row < 0 || row >= size) continue;                                                                      \
            T *to = out + (u / count * size + row) * inner;                                                            \
            for (int64_t i = 0; i < inner; i++) to[i] = c->ints[5] ? (T)((SUM)to[i] + (SUM)one[i]) : one[i];           \
        }                                                                                                              \
    }

SCATTER(float, double, f32)
SCATTER(double, double, f64)
SCATTER(int32_t, uint32_t, i32)
SCATTER(int64_t, uint64_t, i64)

static void run_scatter(void (*body)(void *, int, int), void (*one_by_one)(const call *), void *const *ptr, const int64_t *ints) {
    const int64_t outer = ints[0], size = ints[1], count = ints[2], inner = ints[3], i64 = ints[4];
    if (outer * size * inner <= 0) return;
    int64_t *first = tg_scratch(0, (size_t)(size + 1 + count) * 8), *which = first ? first + size + 1 : NULL;
    call c = {ptr, ints, NULL};
    if (!first) {
        one_by_one(&c);
        return;
    }
    memset(first, 0, (size_t)(size + 1) * 8);
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = index_at(ptr[2], i64, i);
        if (row >= 0 && row < size) first[row]++;
    }
    for (int64_t r = 0, total = 0; r <= size; r++) { /* behind the last update of each row */
        total += first[r];
        first[r] = total;
    }
    for (int64_t i = count - 1; i >= 0; i--) { /* backwards, so that first becomes the first one's place and order is kept */
        const int64_t row = index_at(ptr[2], i64, i);
        if (row >= 0 && row < size) which[--first[row]] = i;
    }
    plan p = {&c, first, which};
    const int64_t each = inner * (1 + count / size);
    tg_parallel(body, &p, tg_parts(outer * size, tg_ceil(PART_ELEMENTS, each)));
}

/* out[outer, size, inner] = base, with updates[outer, count, inner] written to, or added to, the rows of `size` that index[count] says;
 * an index out of range is left out. out may be base.
 * ptr: out, base, index (i32 or i64), updates.  ints: outer, size, count, inner, index dtype, whether they are added. */
TG_KERNEL(tg_scatter_f32) { (void)floats, run_scatter(f32_part, f32_one_by_one, ptr, ints); }
TG_KERNEL(tg_scatter_f64) { (void)floats, run_scatter(f64_part, f64_one_by_one, ptr, ints); }
TG_KERNEL(tg_scatter_i32) { (void)floats, run_scatter(i32_part, i32_one_by_one, ptr, ints); }
TG_KERNEL(tg_scatter_i64) { (void)floats, run_scatter(i64_part, i64_one_by_one, ptr, ints); }
