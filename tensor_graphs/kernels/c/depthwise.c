/* depthwise.c: convolution of each channel by itself. There is nothing to multiply matrices for: a vector is a piece of a line of
 * the output, and each weight is multiplied with the vector of what it sees. Blocks of the input are copied with zeros around them,
 * so that no element is asked where it is; a block is so small that it stays in the cache.
 *
 * Products add up in f32 along a line of the window, or over the whole of a small one (CHAIN), as they do in gemm.c. */
#include "depthwise.h"

#include "lines.h"

/* What has sums in registers is unrolled, or they would be in memory. */
#define UNROLL _Pragma("GCC unroll 8")

enum { BLOCK_ROWS = 32, BLOCK_COLS = 256, CHAIN = 32, TOGETHER = 4 };

/* rows x nv vectors of the output from row y and column x of a block on. x3: the window is 3 x 3, stride and dilation are 1, so that
 * what is read once is used by three rows. The constants are so wherever this is used. */
TG_INLINE void tile(const conv *p, const int rows, const int nv, const int x3, const float *block, lines l, const float *w,
                    float bias, float *out, int64_t count) {
    const int64_t line = l.stride * l.length, width = p->size[2], down = p->dilation[1] * line, apart = p->stride[1] * line;
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
        const int folds = p->size[1] * width > CHAIN;
        for (int64_t k1 = 0; k1 < p->size[1]; k1++) {
            for (int64_t k2 = 0; k2 < width; k2++) {
                const int64_t at = k2 * p->dilation[2];
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
    UNROLL for (int r = 0; r < rows; r++, out += p->places[2])
        UNROLL for (int v = 0; v < nv; v++) {
            const vf found = acc[r][v] + bias;
            if (count >= VW) v_store(out + v * VW, found);
            else copy_run(out, (const float *)&found, count);
        }
}

/* A block of the output. What is left of it after whole tiles is computed with what is before it once more. */
TG_INLINE void block_of(const conv *p, const int x3, const float *block, lines l, const float *w, float bias, float *out, int64_t rows,
                        int64_t cols) {
    const int64_t apart = p->stride[1] * l.stride * l.length, width = p->places[2];
    for (int64_t y = 0; y < rows;) {
        const int64_t high = rows < TOGETHER ? 1 : TOGETHER, row = tg_min(y, rows - high);
        for (int64_t x = 0; x < cols;) {
            const int64_t wide = high == 1 && cols >= TOGETHER * VW ? TOGETHER : cols >= 2 * VW && high > 1 ? 2 : 1;
            const int64_t col = tg_max_i(0, tg_min(x, cols - wide * VW));
            const float *from = block + row * apart + col;
            float *to = out + row * width + col;
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
    const int64_t down = tg_ceil(p->places[1], BLOCK_ROWS), across = tg_ceil(p->places[2], BLOCK_COLS);
    const lines l = lines_of(tg_min(p->places[2], BLOCK_COLS), p->size[2], p->stride[2], p->dilation[2]);
    const int64_t high = (tg_min(p->places[1], BLOCK_ROWS) - 1) * p->stride[1] + (p->size[1] - 1) * p->dilation[1] + 1;
    const int x3 = p->size[1] == 3 && p->size[2] == 3 && p->stride[1] == 1 && p->stride[2] == 1 && p->dilation[1] == 1
                   && p->dilation[2] == 1;
    float *block = tg_scratch(1, (size_t)(high * l.stride * l.length) * 4);
    int64_t from, to;
    tg_range(p->n * p->groups * down * across, 1, part, parts, &from, &to);
    for (int64_t task = from; task < to; task++) {
        const int64_t both = task / (down * across), group = both % p->groups;
        const int64_t y = task / across % down * BLOCK_ROWS, x = task % across * BLOCK_COLS;
        const int64_t rows = tg_min(BLOCK_ROWS, p->places[1] - y), cols = tg_min(BLOCK_COLS, p->places[2] - x);
        const float *plane = p->x + both * p->inside;
        if (block)
            copy_lines(block, l, (rows - 1) * p->stride[1] + (p->size[1] - 1) * p->dilation[1] + 1, plane, p->in[1], p->in[2],
                       y * p->stride[1] - p->before[1], x * p->stride[2] - p->before[2]);
        for (int64_t o = 0; o < p->outputs; o++) {
            const float *w = p->w + (group * p->outputs + o) * p->k, *bias = p->bias ? p->bias + group * p->outputs + o : NULL;
            float *out = p->out + (both * p->outputs + o) * p->area;
            const int64_t first = y * p->places[2] + x;
            if (!block) {
                for (int64_t r = 0; r < rows; r++) tg_conv_one_by_one(p, out, plane, w, bias, 1, first + r * p->places[2], cols);
            } else if (x3) block_of(p, 1, block, l, w, bias ? *bias : 0, out + first, rows, cols);
            else block_of(p, 0, block, l, w, bias ? *bias : 0, out + first, rows, cols);
        }
    }
}

void tg_depthwise(const conv *p) {
    const int64_t blocks = p->n * p->groups * tg_ceil(p->places[1], BLOCK_ROWS) * tg_ceil(p->places[2], BLOCK_COLS);
    const int64_t work = tg_min(p->places[1], BLOCK_ROWS) * tg_min(p->places[2], BLOCK_COLS) * p->outputs * tg_max_i(p->k, 4);
    tg_parallel(part_of, (void *)p, tg_parts(blocks, tg_ceil(100000, work)));
}
