/* depthwise.c: convolution of each channel by itself. There is nothing to multiply matrices for: a vector is a piece of a line of
 * the output, and each weight is multiplied with the vector of what it sees. Blocks of the input are copied with zeros around them,
 * so that no element is asked where it is; a block is so small that it stays in the cache.
 *
 * Products add up in f32 along a line of the window, or over the whole of a small one (CHAIN), as they do in gemm.c. */
#include "conv.h"

/* What has sums in registers is unrolled, or they would be in memory. */
#define UNROLL _Pragma("GCC unroll 8")

enum { BLOCK_ROWS = 32, BLOCK_COLS = 256, CHAIN = 32, TOGETHER = 4 };

/* rows x nv vectors of the output from row y and column x of a block on. x3: the window is 3 x 3, stride and dilation are 1, so that
 * what is read once is used by three rows. The constants are so wherever this is used. */
TG_INLINE void tile(const conv *p, const int rows, const int nv, const int x3, const float *block, lines l, const float *w,
                    float bias, int64_t out, int64_t count) {
    const int64_t line = l.stride * l.length, width = p->s.size[2], down = p->s.dilation[1] * line, apart = p->s.stride[1] * line;
    vf acc[TOGETHER][TOGETHER] = {{{0}}};
    if (x3) {
        UNROLL for (int i = 0; i < rows + 2; i++)
            UNROLL for (int j = 0; j < 3; j++)
                UNROLL for (int v = 0; v < nv; v++) {
                    const vf seen = v_load(block + i * line + j + v * VW);
                    UNROLL for (int r = 0; r < rows; r++)
                        if (i >= r && i - r < 3) acc[r][v] += w[(i - r) * 3 + j] * seen;
                }
    } else {
        vf total[TOGETHER][TOGETHER] = {{{0}}};
        const int folds = p->s.size[1] * width > CHAIN;
        for (int64_t k1 = 0; k1 < p->s.size[1]; k1++) {
            for (int64_t k2 = 0; k2 < width; k2++) {
                const int64_t at = k2 * p->s.dilation[2];
                const float *from = block + k1 * down + at % l.stride * l.length + at / l.stride;
                const vf weight = v_splat(w[k1 * width + k2]);
                UNROLL for (int r = 0; r < rows; r++)
                    UNROLL for (int v = 0; v < nv; v++) acc[r][v] += weight * v_load(from + r * apart + v * VW);
            }
            UNROLL for (int r = 0; r < rows && folds; r++)
                UNROLL for (int v = 0; v < nv; v++) total[r][v] += acc[r][v], acc[r][v] = (vf){0};
        }
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < nv; v++) acc[r][v] += total[r][v];
    }
    UNROLL for (int r = 0; r < rows; r++, out += p->s.places[2])
        UNROLL for (int v = 0; v < nv; v++) {
            const vf sums = acc[r][v] + bias;
            if (count < VW) put_run(p, out, (const float *)&sums, count);
            else if (p->dtype == TG_F32) v_store((float *)p->out + out + v * VW, sums);
            else put_run(p, out + v * VW, (const float *)&sums, VW);
        }
}

/* A block of the output. What is left of it after whole tiles is computed with what is before it once more. */
TG_INLINE void block_of(const conv *p, const int x3, const float *block, lines l, const float *w, float bias, int64_t out, int64_t rows,
                        int64_t cols) {
    const int64_t apart = p->s.stride[1] * l.stride * l.length, width = p->s.places[2];
    for (int64_t y = 0; y < rows;) {
        const int64_t high = rows < TOGETHER ? 1 : TOGETHER, row = tg_min(y, rows - high);
        for (int64_t x = 0; x < cols;) {
            const int64_t wide = high == 1 && cols >= TOGETHER * VW ? TOGETHER : cols >= 2 * VW && high > 1 ? 2 : 1;
            const int64_t col = tg_max_i(0, tg_min(x, cols - wide * VW));
            const float *from = block + row * apart + col;
            const int64_t to = out + row * width + col;
            if (high == 1 && wide == 1) tile(p, 1, 1, 0, from, l, w, bias, to, cols);
            else if (high == 1) tile(p, 1, TOGETHER, 0, from, l, w, bias, to, cols);
            else if (wide == 1) tile(p, TOGETHER, 1, x3, from, l, w, bias, to, cols);
            else tile(p, TOGETHER, 2, x3, from, l, w, bias, to, cols);
            x += wide * VW;
        }
        y += high;
    }
}

static void part_of(void *ctx, int part, int parts) {
    const conv *p = ctx;
    const windows *s = &p->s;
    const int64_t down = tg_ceil(s->places[1], BLOCK_ROWS), across = tg_ceil(s->places[2], BLOCK_COLS);
    const lines l = lines_of(tg_min(s->places[2], BLOCK_COLS), s->size[2], s->stride[2], s->dilation[2]);
    const int64_t high = (tg_min(s->places[1], BLOCK_ROWS) - 1) * s->stride[1] + (s->size[1] - 1) * s->dilation[1] + 1;
    const int x3 = s->size[1] == 3 && s->size[2] == 3 && s->stride[1] == 1 && s->stride[2] == 1 && s->dilation[1] == 1
                   && s->dilation[2] == 1;
    float *block = tg_scratch(1, (size_t)(high * l.stride * l.length + p->k) * 4);
    int64_t from, to;
    tg_range(p->n * p->groups * down * across, 1, part, parts, &from, &to);
    for (int64_t task = from; task < to; task++) {
        const int64_t both = task / (down * across), group = both % p->groups;
        const int64_t y = task / across % down * BLOCK_ROWS, x = task % across * BLOCK_COLS, place = y * s->places[2] + x;
        const int64_t rows = tg_min(BLOCK_ROWS, s->places[1] - y), cols = tg_min(BLOCK_COLS, s->places[2] - x);
        if (!block) {
            one_by_one(p, both / p->groups, group * p->outputs, p->outputs, place, rows, cols);
            continue;
        }
        const char *plane = p->x + both * s->inside * weight_bytes(p->dtype);
        const int64_t seen = (rows - 1) * s->stride[1] + (s->size[1] - 1) * s->dilation[1] + 1;
        const int64_t row = y * s->stride[1] - s->before[1], col = x * s->stride[2] - s->before[2];
        if (p->dtype == TG_F32) copy_lines(block, l, TG_F32, seen, plane, NULL, s->in[1], s->in[2], row, col);
        else if (p->dtype == TG_BF16) copy_lines(block, l, TG_BF16, seen, plane, NULL, s->in[1], s->in[2], row, col);
        else copy_lines(block, l, TG_F16, seen, plane, NULL, s->in[1], s->in[2], row, col);
        for (int64_t o = group * p->outputs; o < (group + 1) * p->outputs; o++) {
            float *w = block + high * l.stride * l.length;
            for (int64_t i = 0; i < p->k; i++) w[i] = (float)widened(p->w, p->w_dtype, o * p->k + i);
            const int64_t out = (both * p->outputs + o - group * p->outputs) * s->area + place;
            if (x3) block_of(p, 1, block, l, w, bias_of(p, o), out, rows, cols);
            else block_of(p, 0, block, l, w, bias_of(p, o), out, rows, cols);
        }
    }
}

/* A convolution of one channel in each group, over two axes at most.
 * ptr, ints: as of tg_conv_f32. */
TG_KERNEL(tg_depthwise) {
    (void)floats;
    const conv p = conv_of(ptr, ints);
    const int64_t blocks = p.n * p.groups * tg_ceil(p.s.places[1], BLOCK_ROWS) * tg_ceil(p.s.places[2], BLOCK_COLS);
    if (blocks <= 0 || p.outputs <= 0) return;
    const int64_t work = tg_min(p.s.places[1], BLOCK_ROWS) * tg_min(p.s.places[2], BLOCK_COLS) * p.outputs * tg_max_i(p.k, 4);
    tg_parallel(part_of, (void *)&p, tg_parts(blocks, tg_ceil(100000, work)));
}
