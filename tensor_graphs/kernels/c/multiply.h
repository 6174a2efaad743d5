/* multiply.h: the body of product.c and wide_product.c: out = a . b in batches, with a stride for every axis of every operand, and
 * a bias. ROWS_PRODUCT: the register tile; STREAM_LIMIT: columns of b up to which a is a stream.
 *
 * The tile broadcasts elements of a, whose rows are read where they lie if that is possible, and multiplies them by panels of b,
 * which are packed: the lanes of a vector are columns of b. Who calls decides which operand is a. Of few rows of x by many weights the
 * weights are, so that only x is packed. Of a convolution b is what its windows see (windows.h). */
#include "pairs.h"
#include "product.h"
#include "real.h"
#include "turned.h"
#include "windows.h"

enum { STREAM_X = 4 /* columns of b that pass by each row of a together */, MOST_TILES = 16 /* of a group of rows */, PACK_AHEAD = 16 };
enum { REAL = sizeof(real) == 8 ? TG_F64 : TG_F32, GROUP_BYTES = 192 << 10 /* of a group: with what passes by it fills no L2 cache */ };
enum { PACKED_STEPS = 32 /* of b that are widened at once */ };

typedef struct product {
    char *out;
    const char *a, *b;
    const void *bias; /* of each row of a, or of each column of b; or NULL */
    int64_t batch, m, n, k, ob, om, on, ab, am, ak, bb, bk, bn; /* out[batch, m, n] = a[batch, m, k] . b[batch, k, n] */
    int64_t groups; /* matrices of a, and rows of the bias: of batch i the ones of i % groups; 0: one for each */
    int64_t out_dtype, a_dtype, b_dtype, bias_dtype, bias_of_columns;
    const windows *seen;            /* b is what these see; NULL: its strides say where it lies */
    const real *streamed;           /* few columns: b in the order that the stream reads */
    const char *panels;             /* all of b, packed; NULL: each task packs the panel that it multiplies by */
    int64_t tiles, columns, chunks; /* tiles of a group of rows; columns of a task, and chunks that the rows are cut into for it */
    const extent *of_rows;          /* by pairs: of each row of the first `looked_at` matrices of a; NULL: each task looks at its own */
    int64_t looked_at;
    tg_decode decode;               /* turns columns of b into floats; NULL: b is numbers of its dtype */
} product;

/* Whether the tile of pairs_tile.h multiplies. */
TG_INLINE int by_pairs(const product *p) {
    return PAIRS && (int)REAL == TG_F32 && p->a_dtype == TG_BF16 && p->b_dtype == TG_BF16;
}

TG_INLINE int64_t group_of(const product *p, int64_t batch) { return p->groups ? batch % p->groups : batch; }

TG_INLINE real bias_at(const product *p, int64_t batch, int64_t row, int64_t column) {
    if (!p->bias) return 0;
    return (real)widened(p->bias, p->bias_dtype, p->bias_of_columns ? column : p->groups ? group_of(p, batch) * p->m + row : row);
}

TG_INLINE double a_at(const product *p, int64_t batch, int64_t row, int64_t l) {
    return widened(p->a, p->a_dtype, group_of(p, batch) * p->ab + row * p->am + l * p->ak);
}

TG_INLINE double b_at(const product *p, int64_t batch, int64_t l, int64_t column) {
    if (p->decode) {
        float part[DECODED * VW];
        p->decode(p->b, p->k, column / VW * VW, VW, l / DECODED * DECODED, DECODED, part);
        return part[l % DECODED * VW + column % VW];
    }
    const int64_t at = p->seen ? seen_at(p->seen, l, column) : l * p->bk + column * p->bn;
    return at < 0 ? 0 : widened(p->b, p->b_dtype, batch * p->bb + at);
}

TG_INLINE void store_at(const product *p, int64_t at, real sum) {
    if (p->out_dtype == REAL) ((real *)p->out)[at] = sum;
    else ((uint16_t *)p->out)[at] = p->out_dtype == TG_BF16 ? bf16_of_f32((float)sum) : f16_of_f32((float)sum);
}

/* `count` sums that lie one behind the other in the result. */
TG_INLINE void store_run(const product *p, int64_t at, const real *sums, int64_t count) {
    uint16_t *narrow = (uint16_t *)p->out + at;
    if (p->out_dtype == REAL)
        for (int64_t l = 0; l < count; l++) ((real *)p->out)[at + l] = sums[l];
    else if (p->out_dtype == TG_BF16)
        for (int64_t l = 0; l < count; l++) narrow[l] = bf16_of_f32((float)sums[l]);
    else
        for (int64_t l = 0; l < count; l++) narrow[l] = f16_of_f32((float)sums[l]);
}

TG_INLINE double one_sum(const product *p, int64_t batch, int64_t row, int64_t column) {
    double sum = 0;
    for (int64_t l = 0; l < p->k; l++) sum += a_at(p, batch, row, l) * b_at(p, batch, l, column);
    return sum;
}

/* The definition, for when there is not even memory for a panel, or an infinity went through a compensated sum. */
static __attribute__((noinline)) void one_by_one(const product *p, int64_t batch, int64_t row, int64_t rows, int64_t column,
                                                 int64_t columns) {
    for (int64_t i = row; i < row + rows; i++)
        for (int64_t j = column; j < column + columns; j++)
            store_at(p, batch * p->ob + i * p->om + j * p->on, (real)(one_sum(p, batch, i, j) + bias_at(p, batch, i, j)));
}

/* --- few columns, of a linear: every row of a is read once, in memory order --- */

/* Cache lines of a row whose products add up, one or two vectors per column, before they go into a total that keeps what additions
 * round away. The error of an f32 sum at k = 640 and 2048, against the rms of a row: 6e-8, and the largest of 80000 3e-7 (7e-8, 4e-7
 * with 8 lines; one f32 sum per lane: 2e-7, 1e-6), at 97 % of the speed with 16 lanes. With bfloat16 and 3 or 4 columns, 4 lines would
 * be slower than the memory. */
TG_INLINE int chain_lines(const int nx, const int dtype) { return (VW < 8 ? 2 : 4) * (dtype == TG_BF16 && nx > 2 ? 2 : 1); }

/* A sum of vectors, lane by lane, that knows what its additions rounded away (Kahan, Further remarks on reducing truncation
 * errors, 1965): the sum is `high - excess`. Start from zeros. */
typedef struct total {
    vr high, excess;
} total;

TG_INLINE void total_add(total *t, vr v) {
    if ((int)REAL == TG_F64) { /* which needs no such care */
        t->high += v;
        return;
    }
    const vr missing = v - t->excess, high = t->high + missing;
    t->excess = (high - t->high) - missing;
    t->high = high;
}

/* Two bfloat16 lie in each 32-bit word, the even one low: one shift and one mask widen a whole vector of words, if the columns are
 * kept as [VR even elements][VR odd elements] per 2 * VR. What is left after the last whole cache line of a row stays in order. */
TG_INLINE void split_pairs(const void *b, const int dtype, int64_t n, int64_t k, real *to) {
    const int64_t whole = k / 32 * 32; /* the elements that row_products takes by whole lines */
    for (int64_t c = 0, at = 0; c < n; c++, at += k, to += k) {
        int64_t i = 0;
        for (; i + 2 * VR <= whole; i += 2 * VR)
            for (int64_t l = 0; l < VR; l++) {
                to[i + l] = (real)widened(b, dtype, at + i + 2 * l);
                to[i + VR + l] = (real)widened(b, dtype, at + i + 2 * l + 1);
            }
        for (; i < k; i++) to[i] = (real)widened(b, dtype, at + i);
    }
}

/* acc[c][...] += one line of a row times the same elements of each column. */
TG_INLINE void line_products(const int nx, const int dtype, const char *a, const real *const *x, int64_t i, vr acc[STREAM_X][2]) {
    tg_ahead(a);
    for (int v = 0; v < 64 / (dtype == TG_F64 ? 8 : 4); v += VR) {
        if (dtype == TG_BF16) {
            vr even, odd;
            r_load_pairs(a + v * 4, &even, &odd);
            for (int c = 0; c < nx; c++) {
                acc[c][0] += even * r_load(x[c] + i + 2 * v);
                acc[c][1] += odd * r_load(x[c] + i + 2 * v + VR);
            }
        } else {
            const vr weight = r_load_weights(a, dtype, v);
            for (int c = 0; c < nx; c++) acc[c][v / VR % 2] += weight * r_load(x[c] + i + v);
        }
    }
}

/* sums[c] = a . x[c] for one row of a and `nx` columns, k from each other. One row at a time read the memory fastest: 2 and 4
 * side by side were 5 to 30 % slower. */
TG_INLINE void row_products(const int nx, const int dtype, const char *a, const real *columns, int64_t k, double *sums) {
    const int step = 64 / weight_bytes(dtype), chain = chain_lines(nx, dtype);
    const real *x[STREAM_X];
    total sum[STREAM_X];
    for (int c = 0; c < nx; c++) x[c] = columns + c * k, sum[c] = (total){{0}, {0}};
    for (int64_t lines = k / step; lines > 0; lines -= chain) {
        const int64_t count = tg_min(lines, chain);
        vr acc[STREAM_X][2];
        for (int c = 0; c < nx; c++) acc[c][0] = acc[c][1] = (vr){0};
        if (count == chain) {
            _Pragma("GCC unroll 8") for (int i = 0; i < chain; i++) line_products(nx, dtype, a + i * 64, x, i * step, acc);
        } else
            for (int64_t i = 0; i < count; i++) line_products(nx, dtype, a + i * 64, x, i * step, acc);
        a += count * 64;
        for (int c = 0; c < nx; c++) {
            x[c] += count * step;
            total_add(&sum[c], dtype == TG_BF16 || VR < 16 ? acc[c][0] + acc[c][1] : acc[c][0]);
        }
    }
    for (int c = 0; c < nx; c++) sums[c] = r_sum(sum[c].high); /* the last excess, half a unit of a lane, is let go */
    for (int64_t i = 0; i < k % step; i++)
        for (int c = 0; c < nx; c++) sums[c] += widened(a, dtype, i) * x[c][i];
}

TG_INLINE void row_outputs(const product *p, int64_t i, int64_t j, const int nx, const int dtype) {
    double sums[STREAM_X];
    row_products(nx, dtype, p->a + i * p->k * weight_bytes(dtype), p->streamed + j * p->k, p->k, sums);
    const double bias = bias_at(p, 0, i, 0);
    for (int c = 0; c < nx; c++) { /* a sum that met an infinity is NaN, whatever it should be: it is made again */
        if (sums[c] == sums[c]) store_at(p, i + (j + c) * p->m, (real)(sums[c] + bias));
        else one_by_one(p, 0, i, 1, j + c, 1);
    }
}

TG_INLINE void stream_rows(const product *p, int64_t from, int64_t to, const int dtype) {
    for (int64_t i = from; i < to; i++) {
        int64_t j = 0; /* more than STREAM_X columns: the row comes from the L1 cache after the first turn */
        for (; j + 4 <= p->n; j += 4) row_outputs(p, i, j, 4, dtype);
        switch (p->n - j) {
            case 3: row_outputs(p, i, j, 3, dtype); break;
            case 2: row_outputs(p, i, j, 2, dtype); break;
            case 1: row_outputs(p, i, j, 1, dtype); break;
        }
    }
}

static void stream_part(void *ctx, int part, int parts) {
    const product *p = ctx;
    int64_t from, to;
    tg_range(p->m, 8, part, parts, &from, &to);
    if (p->a_dtype == TG_BF16) stream_rows(p, from, to, TG_BF16);
    else if (p->a_dtype == REAL) stream_rows(p, from, to, REAL);
    else stream_rows(p, from, to, TG_F32);
}

static void few_columns(product p) {
    p.streamed = (const real *)p.b;
    if (p.a_dtype == TG_BF16) {
        real *split = tg_scratch(0, (size_t)(p.n * p.k) * sizeof(real) + 8);
        if (!split) return one_by_one(&p, 0, 0, p.m, 0, p.n);
        if (p.b_dtype == TG_BF16) split_pairs(p.b, TG_BF16, p.n, p.k, split);
        else split_pairs(p.b, REAL, p.n, p.k, split);
        p.streamed = split;
    }
    tg_parallel(stream_part, &p, tg_parts(p.m, tg_ceil(32 << 10, tg_max_i(p.k * weight_bytes(p.a_dtype), 1))));
}

/* --- panels of b: [k][one or two vectors of lanes], zeros in lanes that are left over --- */

/* to[step][lanes]: lines of b in its own dtype, of `size` bytes, and zeros in lanes that are left over. */
TG_INLINE void lines_of_b(const product *p, const int size, int64_t batch, int64_t column, int64_t count, int64_t lanes, int64_t from,
                          int64_t steps, char *to) {
    if (p->seen) return gather(p->seen, size, REAL_PANEL, p->b + batch * p->bb * size, column, count, lanes, from, steps, to);
    const char *b = p->b + (batch * p->bb + from * p->bk + column * p->bn) * size;
    const int64_t apart = p->bk * size;
    if (p->bn == 1 && count == REAL_PANEL) {
        for (int64_t i = 0; i < steps; i++, b += apart, to += REAL_PANEL * size) {
            if (p->bk >= 8 * REAL_PANEL) /* lines that lie apart are asked for ahead */
                __builtin_prefetch(b + PACK_AHEAD * apart, 0, 3), __builtin_prefetch(b + PACK_AHEAD * apart + (REAL_PANEL - 1) * size, 0, 3);
            memcpy(to, b, (size_t)(REAL_PANEL * size));
        }
    } else if (p->bn == 1 && count == VR)
        for (int64_t i = 0; i < steps; i++, b += apart, to += VR * size) memcpy(to, b, (size_t)(VR * size));
    else
        for (int64_t i = 0; i < steps; i++, b += apart, to += lanes * size) {
            if (count < lanes) memset(to, 0, (size_t)(REAL_PANEL * size)); /* and what is written next */
            copy_apart(to, b, size, p->bn, count);
        }
}

/* Widens `count` elements that follow each other. */
TG_INLINE void widen(real *to, const void *from, const int64_t dtype, int64_t at, int64_t count) {
    if (dtype == TG_BF16)
        for (int64_t i = 0; i < count; i++) to[i] = (real)widened(from, TG_BF16, at + i);
    else if (dtype == TG_F16)
        for (int64_t i = 0; i < count; i++) to[i] = (real)widened(from, TG_F16, at + i);
    else if (dtype == REAL)
        for (int64_t i = 0; i < count; i++) to[i] = (real)widened(from, REAL, at + i);
    else
        for (int64_t i = 0; i < count; i++) to[i] = (real)widened(from, TG_F32, at + i);
}

/* The panel of a narrow b. */
static void pack_widened(const product *p, int64_t batch, int64_t column, int64_t count, int64_t lanes, real *to) {
    real rows[REAL_PANEL * PACKED_STEPS];
    for (int64_t i = 0; i < p->k; i += PACKED_STEPS, to += PACKED_STEPS * lanes) {
        const int64_t steps = tg_min(PACKED_STEPS, p->k - i);
        if (!p->seen && p->bk == 1) {
            memset(rows, 0, sizeof rows);
            for (int64_t l = 0; l < count; l++)
                widen(rows + l * PACKED_STEPS, p->b, p->b_dtype, batch * p->bb + (column + l) * p->bn + i, steps);
            turned_real(to, lanes, rows, PACKED_STEPS, steps, lanes);
        } else {
            uint16_t lines[(PACKED_STEPS + 1) * REAL_PANEL];
            lines_of_b(p, 2, batch, column, count, lanes, i, steps, (char *)lines);
            widen(to, lines, p->b_dtype, 0, steps * lanes);
        }
    }
}

#include "pairs_tile.h"

/* What one panel takes, with room for the lanes that `gather` writes ahead. */
TG_INLINE int64_t panel_bytes(const product *p) {
    return by_pairs(p) ? pairs_bytes(p->k) : (tg_max_i(p->k, 1) + 1) * REAL_PANEL * (int64_t)sizeof(real);
}

static void pack(const product *p, int64_t batch, int64_t column, char *to) {
    const int64_t k = p->k, count = tg_min(REAL_PANEL, p->n - column), lanes = count <= VR ? VR : REAL_PANEL;
    if (p->decode) return p->decode(p->b, k, column, lanes, 0, k, (float *)to);
    if (by_pairs(p)) return pack_pairs(p, batch, column, count, lanes, (uint32_t *)to);
    if (p->b_dtype != REAL) return pack_widened(p, batch, column, count, lanes, (real *)to);
    if (p->seen || p->bk != 1 || p->bn == 1) return lines_of_b(p, sizeof(real), batch, column, count, lanes, 0, k, to);
    turned_real(to, lanes, (const real *)p->b + batch * p->bb + column * p->bn, p->bn, k, count);
    for (int64_t i = 0; i < k && count < lanes; i++) memset((real *)to + i * lanes + count, 0, (size_t)(lanes - count) * sizeof(real));
}

static void pack_part(void *ctx, int part, int parts) {
    const product *p = ctx;
    int64_t from, to;
    tg_range(p->n, REAL_PANEL, part, parts, &from, &to);
    for (int64_t j = from; j < to; j += REAL_PANEL) pack(p, 0, j, (char *)p->panels + j / REAL_PANEL * panel_bytes(p));
}

/* --- rows of a --- */

/* The stride of copied rows of a, which share no set of the L1 cache. */
TG_INLINE int64_t padded(int64_t k) {
    const int64_t whole = tg_ceil(k, LINE) * LINE;
    return whole % (32 * LINE) ? whole : whole + LINE;
}

/* Whether the tile can read a where it lies: along rows, or along columns. */
TG_INLINE int in_place(const product *p) {
    return by_pairs(p) ? p->ak == 1 : p->a_dtype == REAL && (p->ak == 1 || p->am == 1);
}

static void copy_rows(const product *p, int64_t at, int64_t rows, real *to) {
    const int64_t stride = padded(p->k);
    for (int64_t r = 0; r < rows; r++, at += p->am, to += stride)
        if (by_pairs(p)) copy_apart((char *)to, p->a + at * 2, 2, p->ak, p->k);
        else if (p->ak == 1) widen(to, p->a, p->a_dtype, at, p->k);
        else
            for (int64_t i = 0; i < p->k; i++) to[i] = (real)widened(p->a, p->a_dtype, at + i * p->ak);
}

/* --- tasks --- */

/* Stores c[rows][width] and the bias. The sums are overwritten. turned: room for as many. */
static void store(const product *p, int64_t batch, int64_t row, int64_t rows, int64_t column, int64_t count, int64_t width, real *c,
                  real *turned) {
    const int64_t at = batch * p->ob + row * p->om + column * p->on;
    if (p->bias)
        for (int64_t r = 0; r < rows; r++) {
            const real same = p->bias_of_columns ? 0 : bias_at(p, batch, row + r, 0);
            for (int64_t l = 0; l < count; l++) c[r * width + l] += p->bias_of_columns ? bias_at(p, batch, 0, column + l) : same;
        }
    if (p->om == 1 && p->out_dtype == REAL) return turned_real((real *)p->out + at, p->on, c, width, count, rows);
    if (p->om == 1) {
        turned_real(turned, rows, c, width, count, rows);
        for (int64_t l = 0; l < count; l++) store_run(p, at + l * p->on, turned + l * rows, rows);
    } else if (p->on == 1 && p->out_dtype == REAL) {
        real *out = (real *)p->out + at;
        for (int64_t r = 0; r < rows; r++, c += width, out += p->om)
            for (int64_t l = 0; l < count; l++) out[l] = c[l];
    } else
        for (int64_t r = 0; r < rows; r++, c += width) {
            if (p->on == 1) store_run(p, at + r * p->om, c, count);
            else
                for (int64_t l = 0; l < count; l++) store_at(p, at + r * p->om + l * p->on, c[l]);
        }
}

/* The rows from `row` to `end` by the columns from `column` to `last`. Rows go through in groups of tiles, each of which stays in the
 * L2 cache while all panels pass by; a row of a turned result is then written some cache lines at a time. */
static void task(const product *p, int64_t batch, int64_t row, int64_t end, int64_t column, int64_t last) {
    const int64_t k = p->k, group = p->tiles * TILE_ROWS, stride = padded(k), bytes = panel_bytes(p), asize = weight_bytes(p->a_dtype);
    const int direct = in_place(p), layout = direct && p->ak != 1 ? ROWS_CONTIGUOUS : K_CONTIGUOUS;
    const int64_t own = p->panels ? 0 : bytes, copies = direct ? 0 : group * stride, sums = group * REAL_PANEL;
    real *c = tg_scratch(1, (size_t)(2 * sums + copies) * sizeof(real) + (size_t)own);
    if (!c) return one_by_one(p, batch, row, end - row, column, last - column);
    real *copied = c + 2 * sums;
    const char *panels = p->panels ? p->panels + column / REAL_PANEL * bytes : (const char *)(copied + copies);
    if (own) pack(p, batch, column, (char *)panels);
    for (; row < end; row += group) {
        const int64_t rows = tg_min(group, end - row), at = group_of(p, batch) * p->ab + row * p->am;
        if (!direct) copy_rows(p, at, rows, copied);
        const char *a = direct ? p->a + at * asize : (const char *)copied;
        const int64_t apart = layout == ROWS_CONTIGUOUS ? p->ak : direct ? p->am : by_pairs(p) ? 2 * stride : stride;
        const char *next = p->a + (at + rows * k) * asize; /* the next group, if rows follow each other */
        const char *ahead = p->am == k && p->panels && row + group < end ? next : NULL;
        extent here[MOST_TILES * TILE_ROWS];
        const extent *of_rows = p->of_rows ? p->of_rows + group_of(p, batch) % p->looked_at * p->m + row : here;
        for (int64_t r = 0; r < rows && by_pairs(p) && !p->of_rows; r++) here[r] = extent_of((const uint16_t *)a + r * apart, k);
        for (int64_t j = column; j < last; j += REAL_PANEL) {
            const int64_t count = tg_min(REAL_PANEL, last - j), nv = count <= VR ? 1 : 2;
            const char *panel = panels + (j - column) / REAL_PANEL * bytes;
            if (by_pairs(p)) pairs_product(p, rows, nv, a, apart * 2, panel, (float *)c, of_rows, ahead);
            else ROWS_PRODUCT(rows, (int)nv, layout, (const real *)a, apart, (const real *)panel, k, c, NULL, ahead);
            if (ahead) ahead += (by_pairs(p) ? 8 : 16) * k * (rows / TILE_ROWS);
            store(p, batch, row, rows, j, count, nv * VR, c, c + sums);
        }
    }
}

static void task_part(void *ctx, int part, int parts) {
    const product *p = ctx;
    const int64_t each = tg_ceil(p->n, p->columns) * p->chunks, most = tg_ceil(tg_ceil(p->m, TILE_ROWS), p->chunks) * TILE_ROWS;
    int64_t from, to;
    tg_range(p->batch * each, 1, part, parts, &from, &to);
    for (; from < to; from++) {
        const int64_t column = from % each / p->chunks * p->columns, row = from % p->chunks * most;
        if (row < p->m) task(p, from / each, row, tg_min(row + most, p->m), column, tg_min(column + p->columns, p->n));
    }
}

static void look_part(void *ctx, int part, int parts) {
    const product *p = ctx;
    int64_t from, to;
    tg_range(p->looked_at * p->m, 1, part, parts, &from, &to);
    for (; from < to; from++)
        ((extent *)p->of_rows)[from] = extent_of((const uint16_t *)p->a + from / p->m * p->ab + from % p->m * p->am, p->k);
}

/* Each task is a panel of b, packed for it, by the rows of a, or a chunk of them. */
static void by_panels(product p) {
    p.tiles = 2, p.columns = REAL_PANEL, p.chunks = 1;
    const int64_t tasks = p.batch * tg_ceil(p.n, REAL_PANEL), wanted = 2 * tg_threads();
    if (tasks < wanted) p.chunks = tg_max_i(1, tg_min(tg_ceil(wanted, tasks), p.m / (4 * TILE_ROWS)));
    const int64_t work = tg_min(p.n, REAL_PANEL) * tg_ceil(p.m, p.chunks) * tg_max_i(p.k, 1);
    p.looked_at = p.groups ? p.groups : p.ab ? p.batch : 1;
    if (by_pairs(&p) && p.ak == 1 && tasks > p.looked_at) { /* several panels pass by each row */
        p.of_rows = tg_scratch(0, (size_t)(p.looked_at * p.m) * sizeof(extent));
        if (p.of_rows) tg_parallel(look_part, &p, tg_parts(p.looked_at * p.m, tg_ceil(1 << 20, tg_max_i(p.k, 1))));
    }
    tg_parallel(task_part, &p, tg_parts(tasks * p.chunks, tg_ceil(100000, work)));
}

/* b is packed once for all; each task is a chunk of the rows of a, which are read once. */
static void by_rows(product p) {
    p.panels = tg_scratch(0, (size_t)(tg_ceil(p.n, REAL_PANEL) * panel_bytes(&p)));
    if (!p.panels) return by_panels(p);
    tg_parallel(pack_part, &p, tg_parts(tg_ceil(p.n, REAL_PANEL), tg_ceil(16 << 10, REAL_PANEL * tg_max_i(p.k, 1))));
    const int64_t bytes = by_pairs(&p) ? 2 * tg_max_i(p.k, 1) : padded(p.k) * (int64_t)sizeof(real);
    p.tiles = tg_min(MOST_TILES, tg_max_i(4, GROUP_BYTES / (TILE_ROWS * bytes)));
    p.columns = p.n, p.chunks = tg_parts(tg_ceil(p.m, TILE_ROWS), 2);
    tg_parallel(task_part, &p, (int)p.chunks);
}

/* The same product with the operands in each other's place. */
TG_INLINE product turned_over(product p) {
    product q = p;
    q.a = p.b, q.ab = p.bb, q.am = p.bn, q.ak = p.bk, q.m = p.n, q.om = p.on, q.a_dtype = p.b_dtype, q.bias_of_columns = !p.bias_of_columns;
    q.b = p.a, q.bb = p.ab, q.bn = p.am, q.bk = p.ak, q.n = p.m, q.on = p.om, q.b_dtype = p.a_dtype;
    return q;
}

/* out[n,m] = x[n,k] . w[m,k]^T + bias[m]. Rows that are left of whole vectors and fill a quarter of one at most go past the weights by
 * themselves: as lanes they would cost as much as a whole vector. Of 2 m rows and more the weights are packed in place of x: 1.2 to 4.5
 * times as fast from n = 4 m on (1000 rows by 64 x 64: 0.05 ms instead of 0.14). */
static void linear(void *const *ptr, int64_t n, int64_t m, int64_t k, int64_t out_dtype, int64_t x_dtype, int64_t w_dtype,
                   int64_t bias_dtype) {
    if (n <= 0 || m <= 0) return;
    product p = {.out = ptr[0], .a = ptr[2], .b = ptr[1], .bias = ptr[3], .batch = 1, .m = m, .n = n, .k = k, .om = 1, .on = m, .am = k,
                 .ak = 1, .bk = 1, .bn = k, .out_dtype = out_dtype, .a_dtype = w_dtype, .b_dtype = x_dtype, .bias_dtype = bias_dtype};
    if (n > STREAM_LIMIT && n >= 2 * m && w_dtype == x_dtype) return by_panels(turned_over(p));
    const int64_t rest = n <= STREAM_LIMIT ? n : n % VR * 4 > VR ? 0 : n % VR;
    p.n = n - rest;
    if (p.n) by_rows(p);
    p.out += p.n * m * weight_bytes(out_dtype), p.b += p.n * k * weight_bytes(x_dtype), p.n = rest;
    if (rest) few_columns(p);
}

/* ints: batch, m, n, k, out strides (b, m, n), a strides (b, m, k), b strides (b, k, n). */
static void matmul(void *const *ptr, const int64_t *ints, int64_t dtype) {
    const product p = {.out = ptr[0], .a = ptr[1], .b = ptr[2], .batch = ints[0], .m = ints[1], .n = ints[2], .k = ints[3], .ob = ints[4],
                       .om = ints[5], .on = ints[6], .ab = ints[7], .am = ints[8], .ak = ints[9], .bb = ints[10], .bk = ints[11],
                       .bn = ints[12], .out_dtype = dtype, .a_dtype = dtype, .b_dtype = dtype};
    if (p.batch > 0 && p.m > 0 && p.n > 0) by_panels(p);
}

/* A convolution: the weights by what the windows see. ints: n, groups, channels, outputs (of a group), the axes (windows_of), dtypes of
 * x and of the result, of the weights, of the bias. */
static void convolution(void *const *ptr, const int64_t *ints) {
    windows w = windows_of(ints + 4);
    const int64_t n = ints[0], groups = ints[1], channels = ints[2], outputs = ints[3], *dtypes = ints + 4 + 6 * AXES;
    w.end = (const char *)ptr[1] + n * groups * channels * w.inside * weight_bytes(dtypes[0]);
    const product p = {.out = ptr[0], .a = ptr[2], .b = ptr[1], .bias = ptr[3], .batch = n * groups, .m = outputs, .n = w.area,
                       .k = channels * w.taps, .ob = outputs * w.area, .om = w.area, .on = 1, .ab = outputs * channels * w.taps,
                       .am = channels * w.taps, .ak = 1, .bb = channels * w.inside, .bk = w.inside, .bn = 1, .groups = groups,
                       .out_dtype = dtypes[0], .a_dtype = dtypes[1], .b_dtype = dtypes[0], .bias_dtype = dtypes[2],
                       .seen = see_themselves(&w) ? NULL : &w};
    if (p.batch > 0 && p.m > 0 && p.n > 0) by_panels(p);
}
