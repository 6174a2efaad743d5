/* argmax.c: the index of the largest element of each row; one long row (a vocabulary) is cut between the threads. */
#include "loops.h"
#include "vec.h"

enum { MOST_PIECES = 256, BLOCK = 8 * VW };

typedef struct best {
    double value;
    int64_t index; /* -1: the piece is empty */
} best;

/* The order of numpy.argmax: NaN above everything, the first of equals. */
TG_INLINE int beats(double x, double y) { return x > y || (x != x && y == y); }

#define BEST_OF(name, T)                                                                                            \
    static best name(const T *x, int64_t from, int64_t to) {                                                        \
        if (from >= to) return (best){0, -1};                                                                       \
        T value = x[from];                                                                                          \
        int64_t index = from, i = from;                                                                             \
        for (; i + BLOCK <= to; i += BLOCK) { /* look into a block only if something in it beats what is known */   \
            int found = 0;                                                                                          \
            for (int l = 0; l < BLOCK; l++) found |= !(x[i + l] <= value);                                          \
            if (found && value == value)                                                                            \
                for (int l = 0; l < BLOCK; l++)                                                                     \
                    if (beats(x[i + l], value)) value = x[i + l], index = i + l;                                    \
        }                                                                                                           \
        for (; i < to; i++)                                                                                         \
            if (beats(x[i], value)) value = x[i], index = i;                                                        \
        return (best){value, index};                                                                                \
    }

BEST_OF(best_of_f32, float)
BEST_OF(best_of_f64, double)

typedef struct search {
    const call *c;
    best *found;
    int64_t pieces;
    int i64, f64; /* the type of out, and of x */
} search;

TG_INLINE best best_of(const search *s, int64_t row, int64_t from, int64_t to) {
    const int64_t begin = row_at(s->c->ints + 2, row, s->c->ints[1]);
    if (s->f64) return best_of_f64((const double *)s->c->ptr[1] + begin, from, to);
    return best_of_f32((const float *)s->c->ptr[1] + begin, from, to);
}

TG_INLINE void put(const search *s, int64_t row, int64_t index) {
    if (s->i64) ((int64_t *)s->c->ptr[0])[row] = index;
    else ((int32_t *)s->c->ptr[0])[row] = (int32_t)index;
}

static void rows_part(void *ctx, int part, int parts) {
    const search *s = ctx;
    int64_t from, to, d = s->c->ints[1];
    tg_range(s->c->ints[0], 1, part, parts, &from, &to);
    for (int64_t row = from; row < to; row++)
        put(s, row, tg_max_i(0, best_of(s, row, 0, d).index));
}

static void pieces_part(void *ctx, int part, int parts) {
    const search *s = ctx;
    int64_t from, to, d = s->c->ints[1];
    tg_range(d, BLOCK, part, parts, &from, &to);
    for (int64_t row = 0; row < s->c->ints[0]; row++)
        s->found[row * parts + part] = best_of(s, row, from, to);
}

static void run_argmax(void *const *ptr, const int64_t *ints, int i64, int f64) {
    call c = {ptr, ints, NULL};
    best found[MOST_PIECES];
    search s = {.c = &c, .found = found, .i64 = i64, .f64 = f64};
    int64_t n = ints[0], d = ints[1];
    int parts = tg_parts(d, PART_ELEMENTS);
    if (parts < 2 || n * parts > MOST_PIECES) {
        if (n > 0) tg_parallel(rows_part, &s, tg_parts(n, tg_ceil(PART_ELEMENTS, tg_max_i(d, 1))));
        return;
    }
    tg_parallel(pieces_part, &s, parts);
    for (int64_t row = 0; row < n; row++) {
        best b = found[row * parts];
        for (int p = 1; p < parts; p++) {
            best next = found[row * parts + p];
            if (next.index >= 0 && (b.index < 0 || beats(next.value, b.value))) b = next;
        }
        put(&s, row, b.index);
    }
}

/* out[n] = index of the largest of x[n,d]; the first of equals, NaN counts as largest (as numpy.argmax); 0 when d is 0.
 * ptr: out (i32 or i64), x.  ints: n, d, group, far, near (of x: row_at). */
TG_KERNEL(tg_argmax_i32) { (void)floats, run_argmax(ptr, ints, 0, 0); }
TG_KERNEL(tg_argmax_i64) { (void)floats, run_argmax(ptr, ints, 1, 0); }
TG_KERNEL(tg_argmax_f64_i32) { (void)floats, run_argmax(ptr, ints, 0, 1); }
TG_KERNEL(tg_argmax_f64_i64) { (void)floats, run_argmax(ptr, ints, 1, 1); }
