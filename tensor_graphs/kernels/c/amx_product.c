/* amx_product.c: products of f32 and of bfloat16 by the processor's tiles of bfloat16 (tdpbf16ps of Intel's AMX).
 *
 * A tile product multiplies 16 rows by 16 lanes, 32 deep: sixteen times as many products as a fused multiply-add of vectors makes, exact
 * ones, whose sums are made in f32. A float is the sum of three bfloat16 numbers, high + middle + low, without an error; so a product of
 * a float and a bfloat16 is three products of tiles, and one of two floats six: those of middle · low, low · middle and low · low are
 * below 2^-25 of it (Henry, Tang and Heinecke, Leveraging the bfloat16 artificial intelligence datatype for higher-precision
 * computations, 2019).
 *
 * Tiles read numbers below 2^-126 as 0 and leave none behind (Intel, Architecture Instruction Set Extensions Programming Reference,
 * TDPBF16PS), and the parts of numbers that are not finite, or next to the largest, are not. So each sum is looked at: one that is not
 * finite, or so small that what was lost counts, is computed again, from the operands themselves; but where none of the numbers is
 * small enough nothing is lost, and a sum may be 0. */
#include "pairs.h"
#include "product.h"
#include "turned.h"

#include <math.h>

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__) && PANEL == 32
#define TILES 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { SIDE = 16, DEPTH = 32, MOST_PARTS = 3 }; /* rows or lanes of a tile; products that its sums add up; parts of a float */
enum { FEW = 8, ROWS = 128, GROUP_BYTES = 1 << 20, CHUNK = 256, BLOCK = 8, SOME = 4, AHEAD = 32, BYTES = SIDE * DEPTH * 2 };

typedef struct product {
    char *out;
    const char *a, *b;
    const void *bias; /* of each row of a, or NULL */
    int64_t m, n, k, om, on, am, ak, bk, bn; /* out[m, n] = a[m, k] . b[k, n]; strides in elements */
    int64_t parts_a, parts_b, bias_dtype;    /* 1: bfloat16, 3: floats */
    int64_t out_dtype;                       /* TG_F32; TG_BF16 of two bfloat16 operands alone */
    char *panels;
    extent *extents; /* of each lane of the panels */
} product;

TG_INLINE int64_t steps_of(const product *p) { return tg_ceil(p->k, DEPTH); }

TG_INLINE int64_t bytes_of_panels(int64_t lanes, int64_t k, int64_t parts) {
    const int64_t panels = tg_ceil(lanes, PANEL);
    return panels * PANEL * (tg_ceil(k, DEPTH) * DEPTH * 2 * parts + (int64_t)sizeof(extent));
}

TG_INLINE float element(const char *from, const int64_t parts, int64_t at) {
    return parts == 1 ? bf16_to_f32(((const uint16_t *)from)[at]) : ((const float *)from)[at];
}

/* One element of the result, from the operands themselves. */
static __attribute__((noinline)) float one_sum(const product *p, int64_t row, int64_t lane) {
    double sum = 0, eight[8] = {0};
    int64_t i = 0;
    const char *a = p->a + row * p->am * (p->parts_a == 1 ? 2 : 4), *b = p->b + lane * p->bn * (p->parts_b == 1 ? 2 : 4);
    if (p->ak == 1 && p->bk == 1)
        for (; i + 8 <= p->k; i += 8)
            for (int64_t e = 0; e < 8; e++) eight[e] += (double)element(a, p->parts_a, i + e) * element(b, p->parts_b, i + e);
    for (; i < p->k; i++) sum += (double)element(a, p->parts_a, i * p->ak) * element(b, p->parts_b, i * p->bk);
    for (int64_t e = 0; e < 8; e++) sum += eight[e];
    return (float)sum;
}

TG_INLINE float bias_of(const product *p, int64_t row) {
    return !p->bias ? 0 : p->bias_dtype == TG_BF16 ? bf16_to_f32(((const uint16_t *)p->bias)[row]) : ((const float *)p->bias)[row];
}

TG_INLINE void store_one(const product *p, int64_t at, float sum) {
    if (p->out_dtype == TG_BF16) ((uint16_t *)p->out)[at] = bf16_of_f32(sum);
    else ((float *)p->out)[at] = sum;
}

static void one_by_one(const product *p, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++)
        for (int64_t j = 0; j < p->n; j++) {
            const float sum = one_sum(p, i, j);
            store_one(p, i * p->om + j * p->on, p->bias ? sum + bias_of(p, i) : sum);
        }
}

#if defined(TILES)
/* Elements of a row for all lanes of a panel, in f64: as wide as the lanes lie beside each other, or along k. */
static __attribute__((noinline)) void row_again(const product *p, int64_t row, int64_t lane, int64_t count, float *c) {
    double sum[PANEL] = {0};
    if (p->bn == 1)
        for (int64_t i = 0; i < p->k; i++) {
            const double a = element(p->a, p->parts_a, row * p->am + i * p->ak);
            if (p->parts_b == 1)
                for (int64_t l = 0; l < count; l++) sum[l] += a * element(p->b, 1, i * p->bk + lane + l);
            else
                for (int64_t l = 0; l < count; l++) sum[l] += a * element(p->b, 3, i * p->bk + lane + l);
        }
    else
        for (int64_t l = 0; l < count; l++) sum[l] = one_sum(p, row, lane + l);
    for (int64_t l = 0; l < count; l++) c[l] = (float)sum[l];
}

typedef struct extents_16 {
    __m512i most, below;
} extents_16;

TG_INLINE extents_16 nothing_yet(void) { return (extents_16){_mm512_setzero_si512(), _mm512_set1_epi32(-1)}; }

/* The parts of 16 floats, and which floats there were. */
TG_INLINE void split_16(__m512 x, __m256bh part[3], extents_16 *found) {
    part[0] = _mm512_cvtneps_pbh(x);
    const __m512 rest = _mm512_sub_ps(x, _mm512_cvtpbh_ps(part[0]));
    part[1] = _mm512_cvtneps_pbh(rest), part[2] = _mm512_cvtneps_pbh(_mm512_sub_ps(rest, _mm512_cvtpbh_ps(part[1])));
    const __m512i size = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
    found->most = _mm512_max_epu32(found->most, size);
    found->below = _mm512_min_epu32(found->below, _mm512_add_epi32(size, _mm512_set1_epi32(-1)));
}

TG_INLINE extent of_all(extents_16 found) {
    return (extent){_mm512_reduce_max_epu32(found.most), _mm512_reduce_min_epu32(found.below)};
}

/* The three bfloat16 numbers that a float is the sum of. */
TG_INLINE extent split(const float *x, int64_t count, uint16_t *high, uint16_t *middle, uint16_t *low) {
    extent found = NOTHING;
    int64_t i = 0;
    extents_16 of = nothing_yet();
    for (; i + VW <= count; i += VW) {
        __m256bh part[3];
        split_16(_mm512_loadu_ps(x + i), part, &of);
        memcpy(high + i, &part[0], 32), memcpy(middle + i, &part[1], 32), memcpy(low + i, &part[2], 32);
    }
    if (i) found = of_all(of);
    for (; i < count; i++) {
        const uint16_t one = bf16_of_f32(x[i]);
        const float rest = x[i] - bf16_to_f32(one);
        const uint16_t two = bf16_of_f32(rest);
        const uint32_t size = bits_of(x[i]) & 0x7fffffffu;
        high[i] = one, middle[i] = two, low[i] = bf16_of_f32(rest - bf16_to_f32(two));
        found = joined(found, (extent){size, size - 1});
    }
    return found;
}

/* `count` numbers `apart` from each other as their parts, each filled up with zeros to `whole`. */
TG_INLINE extent parts_of(const char *from, const int64_t parts, int64_t apart, int64_t count, int64_t whole, uint16_t *const *to) {
    float held[CHUNK];
    uint16_t narrow[CHUNK];
    extent found;
    if (parts == 1) {
        const uint16_t *x = (const uint16_t *)from;
        if (apart != 1)
            for (int64_t i = 0; i < count; i++) narrow[i] = x[i * apart];
        memcpy(to[0], apart == 1 ? x : narrow, (size_t)count * 2);
        found = extent_of(to[0], count);
    } else {
        const float *x = (const float *)from;
        if (apart != 1)
            for (int64_t i = 0; i < count; i++) held[i] = x[i * apart];
        found = split(apart == 1 ? x : held, count, to[0], to[1], to[2]);
    }
    for (int64_t part = 0; part < parts; part++) memset(to[part] + count, 0, (size_t)(whole - count) * 2);
    return found;
}

/* --- b, packed once into panels of 32 or 16 lanes: [step][part][pair of 16][lane], a pair being two bfloat16 that follow each other
 * along k --- */

TG_INLINE int64_t lanes_of(const product *p, int64_t lane) { return p->n - lane <= VW ? VW : PANEL; }

/* Where the numbers of a lane follow each other. */
TG_INLINE void pack_lanes(const product *p, const int64_t parts, int64_t lane, uint32_t *panel, extent *extents) {
    const int64_t lanes = lanes_of(p, lane), count = tg_min(lanes, p->n - lane), size = parts == 1 ? 2 : 4;
    uint16_t rows[SIDE][MOST_PARTS][CHUNK];
    for (int64_t l0 = 0; l0 < lanes; l0 += SIDE)
        for (int64_t i = 0; i < p->k; i += CHUNK) {
            const int64_t deep = tg_min(CHUNK, p->k - i), whole = tg_ceil(deep, DEPTH) * DEPTH;
            for (int64_t l = 0; l < SIDE; l++) {
                uint16_t *const to[] = {rows[l][0], rows[l][1], rows[l][2]};
                const int here = l0 + l < count;
                const char *from = p->b + ((here ? lane + l0 + l : lane) * p->bn + i) * size;
                extents[l0 + l] = joined(extents[l0 + l], parts_of(from, parts, 1, here ? deep : 0, whole, to));
            }
            for (int64_t s = 0; s < whole / DEPTH; s++)
                for (int64_t part = 0; part < parts; part++)
                    turned_32(panel + ((i / DEPTH + s) * parts + part) * (DEPTH / 2) * lanes + l0, lanes, &rows[0][part][s * DEPTH],
                              MOST_PARTS * CHUNK / 2, DEPTH / 2, SIDE);
        }
}

/* The same of floats, of a whole panel whose lanes follow each other. */
static void pack_whole_pairs(const product *p, int64_t lane, uint32_t *panel, extent *extents) {
    extents_16 found[2] = {nothing_yet(), nothing_yet()};
    for (int64_t i = 0; i < steps_of(p) * DEPTH; i += 2) {
        const float *one = (const float *)p->b + i * p->bk + lane, *two = one + p->bk;
        uint32_t *to = panel + i / DEPTH * 3 * (DEPTH / 2) * PANEL + i % DEPTH / 2 * PANEL;
        for (int line = 0; line < 4; line++) /* rows lie apart: what reads ahead by itself does not see them */
            __builtin_prefetch((line < 2 ? one : two) + AHEAD * p->bk + line % 2 * VW, 0, 3);
        for (int h = 0; h < 2; h++) {
            __m256bh first[3], second[3];
            split_16(i < p->k ? _mm512_loadu_ps(one + h * VW) : _mm512_setzero_ps(), first, &found[h]);
            split_16(i + 1 < p->k ? _mm512_loadu_ps(two + h * VW) : _mm512_setzero_ps(), second, &found[h]);
            for (int part = 0; part < 3; part++) {
                const __m512i low = _mm512_cvtepu16_epi32((__m256i)first[part]), high = _mm512_cvtepu16_epi32((__m256i)second[part]);
                _mm512_storeu_si512(to + part * (DEPTH / 2) * PANEL + h * VW, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
            }
        }
    }
    for (int h = 0; h < 2; h++) {
        uint32_t most[VW], below[VW];
        _mm512_storeu_si512(most, found[h].most), _mm512_storeu_si512(below, found[h].below);
        for (int l = 0; l < VW; l++) extents[h * VW + l] = (extent){most[l], below[l]};
    }
}

/* Where the lanes of a number along k follow each other, or nothing does. */
TG_INLINE void pack_pairs(const product *p, const int64_t parts, int64_t lane, uint32_t *panel, extent *extents) {
    const int64_t lanes = lanes_of(p, lane), count = tg_min(lanes, p->n - lane), size = parts == 1 ? 2 : 4;
    if (parts == 3 && p->bn == 1 && count == PANEL) return pack_whole_pairs(p, lane, panel, extents);
    for (int64_t i = 0; i < steps_of(p) * DEPTH; i += 2) {
        uint16_t rows[2][MOST_PARTS][PANEL];
        for (int64_t o = 0; o < 2; o++) {
            uint16_t *const to[] = {rows[o][0], rows[o][1], rows[o][2]};
            const int here = i + o < p->k;
            const char *from = p->b + ((here ? i + o : 0) * p->bk + lane * p->bn) * size;
            parts_of(from, parts, p->bn, here ? count : 0, lanes, to);
            for (int64_t l = 0; l < (here ? count : 0); l++) {
                const uint32_t size = bits_of(element(from, parts, l * p->bn)) & 0x7fffffffu;
                extents[l] = joined(extents[l], (extent){size, size - 1});
            }
        }
        for (int64_t part = 0; part < parts; part++) {
            uint32_t *to = panel + (i / DEPTH * parts + part) * (DEPTH / 2) * lanes + i % DEPTH / 2 * lanes;
            for (int64_t l = 0; l < lanes; l++) to[l] = rows[0][part][l] | (uint32_t)rows[1][part][l] << 16;
        }
    }
}

static void pack_part(void *ctx, int part, int parts) {
    const product *p = ctx;
    int64_t from, to;
    tg_range(p->n, PANEL, part, parts, &from, &to);
    for (int64_t lane = from; lane < to; lane += PANEL) {
        uint32_t *panel = (uint32_t *)(p->panels + lane * steps_of(p) * DEPTH * 2 * p->parts_b);
        extent *extents = p->extents + lane;
        for (int64_t l = 0; l < PANEL; l++) extents[l] = NOTHING;
        if (p->bk == 1) p->parts_b == 1 ? pack_lanes(p, 1, lane, panel, extents) : pack_lanes(p, 3, lane, panel, extents);
        else p->parts_b == 1 ? pack_pairs(p, 1, lane, panel, extents) : pack_pairs(p, 3, lane, panel, extents);
    }
}

/* --- rows of a: read where they are, or packed as [tile of 16 rows][step][part][row][32] --- */

typedef struct tiles {
    const char *first;
    int64_t tile, step, part, row; /* bytes from one to the next */
} tiles;

TG_INLINE int in_place(const product *p, int64_t rows) {
    return p->parts_a == 1 && p->ak == 1 && p->k % DEPTH == 0 && rows % SIDE == 0;
}

TG_INLINE void pack_rows(const product *p, const int64_t parts, int64_t row, int64_t rows, char *packed, extent *extents) {
    const int64_t steps = steps_of(p), size = parts == 1 ? 2 : 4;
    for (int64_t r = 0; r < tg_ceil(rows, SIDE) * SIDE; r++) {
        extent all = NOTHING;
        uint16_t *tile = (uint16_t *)(packed + r / SIDE * steps * parts * BYTES) + r % SIDE * DEPTH;
        int64_t s = 0;
        extents_16 of = nothing_yet();
        const int64_t whole = parts == 3 && p->ak == 1 && r < rows ? p->k / DEPTH : 0;
        for (; s < whole; s++) {
            uint16_t *to = tile + s * 3 * BYTES / 2;
            const float *from = (const float *)p->a + (row + r) * p->am + s * DEPTH;
            for (int h = 0; h < 2; h++) {
                __m256bh part[3];
                split_16(_mm512_loadu_ps(from + h * VW), part, &of);
                for (int i = 0; i < 3; i++) memcpy(to + i * BYTES / 2 + h * VW, &part[i], 32);
            }
        }
        if (whole) all = of_all(of);
        for (; s < steps; s++) {
            uint16_t *const to[] = {tile + s * parts * BYTES / 2, tile + (s * parts + 1) * BYTES / 2, tile + (s * parts + 2) * BYTES / 2};
            const int64_t count = r < rows ? tg_min(DEPTH, p->k - s * DEPTH) : 0;
            const char *from = p->a + (count ? (row + r) * p->am + s * DEPTH * p->ak : 0) * size;
            all = joined(all, parts_of(from, parts, p->ak, count, DEPTH, to));
        }
        extents[r] = all;
    }
}

/* Whether this process may use tiles; Linux has to be asked once (Documentation/arch/x86/xstate.rst). */
static int tiles_here(void) {
    enum { UNKNOWN, NO, YES, REQUEST = 0x1023, TILE_DATA = 18 };
    static _Atomic int answer;
    if (answer == UNKNOWN) answer = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0 ? YES : NO;
    return answer == YES;
}

static void tiles_begin(void) {
    static const struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } all = {.palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&all);
}

static void tiles_end(void) { _tile_release(); }

/* c[row][lane] of one or two tiles of rows and one or two of lanes: the sums of all steps. Those of floats are made in blocks, so that
 * fewer roundings are as large as those of the whole sum (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2).
 * `two`, `nv`, `pa` and `pb` are constants. */
TG_INLINE void tile_sums(const int two, const int nv, const int pa, const int pb, const tiles *a, const char *rows,
                         const uint32_t *panel, int64_t steps, float *c) {
    const int64_t wide = nv * VW * 4, most = pb == 1 ? 8 * BLOCK : BLOCK, count = (two + 1) * SIDE * nv * VW;
    _Alignas(64) float sums[2 * SIDE * PANEL], excess[2 * SIDE * PANEL]; /* of a sum that knows what it rounds away: total of multiply.h */
    if (steps > most) memset(excess, 0, (size_t)count * 4);
    int64_t s = 0;
    do {
        float *to = s ? sums : c;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (const int64_t end = s + tg_min(most, steps - s); s < end; s++, rows += a->step)
            _Pragma("GCC unroll 3") for (int i = 0; i < pa; i++) {
                _tile_loadd(4, rows + i * a->part, a->row);
                if (two) _tile_loadd(5, rows + i * a->part + a->tile, a->row);
                _Pragma("GCC unroll 3") for (int j = 0; j < pb - i; j++) {
                    const uint32_t *lanes = panel + (s * pb + j) * (DEPTH / 2) * nv * VW;
                    _tile_loadd(6, lanes, wide);
                    _tile_dpbf16ps(0, 4, 6);
                    if (two) _tile_dpbf16ps(2, 5, 6);
                    if (nv == 2) {
                        _tile_loadd(7, lanes + VW, wide);
                        _tile_dpbf16ps(1, 4, 7);
                        if (two) _tile_dpbf16ps(3, 5, 7);
                    }
                }
            }
        _tile_stored(0, to, wide);
        if (nv == 2) _tile_stored(1, to + VW, wide);
        if (two) _tile_stored(2, to + SIDE * nv * VW, wide);
        if (two && nv == 2) _tile_stored(3, to + SIDE * nv * VW + VW, wide);
        if (to != c)
            for (int64_t v = 0; v < count; v++) {
                const float missing = sums[v] - excess[v], high = c[v] + missing;
                excess[v] = (high - c[v]) - missing, c[v] = high;
            }
    } while (s < steps);
}

#define ALL_TILES(name, nv, pa, pb)                                                                                            \
    static __attribute__((noinline)) void name(const tiles *a, int64_t count, const uint32_t *panel, int64_t steps, float *c) { \
        int64_t i = 0;                                                                                                         \
        for (; i + 2 <= count; i += 2)                                                                                         \
            tile_sums(1, nv, pa, pb, a, a->first + i * a->tile, panel, steps, c + i * SIDE * nv * VW);                         \
        if (i < count) tile_sums(0, nv, pa, pb, a, a->first + i * a->tile, panel, steps, c + i * SIDE * nv * VW);              \
    }
ALL_TILES(tiles_1_1_1, 1, 1, 1)
ALL_TILES(tiles_2_1_1, 2, 1, 1)
ALL_TILES(tiles_1_1_3, 1, 1, 3)
ALL_TILES(tiles_2_1_3, 2, 1, 3)
ALL_TILES(tiles_1_3_3, 1, 3, 3)
ALL_TILES(tiles_2_3_3, 2, 3, 3)

static void all_sums(const product *p, const tiles *a, int64_t count, int64_t nv, const uint32_t *panel, float *c) {
    const int64_t steps = steps_of(p);
    if (p->parts_b == 1) (nv == 1 ? tiles_1_1_1 : tiles_2_1_1)(a, count, panel, steps, c);
    else if (p->parts_a == 1) (nv == 1 ? tiles_1_1_3 : tiles_2_1_3)(a, count, panel, steps, c);
    else (nv == 1 ? tiles_1_3_3 : tiles_2_3_3)(a, count, panel, steps, c);
}
/* Whether a sum has to be made again: it is not finite, or below `least` and not the 0 that zeros in `row` or `lane` alone make. */
TG_INLINE int made_again(float sum, uint32_t least, extent row, extent lane) {
    const uint32_t size = bits_of(sum) & 0x7fffffffu;
    return size >= INFINITE || (size < least && (size | (row.most < lane.most ? row.most : lane.most)) != 0);
}

/* Makes sums again that are not finite, or below what k numbers and their products may have lost: 2^-125 of each operand, times the
 * largest of the other one. That is to be 2^-26 of a sum of floats, 2^-15 of one that is rounded to bfloat16. all_rows: of_rows, joined. */
TG_INLINE void look_at(const product *p, int64_t row, int64_t rows, const extent *of_rows, extent all_rows, int64_t lane, int64_t lanes,
                       float *c) {
    const extent *of_lanes = p->extents + lane;
    const int64_t count = tg_min(lanes, p->n - lane);
    extent all = NOTHING;
    for (int64_t l = 0; l < lanes; l++) all = joined(all, of_lanes[l]);
    if (nothing_lost(all_rows, all)) { /* as nearly always: they need but be finite */
        uint32_t greatest = 0;
        for (int64_t v = 0; v < rows * lanes; v++) {
            const uint32_t size = bits_of(c[v]) & 0x7fffffffu;
            greatest = size > greatest ? size : greatest;
        }
        if (greatest < INFINITE) return;
    }
    for (int64_t r = 0; r < rows; r++, c += lanes) {
        const uint32_t least = nothing_lost(of_rows[r], all) ? 0 : least_sum(p->k, p->out_dtype, of_rows[r], all);
        int64_t again = 0;
        for (int64_t l = 0; l < count; l++) again += made_again(c[l], least, of_rows[r], of_lanes[l]);
        if (again == 0) continue;
        for (int64_t l = 0; l < count; l++) /* a NaN decides, whatever else there is */
            if (of_rows[r].most > INFINITE || of_lanes[l].most > INFINITE) c[l] = NAN, again--;
        if (again > SOME) row_again(p, row + r, lane, count, c);
        else
            for (int64_t l = 0; l < count; l++)
                if (made_again(c[l], least, of_rows[r], of_lanes[l]) && of_rows[r].most <= INFINITE && of_lanes[l].most <= INFINITE)
                    c[l] = one_sum(p, row + r, lane + l);
    }
}

/* A row of sums: where the result has them one behind the other. */
TG_INLINE void store_row(const product *p, char *out, const float *sums, int64_t count) {
    if (p->out_dtype == TG_BF16)
        for (int64_t i = 0; i < count; i++) ((uint16_t *)out)[i] = bf16_of_f32(sums[i]);
    else memcpy(out, sums, (size_t)count * 4);
}

static void store(const product *p, int64_t row, int64_t rows, int64_t lane, int64_t lanes, float *c, float *turned) {
    const int64_t size = weight_bytes(p->out_dtype), count = tg_min(lanes, p->n - lane);
    if (p->bias)
        for (int64_t r = 0; r < rows; r++) {
            const float bias = bias_of(p, row + r);
            for (int64_t l = 0; l < lanes; l++) c[r * lanes + l] += bias;
        }
    if (p->on == 1)
        for (int64_t r = 0; r < rows; r++) store_row(p, p->out + ((row + r) * p->om + lane) * size, c + r * lanes, count);
    else if (p->om == 1) {
        turned_32(turned, ROWS, c, lanes, lanes, rows);
        for (int64_t l = 0; l < count; l++) store_row(p, p->out + ((lane + l) * p->on + row) * size, turned + l * ROWS, rows);
    } else
        for (int64_t r = 0; r < rows; r++)
            for (int64_t l = 0; l < count; l++) store_one(p, (row + r) * p->om + (lane + l) * p->on, c[r * lanes + l]);
}

/* Rows go through in groups that stay in the L2 cache while all panels pass by. */
static void rows_part(void *ctx, int part, int parts) {
    const product *p = ctx;
    const int64_t steps = steps_of(p), per_row = steps * DEPTH * 2 * p->parts_a;
    const int64_t group = tg_min(ROWS, tg_max_i(2 * SIDE, GROUP_BYTES / tg_max_i(per_row, 1) / (2 * SIDE) * (2 * SIDE)));
    int64_t from, to;
    tg_range(p->m, 2 * SIDE, part, parts, &from, &to);
    float *c = tg_scratch(1, (size_t)(2 * ROWS * PANEL) * 4 + (size_t)(group * per_row));
    if (!c) return one_by_one(p, from, to);
    float *turned = c + ROWS * PANEL;
    char *packed = (char *)(turned + ROWS * PANEL);
    tiles_begin();
    for (int64_t row = from; row < to; row += group) {
        const int64_t rows = tg_min(group, to - row), count = tg_ceil(rows, SIDE);
        extent extents[ROWS];
        tiles a = {packed, steps * p->parts_a * BYTES, p->parts_a * BYTES, BYTES, DEPTH * 2};
        if (in_place(p, rows)) {
            a = (tiles){p->a + row * p->am * 2, SIDE * p->am * 2, DEPTH * 2, 0, p->am * 2};
            for (int64_t r = 0; r < rows; r++) extents[r] = extent_of((const uint16_t *)a.first + r * p->am, p->k);
        } else if (p->parts_a == 1) pack_rows(p, 1, row, rows, packed, extents);
        else pack_rows(p, 3, row, rows, packed, extents);
        extent all_rows = NOTHING;
        for (int64_t r = 0; r < rows; r++) all_rows = joined(all_rows, extents[r]);
        for (int64_t lane = 0; lane < p->n; lane += PANEL) {
            const int64_t lanes = lanes_of(p, lane);
            all_sums(p, &a, count, lanes / VW, (const uint32_t *)(p->panels + lane * steps * DEPTH * 2 * p->parts_b), c);
            look_at(p, row, rows, extents, all_rows, lane, lanes, c);
            store(p, row, rows, lane, lanes, c, turned);
        }
    }
    tiles_end();
}

/* Whether it was done. */
static int by_tiles(product *p) {
    const size_t bytes = (size_t)bytes_of_panels(p->n, p->k, p->parts_b);
    p->panels = tiles_here() ? tg_scratch(0, bytes) : NULL;
    if (!p->panels) return 0;
    p->extents = (extent *)(p->panels + bytes) - tg_ceil(p->n, PANEL) * PANEL;
    tg_parallel(pack_part, p, tg_parts(tg_ceil(p->n, PANEL), tg_ceil(16 << 10, PANEL * tg_max_i(p->k, 1))));
    tg_parallel(rows_part, p, tg_parts(tg_ceil(p->m, 2 * SIDE), tg_ceil(1 << 20, 2 * SIDE * tg_max_i(p->n * p->k, 1))));
    return 1;
}
#else
static int tiles_here(void) { return 0; }
static int by_tiles(product *p) { return (void)p, 0; }
#endif

static void run_product(product *p) {
    if (p->m > 0 && p->n > 0 && !by_tiles(p)) one_by_one(p, 0, p->m);
}

/* out[n,m] = x[n,k] . w[m,k]^T + bias[m]. Few rows, and those that are left of whole tiles and fill a quarter of one at most, go past the
 * weights as in product.c and narrow_linear.c.
 * ptr: out, x, w, bias or NULL.  ints: n, m, k, dtype of x, dtype of w, dtype of bias, dtype of out (bf16 where x and w are bf16, or
 * f32); all contiguous. */
TG_KERNEL(tg_linear_amx) {
    const int64_t n = ints[0], m = ints[1], k = ints[2], narrow = ints[3] == TG_BF16, out_dtype = ints[6];
    const tg_kernel few = narrow ? tg_linear_narrow : ints[4] == TG_BF16 ? tg_linear_bf16 : tg_linear_f32;
    const int64_t rest = n <= FEW || !tiles_here() ? n : n % VW * 4 > VW ? 0 : n % VW;
    product p = {.out = ptr[0], .a = ptr[2], .b = ptr[1], .bias = ptr[3], .m = m, .n = n - rest, .k = k, .om = 1, .on = m, .am = k,
                 .ak = 1, .bk = 1, .bn = k, .parts_a = ints[4] == TG_BF16 ? 1 : 3, .parts_b = narrow ? 1 : 3, .bias_dtype = ints[5],
                 .out_dtype = out_dtype};
    run_product(&p);
    if (!rest) return;
    void *left[] = {(char *)ptr[0] + p.n * m * weight_bytes(out_dtype), (char *)ptr[1] + p.n * k * (narrow ? 2 : 4), ptr[2], ptr[3]};
    few(left, (const int64_t[]){rest, m, k, ints[5], out_dtype}, floats);
}

typedef struct batch {
    void *const *ptr;
    const int64_t *ints;
} batch;

static void batch_part(void *ctx, int part, int parts) {
    void *const *ptr = ((const batch *)ctx)->ptr;
    const int64_t *ints = ((const batch *)ctx)->ints, size = ints[13] == TG_BF16 ? 2 : 4, pieces = size == 2 ? 1 : MOST_PARTS;
    int64_t from, to;
    tg_range(ints[0], 1, part, parts, &from, &to);
    for (int64_t i = from; i < to; i++) {
        product p = {.out = (char *)ptr[0] + i * ints[4] * size, .a = (const char *)ptr[1] + i * ints[7] * size,
                     .b = (const char *)ptr[2] + i * ints[10] * size, .m = ints[1], .n = ints[2], .k = ints[3], .om = ints[5],
                     .on = ints[6], .am = ints[8], .ak = ints[9], .bk = ints[11], .bn = ints[12], .parts_a = pieces, .parts_b = pieces,
                     .out_dtype = ints[13]};
        run_product(&p);
    }
}

/* out[b,m,n] = a[b,m,k] . b[b,k,n], as in product.c, where few rows of floats go. Threads share the batch, or what is in each of a small
 * one.
 * ptr: out, a, b.  ints: batch, m, n, k, out strides (b, m, n), a strides (b, m, k), b strides (b, k, n) in elements, dtype. */
TG_KERNEL(tg_dot_amx) {
    if (ints[13] != TG_BF16 && (ints[1] <= FEW || !tiles_here())) tg_matmul_f32(ptr, ints, floats);
    else if (ints[0] < 2 * tg_threads()) batch_part(&(batch){ptr, ints}, 0, 1);
    else tg_parallel(batch_part, &(batch){ptr, ints}, tg_parts(ints[0], tg_ceil(1 << 20, tg_max_i(ints[1] * ints[2] * ints[3], 1))));
}
