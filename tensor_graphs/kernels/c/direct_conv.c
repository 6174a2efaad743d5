/* direct_conv.c: convolution over up to two axes without a matrix of what the windows see: lanes are outputs (channels of the
 * result), and each element of the input is multiplied with a vector of weights, packed beforehand (tg_direct_weights) in the order
 * in which they are read. The input of a band of places is copied with zeros around it, the elements of a stride next to each
 * other, so that neighbouring places always read neighbouring elements, wherever the window has its tap.
 *
 * BLOCK products add up in registers, the blocks of a CHUNK in f32, and the chunks in f32 again. While a chunk of the weights goes
 * past all places of a band it stays in the L1 cache. The error of 576 products, against the rms of all: 1.8e-7 (blocks of 32 and
 * chunks of 256: 1.2e-7, and 5 % slower). */
#include "conv.h"

#include "gemm.h"
#include "lines.h"

#define UNROLL _Pragma("GCC unroll 16")

enum { BLOCK = 96, CHUNK = 192, MOST_COLS = 112, BAND_BYTES = 160 << 10, LEAST_ROWS = 4, AHEAD = 2 /* channels */ };

typedef struct direct {
    conv p;
    const float *u;                    /* the packed weights */
    int64_t rows, cols, down, across;  /* places of a band; bands of an image, along each axis */
    int64_t blocks;                    /* PANELs of outputs */
    lines l;                           /* of a band's input */
    int64_t high;                      /* lines of one channel of it */
} direct;

/* The sums of `k` > 0 products for px places x nv vectors of outputs; px and nv are constants wherever this is used. They are added to
 * `total`, or written where this is the `first` chunk. */
TG_INLINE void tile(const int px, const int nv, const float *from, const int32_t *offset, const float *w, int64_t k, float *total,
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
            UNROLL for (int r = 0; r < px; r++) {
                const vf seen = v_splat(at[r]);
                for (int v = 0; v < nv; v++) acc[r][v] += seen * weight[v];
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

#define TILES(name, nv)                                                                                                        \
    static __attribute__((noinline)) void name(int64_t px, const float *from, const int32_t *offset, const float *w, int64_t k, \
                                               float *total, int first) {                                                      \
        switch (px) {                                                                                                          \
            TILE_OF(1, nv) TILE_OF(2, nv) TILE_OF(3, nv) TILE_OF(4, nv) TILE_OF(5, nv) TILE_OF(6, nv) TILE_OF(7, nv)           \
            TILE_OF(8, nv) TILE_OF(9, nv) TILE_OF(10, nv) TILE_OF(11, nv) TILE_OF(12, nv) TILE_OF(13, nv) TILE_OF(14, nv)      \
        }                                                                                                                      \
    }
#define TILE_OF(px, nv) \
    case px:            \
        if (px <= TILE_ROWS) tile(px, nv, from, offset, w, k, total, first); \
        break;
TILES(tiles_1, 1)
TILES(tiles_2, 2)

typedef int32_t vi __attribute__((vector_size(VW * 4)));

/* The first, or the last, halves of two vectors, their elements in turns. */
#if VW == 16
#define FIRST_HALVES (vi){0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23}
#elif VW == 8
#define FIRST_HALVES (vi){0, 8, 1, 9, 2, 10, 3, 11}
#else
#define FIRST_HALVES (vi){0, 4, 1, 5}
#endif

/* out[l][x] = total[x][l] + bias[l] for VW lanes and VW places; lines of out are `apart`, of total `lanes`. Merging the first half of
 * the vectors with the second turns a square when it is done log2(VW) times. */
TG_INLINE void put_square(float *out, int64_t apart, const float *total, int64_t lanes, const float *bias) {
    vf a[VW], b[VW];
    const vf more = bias ? v_load(bias) : (vf){0};
    UNROLL for (int i = 0; i < VW; i++) a[i] = v_load(total + i * lanes) + more;
    UNROLL for (int stage = 1; stage < VW; stage *= 4) { /* of two merges each; VW = 8 takes three */
        UNROLL for (int i = 0; i < VW / 2; i++) {
            b[2 * i] = __builtin_shuffle(a[i], a[i + VW / 2], FIRST_HALVES);
            b[2 * i + 1] = __builtin_shuffle(a[i], a[i + VW / 2], FIRST_HALVES + VW / 2);
        }
        if (2 * stage == VW) {
            UNROLL for (int i = 0; i < VW; i++) a[i] = b[i];
            break;
        }
        UNROLL for (int i = 0; i < VW / 2; i++) {
            a[2 * i] = __builtin_shuffle(b[i], b[i + VW / 2], FIRST_HALVES);
            a[2 * i + 1] = __builtin_shuffle(b[i], b[i + VW / 2], FIRST_HALVES + VW / 2);
        }
    }
    UNROLL for (int i = 0; i < VW; i++) v_store(out + i * apart, a[i]);
}

/* out[l][x] = total[x][l] + bias[l] for l < outputs and x < cols. What is left of the places after whole vectors is put with those
 * before it once more. */
static void put(float *out, int64_t apart, const float *total, int64_t lanes, int64_t cols, int64_t outputs, const float *bias) {
    int64_t l = 0;
    for (; l + VW <= outputs && cols >= VW; l += VW)
        for (int64_t x = 0; x < cols; x += VW) {
            const int64_t at = tg_min(x, cols - VW);
            put_square(out + l * apart + at, apart, total + at * lanes + l, lanes, bias ? bias + l : NULL);
        }
    for (; l < outputs; l++)
        for (int64_t x = 0; x < cols; x++) out[l * apart + x] = total[x * lanes + l] + (bias ? bias[l] : 0);
}

static void direct_part(void *ctx, int part, int parts) {
    const direct *d = ctx;
    const conv *p = &d->p;
    const int64_t plane = d->high * d->l.stride * d->l.length, taps = p->size[1] * p->size[2], line = d->l.stride * d->l.length;
    float *block = tg_scratch(1, (size_t)(p->channels * plane + tg_ceil(p->k, VW) * VW + d->rows * d->cols * PANEL) * 4);
    int32_t *offset = (int32_t *)(block + p->channels * plane);
    float *total = (float *)offset + tg_ceil(p->k, VW) * VW;
    for (int64_t i = 0; i < p->k && block; i++) {
        const int64_t at = i % p->size[2] * p->dilation[2];
        offset[i] = (int32_t)(i / taps * plane + i % taps / p->size[2] * p->dilation[1] * line + at % d->l.stride * d->l.length
                              + at / d->l.stride);
    }
    int64_t from, to, copied = -1;
    tg_range(p->n * d->down * d->across * d->blocks, 1, part, parts, &from, &to);
    for (int64_t task = from; task < to; task++) {
        const int64_t band = task / d->blocks, o = task % d->blocks * PANEL, image = band / (d->down * d->across);
        const int64_t y = band / d->across % d->down * d->rows, x = band % d->across * d->cols;
        const int64_t rows = tg_min(d->rows, p->places[1] - y), cols = tg_min(d->cols, p->places[2] - x);
        const int64_t outputs = tg_min(PANEL, p->outputs - o), lanes = outputs <= VW ? VW : PANEL;
        const float *seen = p->x + image * p->channels * p->inside, *bias = p->bias ? p->bias + o : NULL;
        float *out = p->out + (image * p->outputs + o) * p->area + y * p->places[2] + x;
        if (!block) {
            for (int64_t r = 0; r < rows; r++)
                tg_conv_one_by_one(p, p->out + (image * p->outputs + o) * p->area, seen, p->w + o * p->k, bias, outputs,
                                   (y + r) * p->places[2] + x, cols);
            continue;
        }
        for (int64_t c = 0; c < p->channels && band != copied; c++) {
            const float *next = seen + tg_min(c + AHEAD, p->channels - 1) * p->inside;
            const int64_t first = tg_max_i(0, y * p->stride[1] - p->before[1]) * p->in[2];
            const int64_t past = tg_min(p->inside, first + d->high * p->in[2]);
            for (int64_t i = first; i < past; i += 16) __builtin_prefetch(next + i);
            copy_lines(block + c * plane, d->l, (rows - 1) * p->stride[1] + (p->size[1] - 1) * p->dilation[1] + 1,
                       seen + c * p->inside, p->in[1], p->in[2], y * p->stride[1] - p->before[1], x * p->stride[2] - p->before[2]);
        }
        copied = band;
        const int64_t pieces = tg_ceil(cols, TILE_ROWS);
        for (int64_t k = 0; k < p->k; k += CHUNK)
            for (int64_t r = 0; r < rows; r++)
                for (int64_t piece = 0; piece < pieces; piece++) {
                    const int64_t first = cols * piece / pieces, px = cols * (piece + 1) / pieces - first;
                    (lanes == VW ? tiles_1 : tiles_2)(px, block + r * p->stride[1] * line + first, offset + k,
                                                      d->u + o * p->k + k * lanes, tg_min(CHUNK, p->k - k),
                                                      total + (r * cols + first) * lanes, k == 0);
                }
        if (d->across == 1) put(out, p->area, total, lanes, rows * cols, outputs, bias); /* they follow each other */
        for (int64_t r = 0; r < rows && d->across > 1; r++)
            put(out + r * p->places[2], p->area, total + r * cols * lanes, lanes, cols, outputs, bias);
    }
}

/* The convolution of tg_conv_f32 in one group, over the last two axes, with k > 0.
 * ptr: out, x, w, bias (or NULL), u (what tg_direct_weights makes of w).  ints: as of tg_conv_f32. */
TG_KERNEL(tg_direct_f32) {
    (void)floats;
    direct d = {.p = tg_conv_of(ptr, ints), .u = ptr[4]};
    const conv *p = &d.p;
    if (p->n <= 0 || p->outputs <= 0 || p->area <= 0) return;
    d.cols = tg_min(p->places[2], MOST_COLS), d.across = tg_ceil(p->places[2], d.cols);
    d.l = lines_of(d.cols, p->size[2], p->stride[2], p->dilation[2]);
    d.blocks = tg_ceil(p->outputs, PANEL);
    const int64_t line = tg_max_i(1, p->channels) * d.l.stride * d.l.length * 4 * p->stride[1];
    const int64_t wanted = tg_ceil(4 * tg_threads(), p->n * d.across * d.blocks);
    d.down = tg_min(tg_ceil(p->places[1], LEAST_ROWS), tg_max_i(wanted, tg_ceil(p->places[1], tg_max_i(1, BAND_BYTES / line))));
    d.rows = tg_ceil(p->places[1], d.down), d.down = tg_ceil(p->places[1], d.rows);
    d.high = (d.rows - 1) * p->stride[1] + (p->size[1] - 1) * p->dilation[1] + 1;
    const int64_t work = d.rows * d.cols * tg_min(PANEL, p->outputs) * tg_max_i(p->k, 1);
    tg_parallel(direct_part, &d, tg_parts(p->n * d.down * d.across * d.blocks, tg_ceil(100000, work)));
}

/* The weights w[outputs][k] as blocks of PANEL outputs, [k][PANEL] each, the last one [k][VW] where that is enough; 0 beyond outputs.
 * ptr: u, w.  ints: outputs, k. */
TG_KERNEL(tg_direct_weights) {
    (void)floats;
    const float *w = ptr[1];
    for (int64_t o = 0, k = ints[1]; o < ints[0]; o += PANEL) {
        const int64_t outputs = tg_min(PANEL, ints[0] - o), lanes = outputs <= VW ? VW : PANEL;
        float *u = (float *)ptr[0] + o * k;
        for (int64_t i0 = 0; i0 < k; i0 += 16) /* one cache line of each output */
            for (int64_t l = 0; l < lanes; l++)
                for (int64_t i = i0; i < tg_min(k, i0 + 16); i++) u[i * lanes + l] = l < outputs ? w[(o + l) * k + i] : 0;
    }
}
