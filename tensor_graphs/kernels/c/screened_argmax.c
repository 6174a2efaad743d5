/* screened_argmax.c: the largest of x . w[j] over a vocabulary, exactly, while reading one byte per weight instead of four.
 *
 * Beforehand (weights are parameters) each row is rounded to 8-bit codes, w = scale * code + rest, and |rest| is kept (Euclidean
 * norms throughout). A call rounds x to 15 bits, x = step * short + off, and sums short * code in integers, exactly. Then
 *     |x . w - scale * step * (short . code)| <= |x| |rest| + |off| |scale * code|      (Cauchy and Schwarz)
 * gives every row two bounds. x . w is computed in f64 for the rows whose upper bound reaches the largest lower one: some 10 of
 * 262144 for normal numbers, all of them at worst. Nothing is approximate but the time. */
#include "loops.h"
#include "vec.h"

/* The largest code, the largest short, and how many of their products an int32 holds. */
enum { CODES = 127, SHORTS = 16383, CHUNK = 1024, STRIP = 16, STREAM_ROWS = 4 };

TG_INLINE double weight_at(const void *w, int64_t dtype, int64_t i) {
    return dtype == TG_BF16 ? bf16_to_f32(((const uint16_t *)w)[i]) : ((const float *)w)[i];
}

/* Upwards, beyond what rounding to f32 and the sums behind it may have lost: near 0 by the smallest normal number, as those below
 * have few digits; below the lowest f32 (of f64 operands) that one. */
TG_INLINE float above(double x) {
    const double up = x * (1 + (x < 0 ? -1e-6 : 1e-6)), lowest = -0x1.fffffep127;
    if (x != 0 && up > -1e-30 && up < 1e-30) return (float)(up + 0x1p-126);
    return (float)(up < lowest ? lowest : up);
}

/* One row, widened to f32: its codes, scale and norms. Sums run in LANES lanes so that the loops become vectors. */
enum { LANES = 16 };

static void screen_row(const float *w, int64_t k, int8_t *code, float *scale_out, float *rest_out, float *coded_out) {
    float most[LANES] = {0}, bad[LANES] = {0};
    double rest[LANES] = {0}, coded[LANES] = {0};
    const int64_t whole = k / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float size = __builtin_fabsf(w[i + l]);
            most[l] = size > most[l] ? size : most[l];
            bad[l] += w[i + l] - w[i + l]; /* 0, or NaN for NaN and infinity */
        }
    for (int64_t i = whole; i < k; i++) {
        float size = __builtin_fabsf(w[i]);
        most[0] = size > most[0] ? size : most[0];
        bad[0] += w[i] - w[i];
    }
    for (int l = 1; l < LANES; l++) most[0] = most[l] > most[0] ? most[l] : most[0], bad[0] += bad[l];
    const int finite = bad[0] == 0;
    const float scale = finite ? most[0] / CODES : 0.0f, inverse = scale >= 1e-30f ? 1.0f / scale : 0.0f;
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    for (int64_t i0 = 0; i0 < k; i0 += LANES) {
        const int64_t n = tg_min(LANES, k - i0);
        float held[LANES], v[LANES] = {0};
        if (finite)
            for (int64_t l = 0; l < n; l++) v[l] = w[i0 + l];
        for (int l = 0; l < LANES; l++) {
            float near = v[l] * inverse;
            near = near > CODES ? CODES : near;
            near = near < -CODES ? -CODES : near;
            held[l] = (near + shift) - shift;
        }
        for (int64_t l = 0; l < n; l++) code[i0 + l] = (int8_t)held[l];
        for (int l = 0; l < LANES; l++) {
            const double h = (double)scale * held[l], off = v[l] - h;
            rest[l] += off * off;
            coded[l] += h * h;
        }
    }
    for (int l = 1; l < LANES; l++) rest[0] += rest[l], coded[0] += coded[l];
    *scale_out = scale;
    *rest_out = finite ? above(__builtin_sqrt(rest[0])) : __builtin_inff(); /* such a row is always looked at */
    *coded_out = above(__builtin_sqrt(coded[0]));
}

static void screen_rows(const call *c, int64_t from, int64_t to) {
    const int64_t k = c->ints[1];
    float *scale = c->ptr[1], *rest = c->ptr[2], *coded = c->ptr[3], *wide = NULL;
    if (c->ints[2] == TG_BF16) wide = tg_scratch(1, (size_t)k * 4 + 4);
    for (int64_t j = from; j < to; j++) {
        int8_t *code = (int8_t *)c->ptr[0] + j * k;
        const float *w = wide;
        if (c->ints[2] == TG_F32) w = (const float *)c->ptr[4] + j * k;
        else if (wide)
            for (int64_t i = 0; i < k; i++) wide[i] = bf16_to_f32(((const uint16_t *)c->ptr[4])[j * k + i]);
        if (w) screen_row(w, k, code, scale + j, rest + j, coded + j);
        else memset(code, 0, (size_t)k), scale[j] = coded[j] = 0, rest[j] = __builtin_inff(); /* no memory: look at all */
    }
}

/* codes[m,k], scale[m], |rest|[m], |scale * code|[m] of the rows of w[m,k].
 * ptr: codes (i8), scale, rest, coded (f32), w.  ints: m, k, w_dtype. */
ROWS_KERNEL(tg_screen_rows, ints[0], ints[1], screen_rows)

typedef struct best {
    double value;
    int64_t index; /* -1: nothing was looked at */
} best;

typedef struct search {
    const void *x, *w;
    const int8_t *codes;
    const float *scale, *rest, *coded;
    int16_t *shorts; /* [nx][k] */
    float *high;     /* [nx][m]: the upper bounds */
    double *most;    /* [nx][strips]: the largest of each strip */
    int64_t m, k, dtype, row, nx, strips;
    int wide; /* x is f64 */
    double step[STREAM_ROWS], size[STREAM_ROWS], off[STREAM_ROWS]; /* of x, |x|, |off| */
    double least[STREAM_ROWS];                                     /* the largest lower bound */
    double *lower;                                /* [parts][STREAM_ROWS] */
    best *found;                                  /* [parts][STREAM_ROWS] */
} search;

TG_INLINE double x_at(const search *s, int64_t row, int64_t i) {
    return s->wide ? ((const double *)s->x)[row * s->k + i] : (double)((const float *)s->x)[row * s->k + i];
}

/* NaN above everything, the first of equals: the order of numpy.argmax. Rows are asked for in any order. */
TG_INLINE int beats(double value, int64_t index, const best *b) {
    if (b->index < 0 || (value != value) != (b->value != b->value)) return b->index < 0 || value != value;
    return value > b->value || (index < b->index && (value == b->value || value != value));
}

/* The loop that all the time goes into: gcc and clang make of it a widening load and a multiply-add of 16-bit pairs. */
TG_INLINE int32_t code_sum(const int8_t *restrict code, const int16_t *restrict x, int64_t k) {
    int32_t sum = 0;
    for (int64_t i = 0; i < k; i++) {
        int16_t wide = code[i];
        sum += (int32_t)wide * (int32_t)x[i];
    }
    return sum;
}

/* The rows [from, to), a strip at a time: their bounds, the largest upper one of each strip, and the largest lower one of all. A
 * bound that is NaN excludes nothing. */
static void code_products(const search *s, int64_t c, int64_t from, int64_t to, double *lower) {
    const int64_t k = s->k;
    const double factor = s->step[c], size = s->size[c], off = s->off[c];
    double least[STRIP], infinite = __builtin_inf();
    for (int l = 0; l < STRIP; l++) least[l] = -infinite;
    for (int64_t j0 = from; j0 < to; j0 += STRIP) {
        const int64_t rows = tg_min(STRIP, to - j0);
        double sum[STRIP] = {0}, most = -infinite;
        float scale[STRIP] = {0}, rest[STRIP], coded[STRIP] = {0};
        for (int l = 0; l < STRIP; l++) rest[l] = __builtin_inff(); /* behind the last row: no bounds */
        for (int64_t l = 0; l < rows; l++) {
            const int8_t *code = s->codes + (j0 + l) * k;
            for (int64_t i = 0; i < k; i += 64) tg_ahead(code + i);
            for (int64_t i = 0; i < k; i += CHUNK) sum[l] += code_sum(code + i, s->shorts + c * k + i, tg_min(CHUNK, k - i));
        }
        memcpy(scale, s->scale + j0, (size_t)rows * 4);
        memcpy(rest, s->rest + j0, (size_t)rows * 4);
        memcpy(coded, s->coded + j0, (size_t)rows * 4);
        double high[STRIP];
        for (int l = 0; l < STRIP; l++) {
            double near = sum[l] * factor * scale[l], reach = rest[l] * size + coded[l] * off;
            reach += 1e-12 * (near < 0 ? -near : near); /* what these three lines round */
            double low = near - reach;
            high[l] = near + reach;
            least[l] = low > least[l] ? low : least[l];
        }
        for (int64_t l = 0; l < rows; l++) {
            s->high[c * s->m + j0 + l] = above(high[l]);
            most = high[l] > most ? high[l] : most;
            most = high[l] == high[l] ? most : infinite;
        }
        s->most[c * s->strips + j0 / STRIP] = most;
    }
    for (int l = 0; l < STRIP; l++) *lower = least[l] > *lower ? least[l] : *lower;
}

static void screen_part(void *ctx, int part, int parts) {
    const search *s = ctx;
    int64_t from, to;
    tg_range(s->m, STRIP, part, parts, &from, &to);
    for (int c = 0; c < STREAM_ROWS; c++) s->lower[part * STREAM_ROWS + c] = -__builtin_inf();
    /* strips outside, so that with several rows of x the codes come from memory once */
    for (int64_t j = from; j < to; j += 16 * STRIP)
        for (int64_t c = 0; c < s->nx; c++)
            code_products(s, c, j, tg_min(to, j + 16 * STRIP), &s->lower[part * STREAM_ROWS + c]);
}

TG_INLINE double exact_product(const search *s, int64_t row, int64_t j) {
    double lane[8] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 8 <= s->k; i += 8)
        for (int l = 0; l < 8; l++) lane[l] += x_at(s, row, i + l) * weight_at(s->w, s->dtype, j * s->k + i + l);
    for (; i < s->k; i++) sum += x_at(s, row, i) * weight_at(s->w, s->dtype, j * s->k + i);
    return sum + (((lane[0] + lane[4]) + (lane[1] + lane[5])) + ((lane[2] + lane[6]) + (lane[3] + lane[7])));
}

static void exact_part(void *ctx, int part, int parts) {
    const search *s = ctx;
    int64_t from, to;
    tg_range(s->m, STRIP, part, parts, &from, &to);
    for (int c = 0; c < s->nx; c++) {
        best b = {0, -1};
        for (int64_t j0 = from; j0 < to; j0 += STRIP) {
            if (s->most[c * s->strips + j0 / STRIP] < s->least[c]) continue;
            for (int64_t j = j0; j < tg_min(to, j0 + STRIP); j++) {
                if (s->high[c * s->m + j] < s->least[c]) continue;
                double value = exact_product(s, s->row + c, j);
                if (beats(value, j, &b)) b = (best){value, j};
            }
        }
        s->found[part * STREAM_ROWS + c] = b;
    }
}

/* Rounds a row of x to shorts. A row with NaN, infinity or numbers near the ends of the range is not screened: |x| is NaN. */
static void shorten(search *s, int64_t c) {
    double most = 0, square = 0, off = 0;
    int fit = 1;
    for (int64_t i = 0; i < s->k; i++) {
        const double v = x_at(s, s->row + c, i), size = v < 0 ? -v : v;
        fit &= size <= 1e100;
        most = size > most ? size : most;
        square += v * v;
    }
    fit &= most == 0 || most >= 1e-100;
    const double step = fit ? most / SHORTS : 0.0;
    for (int64_t i = 0; i < s->k; i++) {
        const double v = fit ? x_at(s, s->row + c, i) : 0.0, near = step > 0 ? v / step : 0.0;
        const int16_t rounded = (int16_t)(near + (near < 0 ? -0.5 : 0.5));
        s->shorts[c * s->k + i] = rounded;
        off += (v - step * rounded) * (v - step * rounded);
    }
    s->step[c] = step;
    s->size[c] = fit ? __builtin_sqrt(square) * (1 + 1e-9) : __builtin_nan("");
    s->off[c] = __builtin_sqrt(off) * (1 + 1e-9);
    s->least[c] = -(double)__builtin_inff();
}

enum { MOST_PARTS = 64 };

/* value[n], index[n]: the largest of x[n,k] . w[m,k]^T over m and the first row that has it; NaN counts as largest. m >= 1.
 * ptr: value (f32, or f64 as x), index (i32), x, w, codes, scale, rest, coded.  ints: n, m, k, w_dtype, x is f64. */
TG_KERNEL(tg_screened_argmax) {
    (void)floats;
    const int64_t n = ints[0], m = ints[1], k = ints[2];
    if (n <= 0 || m <= 0) return;
    double lower[MOST_PARTS * STREAM_ROWS];
    best found[MOST_PARTS * STREAM_ROWS];
    search s = {.x = ptr[2], .w = ptr[3], .codes = ptr[4], .scale = ptr[5], .rest = ptr[6], .coded = ptr[7], .m = m, .k = k, .dtype = ints[3],
                .wide = (int)ints[4], .lower = lower, .found = found};
    const int64_t most = tg_min(n, STREAM_ROWS);
    s.strips = tg_ceil(m, STRIP);
    char *memory = tg_scratch(0, (size_t)(most * (s.strips * 8 + m * 4 + k * 2)) + 64);
    s.most = (double *)memory;
    s.high = (float *)(memory + most * s.strips * 8);
    s.shorts = (int16_t *)(memory + most * (s.strips * 8 + m * 4));
    const int parts = (int)tg_min(MOST_PARTS, tg_parts(m, tg_ceil(32 << 10, tg_max_i(k, 1))));
    for (s.row = 0; s.row < n; s.row += STREAM_ROWS) {
        s.nx = tg_min(STREAM_ROWS, n - s.row);
        if (memory) {
            for (int c = 0; c < s.nx; c++) shorten(&s, c);
            tg_parallel(screen_part, &s, parts);
            for (int p = 0; p < parts; p++)
                for (int64_t c = 0; c < s.nx; c++) {
                    const double bound = lower[p * STREAM_ROWS + c];
                    s.least[c] = bound > s.least[c] ? bound : s.least[c];
                }
            tg_parallel(exact_part, &s, parts);
        }
        for (int64_t c = 0; c < s.nx; c++) {
            best b = {0, -1};
            for (int p = 0; memory && p < parts; p++) {
                const best *other = found + p * STREAM_ROWS + c;
                if (other->index >= 0 && beats(other->value, other->index, &b)) b = *other;
            }
            for (int64_t j = 0; !memory && j < m; j++) {
                double value = exact_product(&s, s.row + c, j);
                if (beats(value, j, &b)) b = (best){value, j};
            }
            if (s.wide) ((double *)ptr[0])[s.row + c] = b.value;
            else ((float *)ptr[0])[s.row + c] = (float)b.value;
            ((int32_t *)ptr[1])[s.row + c] = (int32_t)b.index;
        }
    }
}
