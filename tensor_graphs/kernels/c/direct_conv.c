/* direct_conv.c: convolution over up to two axes without a matrix of what the windows see: lanes are outputs (channels of the
 * result), and each element of the input is multiplied with a vector of weights, packed beforehand (tg_direct_weights) in the order
 * in which they are read. The input of a band of places is copied with zeros around it, the elements of a stride next to each
 * other, so that neighbouring places always read neighbouring elements, wherever the window has its tap.
 *
 * Two operands of bfloat16 are multiplied by pairs (pairs.h): an element of a band is then two channels' at one place.
 *
 * BLOCK products add up in registers, the blocks of a CHUNK in f32, and the chunks in f32 again. While a chunk of the weights goes
 * past all places of a band it stays in the L1 cache. The error of 576 products, against the rms of all: 1.8e-7 (blocks of 32 and
 * chunks of 256: 1.2e-7, and 5 % slower). */
#include "conv.h"
#include "turned.h"

#define UNROLL _Pragma("GCC unroll 16")

enum { BLOCK = 96, CHUNK = 192, MOST_COLS = 112, BAND_BYTES = 160 << 10, LEAST_ROWS = 4, AHEAD = 2 /* channels */ };

typedef struct direct {
    conv p;
    int64_t pairs, channels, k;        /* whether two channels are one; how many there are then, and steps of a sum */
    const float *u;                    /* the packed weights */
    int64_t rows, cols, down, across;  /* places of a band; bands of an image, along each axis */
    int64_t blocks;                    /* PANELs of outputs */
    lines l;                           /* of a band's input */
    int64_t high;                      /* lines of one channel of it */
} direct;

TG_INLINE int in_pairs(int64_t x_dtype, int64_t w_dtype) { return PAIRS && x_dtype == TG_BF16 && w_dtype == TG_BF16; }

/* Of each block of packed weights by pairs. */
TG_INLINE extent *extents_of(const float *u, int64_t outputs, int64_t k) { return (extent *)(u + tg_ceil(outputs, VW) * VW * k); }

/* The sums of `k` > 0 products for px places x nv vectors of outputs; px and nv are constants wherever this is used. They are added to
 * `total`, or written where this is the `first` chunk. */
TG_INLINE void tile(const int px, const int nv, const int pairs, const float *from, const int32_t *offset, const float *w, int64_t k, float *total,
                    int first) {
    _Alignas(64) float sum[TILE_ROWS * PANEL];
    int64_t begin = 0;
    do {
        const int64_t past = tg_min(k, begin + BLOCK);
        vf acc[TILE_ROWS][2];
        UNROLL for (int r = 0; r < px; r++)
            for (int v = 0; v < nv; v++) acc[r][v] = (vf){0};
        for (int64_t i = begin; i < past; i++, w += nv * VW) {
            const float *at = from + offset[i];
            vf weight[2];
            for (int v = 0; v < nv; v++) weight[v] = v_load(w + v * VW);
            UNROLL for (int r = 0; r < px; r++)
                for (int v = 0; v < nv; v++) {
                    if (pairs) acc[r][v] = plus_pairs(acc[r][v], ((const uint32_t *)at)[r], weight[v]);
                    else acc[r][v] += v_splat(at[r]) * weight[v];
                }
        }
        const int alone = begin == 0 && past == k;
        float *to = alone ? total : sum;
        if (alone ? first : begin == 0) {
            UNROLL for (int r = 0; r < px; r++)
                for (int v = 0; v < nv; v++) *(vf *)(to + (r * nv + v) * VW) = acc[r][v];
        } else {
            UNROLL for (int r = 0; r < px; r++)
                for (int v = 0; v < nv; v++) *(vf *)(to + (r * nv + v) * VW) += acc[r][v];
        }
    } while ((begin += BLOCK) < k);
    for (int i = 0; i < px * nv && k > BLOCK; i++) {
        vf *to = (vf *)(total + i * VW);
        *to = first ? *(vf *)(sum + i * VW) : *to + *(vf *)(sum + i * VW);
    }
}

#define TILES(name, nv, pairs)                                                                                                 \
    static __attribute__((noinline)) void name(int64_t px, const float *from, const int32_t *offset, const float *w, int64_t k, \
                                               float *total, int first) {                                                      \
        switch (px) {                                                                                                          \
            TILE_OF(1, nv, pairs) TILE_OF(2, nv, pairs) TILE_OF(3, nv, pairs) TILE_OF(4, nv, pairs) TILE_OF(5, nv, pairs)      \
            TILE_OF(6, nv, pairs) TILE_OF(7, nv, pairs) TILE_OF(8, nv, pairs) TILE_OF(9, nv, pairs) TILE_OF(10, nv, pairs)     \
            TILE_OF(11, nv, pairs) TILE_OF(12, nv, pairs) TILE_OF(13, nv, pairs) TILE_OF(14, nv, pairs)                        \
        }                                                                                                                      \
    }
#define TILE_OF(px, nv, pairs) \
    case px:                   \
        if (px <= TILE_ROWS) tile(px, nv, pairs, from, offset, w, k, total, first); \
        break;
TILES(tiles_1, 1, 0)
TILES(tiles_2, 2, 0)
#if PAIRS
TILES(pairs_1, 1, 1)
TILES(pairs_2, 2, 1)
#else
#define pairs_1 tiles_1
#define pairs_2 tiles_2
#endif

/* Puts the sums [place][lane] of a block's outputs, `apart` from each other, and the bias. The sums are overwritten. turned: room for as
 * many. */
static void put(const conv *p, int64_t at, int64_t output, int64_t outputs, float *total, int64_t lanes, int64_t cols, float *turned) {
    if (p->bias)
        for (int64_t l = 0; l < outputs; l++)
            for (int64_t x = 0; x < cols; x++) total[x * lanes + l] += bias_of(p, output + l);
    if (p->dtype == TG_F32) return turned_32((float *)p->out + at, p->s.area, total, lanes, outputs, cols);
    turned_32(turned, cols, total, lanes, outputs, cols);
    for (int64_t l = 0; l < outputs; l++) put_run(p, at + l * p->s.area, turned + l * cols, cols);
}

/* The input of a band from line y and column x of the places on, [channel][line]. */
static void copy_band(const direct *d, int64_t image, int64_t y, int64_t x, int64_t rows, float *block) {
    const windows *s = &d->p.s;
    const int64_t size = weight_bytes(d->p.dtype), plane = d->high * d->l.stride * d->l.length, of_one = s->inside * size;
    const int64_t row = y * s->stride[1] - s->before[1], col = x * s->stride[2] - s->before[2], per = d->pairs ? 2 : 1;
    const int64_t high = (rows - 1) * s->stride[1] + (s->size[1] - 1) * s->dilation[1] + 1;
    const int64_t first = tg_max_i(0, row) * s->in[2] * size, past = tg_min(of_one, first + d->high * s->in[2] * size);
    const char *seen = d->p.x + image * d->p.channels * of_one;
    for (int64_t c = 0; c < d->p.channels; c += per, block += plane) {
        const char *next = seen + tg_min(c + AHEAD * per, d->p.channels - 1) * of_one, *one = seen + c * of_one;
        for (int64_t i = first; i < past; i += 64) __builtin_prefetch(next + i);
        const char *two = c + 1 < d->p.channels ? one + of_one : NULL;
        if (d->pairs) copy_lines(block, d->l, NUMBERS_OF_TWO, high, one, two, s->in[1], s->in[2], row, col);
        else if (d->p.dtype == TG_F32) copy_lines(block, d->l, TG_F32, high, one, NULL, s->in[1], s->in[2], row, col);
        else if (d->p.dtype == TG_BF16) copy_lines(block, d->l, TG_BF16, high, one, NULL, s->in[1], s->in[2], row, col);
        else copy_lines(block, d->l, TG_F16, high, one, NULL, s->in[1], s->in[2], row, col);
    }
}

/* A band by a block of outputs: all sums, [place][lane]. */
static void sums_of(const direct *d, const float *block, const int32_t *offset, int64_t o, int64_t rows, int64_t cols, int64_t lanes,
                    float *total) {
    const int64_t pieces = tg_ceil(cols, TILE_ROWS), line = d->p.s.stride[1] * d->l.stride * d->l.length;
    for (int64_t k = 0; k < d->k; k += CHUNK)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t piece = 0; piece < pieces; piece++) {
                const int64_t first = cols * piece / pieces, px = cols * (piece + 1) / pieces - first, steps = tg_min(CHUNK, d->k - k);
                const float *from = block + r * line + first, *w = d->u + o * d->k + k * lanes;
                float *to = total + (r * cols + first) * lanes;
                if (d->pairs) (lanes == VW ? pairs_1 : pairs_2)(px, from, offset + k, w, steps, to, k == 0);
                else (lanes == VW ? tiles_1 : tiles_2)(px, from, offset + k, w, steps, to, k == 0);
            }
}

/* Makes sums again that say nothing, where numbers are so small that pairs lose some. */
static void look_at(const direct *d, extent band, int64_t image, int64_t o, int64_t outputs, int64_t place, int64_t rows, int64_t cols,
                    int64_t lanes, float *total) {
    const extent weights = extents_of(d->u, d->p.outputs, d->k)[o / PANEL];
    if (nothing_lost(band, weights)) return;
    const uint32_t least = least_sum(d->p.k, d->p.dtype, band, weights);
    for (int64_t i = 0; i < rows * cols; i++)
        for (int64_t l = 0; l < outputs; l++)
            if (says_nothing(total[i * lanes + l], least))
                total[i * lanes + l] = (float)one_sum(&d->p, image, o + l, place + i / cols * d->p.s.places[2] + i % cols);
}

static void direct_part(void *ctx, int part, int parts) {
    const direct *d = ctx;
    const conv *p = &d->p;
    const windows *s = &p->s;
    const int64_t plane = d->high * d->l.stride * d->l.length, taps = s->taps, line = d->l.stride * d->l.length;
    const int64_t all = d->rows * d->cols * PANEL;
    float *block = tg_scratch(1, (size_t)(d->channels * plane + tg_ceil(d->k, VW) * VW + (p->dtype == TG_F32 ? all : 2 * all)) * 4);
    int32_t *offset = (int32_t *)(block + d->channels * plane);
    float *total = (float *)offset + tg_ceil(d->k, VW) * VW;
    for (int64_t i = 0; i < d->k && block; i++) {
        const int64_t at = i % s->size[2] * s->dilation[2];
        offset[i] = (int32_t)(i / taps * plane + i % taps / s->size[2] * s->dilation[1] * line + at % d->l.stride * d->l.length
                              + at / d->l.stride);
    }
    extent band = NOTHING;
    int64_t from, to, copied = -1;
    tg_range(p->n * d->down * d->across * d->blocks, 1, part, parts, &from, &to);
    for (int64_t task = from; task < to; task++) {
        const int64_t at = task / d->blocks, o = task % d->blocks * PANEL, image = at / (d->down * d->across);
        const int64_t y = at / d->across % d->down * d->rows, x = at % d->across * d->cols, place = y * s->places[2] + x;
        const int64_t rows = tg_min(d->rows, s->places[1] - y), cols = tg_min(d->cols, s->places[2] - x);
        const int64_t outputs = tg_min(PANEL, p->outputs - o), lanes = outputs <= VW ? VW : PANEL;
        if (!block) {
            one_by_one(p, image, o, outputs, place, rows, cols);
            continue;
        }
        if (at != copied) {
            copy_band(d, image, y, x, rows, block);
            if (d->pairs) band = extent_of((const uint16_t *)block, 2 * d->channels * plane);
        }
        copied = at;
        sums_of(d, block, offset, o, rows, cols, lanes, total);
        if (d->pairs) look_at(d, band, image, o, outputs, place, rows, cols, lanes, total);
        const int64_t first = (image * p->outputs + o) * s->area + place;
        if (d->across == 1) put(p, first, o, outputs, total, lanes, rows * cols, total + all); /* they follow each other */
        for (int64_t r = 0; r < rows && d->across > 1; r++)
            put(p, first + r * s->places[2], o, outputs, total + r * cols * lanes, lanes, cols, total + all);
    }
}

/* A convolution in one group, over the last two axes, with k > 0.
 * ptr: out, x, w, bias (or NULL), u (what tg_direct_weights makes of w).  ints: as of tg_conv_f32. */
TG_KERNEL(tg_direct_conv) {
    (void)floats;
    direct d = {.p = conv_of(ptr, ints), .u = ptr[4]};
    const windows *s = &d.p.s;
    if (d.p.n <= 0 || d.p.outputs <= 0 || s->area <= 0) return;
    d.pairs = in_pairs(d.p.dtype, d.p.w_dtype), d.channels = d.pairs ? (d.p.channels + 1) / 2 : d.p.channels, d.k = d.channels * s->taps;
    d.cols = tg_min(s->places[2], MOST_COLS), d.across = tg_ceil(s->places[2], d.cols);
    d.l = lines_of(d.cols, s->size[2], s->stride[2], s->dilation[2]);
    d.blocks = tg_ceil(d.p.outputs, PANEL);
    const int64_t line = tg_max_i(1, d.channels) * d.l.stride * d.l.length * 4 * s->stride[1];
    const int64_t wanted = tg_ceil(4 * tg_threads(), d.p.n * d.across * d.blocks);
    d.down = tg_min(tg_ceil(s->places[1], LEAST_ROWS), tg_max_i(wanted, tg_ceil(s->places[1], tg_max_i(1, BAND_BYTES / line))));
    d.rows = tg_ceil(s->places[1], d.down), d.down = tg_ceil(s->places[1], d.rows);
    d.high = (d.rows - 1) * s->stride[1] + (s->size[1] - 1) * s->dilation[1] + 1;
    const int64_t work = d.rows * d.cols * tg_min(PANEL, d.p.outputs) * tg_max_i(d.k, 1);
    tg_parallel(direct_part, &d, tg_parts(d.p.n * d.down * d.across * d.blocks, tg_ceil(100000, work)));
}

/* The weights w[outputs][channels][taps] as blocks of PANEL outputs, [k][PANEL] each, the last one [k][VW] where that is enough; 0 beyond
 * outputs. By pairs a step of k is two channels, and the extents of all blocks follow.
 * ptr: u, w.  ints: outputs, channels, taps, dtypes of x and w. */
TG_KERNEL(tg_direct_weights) {
    (void)floats;
    const int64_t outputs = ints[0], channels = ints[1], taps = ints[2], pairs = in_pairs(ints[3], ints[4]);
    const int64_t k = (pairs ? (channels + 1) / 2 : channels) * taps;
    for (int64_t o = 0; o < outputs; o += PANEL) {
        const int64_t count = tg_min(PANEL, outputs - o), lanes = count <= VW ? VW : PANEL;
        float *u = (float *)ptr[0] + o * k;
        for (int64_t i0 = 0; i0 < k; i0 += 16) /* one cache line of each output */
            for (int64_t l = 0; l < lanes; l++)
                for (int64_t i = i0; i < tg_min(k, i0 + 16); i++) {
                    const int64_t at = (o + l) * channels * taps + (pairs ? i / taps * 2 * taps + i % taps : i);
                    const uint16_t *w = (const uint16_t *)ptr[1] + at;
                    if (!pairs) u[i * lanes + l] = l < count ? (float)widened(ptr[1], ints[4], at) : 0;
                    else ((uint32_t *)u)[i * lanes + l] = l >= count ? 0 : w[0] | (i / taps * 2 + 1 < channels ? (uint32_t)w[taps] << 16 : 0);
                }
        if (pairs) extents_of(ptr[0], outputs, k)[o / PANEL] = extent_of((const uint16_t *)u, 2 * k * lanes);
    }
}
