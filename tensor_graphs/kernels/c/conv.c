/* conv.c: convolution over up to three axes as a product of the weight with what its windows see, which is packed panel by panel
 * and never written as a whole. */
#include "conv.h"

#include "depthwise.h"
#include "gemm.h"
#include "lines.h"

/* to[l] = row[stride * (place + l) + offset] for l < count, 0 outside of the row. */
TG_INLINE void pack_line(float *to, const float *row, int64_t length, int64_t place, int64_t stride, int64_t offset, int64_t count) {
    const int64_t begin = place * stride + offset;
    if (begin >= 0 && begin + (count - 1) * stride < length) {
        if (stride == 1) memcpy(to, row + begin, (size_t)count * 4);
        else
            for (int64_t l = 0; l < count; l++) to[l] = row[begin + l * stride];
        return;
    }
    for (int64_t l = 0; l < count; l++) {
        const int64_t at = begin + l * stride;
        to[l] = at >= 0 && at < length ? row[at] : 0;
    }
}

/* panel[k][lanes]: what the windows at the places first to first + cols - 1 see of the channels from x on. */
static void pack(const conv *p, float *panel, const float *x, int64_t first, int64_t cols, int64_t lanes) {
    const int64_t width = p->places[2];
    if (p->plain) {
        for (int64_t c = 0; c < p->channels; c++, panel += lanes) {
            copy_run(panel, x + c * p->inside + first, cols);
            for (int64_t l = cols; l < lanes; l++) panel[l] = 0;
        }
        return;
    }
    for (int64_t l = 0; l < cols;) { /* the pieces of lines of places that the panel is made of */
        const int64_t place = first + l, x2 = place % width, x1 = place / width % p->places[1], x0 = place / width / p->places[1];
        const int64_t count = tg_min(cols - l, width - x2);
        float *to = panel + l;
        for (int64_t c = 0; c < p->channels; c++)
            for (int64_t k0 = 0; k0 < p->size[0]; k0++) {
                const int64_t at0 = x0 * p->stride[0] + k0 * p->dilation[0] - p->before[0];
                for (int64_t k1 = 0; k1 < p->size[1]; k1++) {
                    const int64_t at1 = x1 * p->stride[1] + k1 * p->dilation[1] - p->before[1];
                    const int there = at0 >= 0 && at0 < p->in[0] && at1 >= 0 && at1 < p->in[1];
                    const float *row = x + c * p->inside + (there ? (at0 * p->in[1] + at1) * p->in[2] : 0);
                    for (int64_t k2 = 0; k2 < p->size[2]; k2++, to += lanes) {
                        if (there) pack_line(to, row, p->in[2], x2, p->stride[2], k2 * p->dilation[2] - p->before[2], count);
                        else memset(to, 0, (size_t)count * 4);
                    }
                }
            }
        l += count;
    }
    for (int64_t i = 0; i < p->k && cols < lanes; i++) memset(panel + i * lanes + cols, 0, (size_t)(lanes - cols) * 4);
}

void tg_conv_one_by_one(const conv *p, float *out, const float *x, const float *w, const float *bias, int64_t rows, int64_t first,
                        int64_t cols) {
    for (int64_t o = 0; o < rows; o++)
        for (int64_t l = 0; l < cols; l++) {
            const int64_t place = first + l, at2 = place % p->places[2], rest = place / p->places[2];
            const int64_t at[AXES] = {rest / p->places[1], rest % p->places[1], at2};
            double sum = 0;
            for (int64_t i = 0; i < p->k; i++) {
                const int64_t k[AXES] = {i / p->size[2] / p->size[1] % p->size[0], i / p->size[2] % p->size[1], i % p->size[2]};
                int64_t from = i / (p->size[0] * p->size[1] * p->size[2]), there = 1;
                for (int a = 0; a < AXES; a++) {
                    const int64_t y = at[a] * p->stride[a] + k[a] * p->dilation[a] - p->before[a];
                    there &= y >= 0 && y < p->in[a];
                    from = from * p->in[a] + y;
                }
                sum += (double)w[o * p->k + i] * (there ? x[from] : 0);
            }
            out[o * p->area + place] = (float)sum + (bias ? bias[o] : 0);
        }
}

TG_INLINE void column_panel(const conv *p, const int nv, float *out, const float *x, const float *w, const float *bias, int64_t rows,
                            int64_t first, int64_t cols) {
    const int64_t lanes = nv * VW;
    float *panel = tg_scratch(1, (size_t)(p->k * lanes) * 4);
    if (!panel) {
        tg_conv_one_by_one(p, out, x, w, bias, rows, first, cols);
        return;
    }
    pack(p, panel, x, first, cols, lanes);
    _Alignas(64) float c[TILE_ROWS * PANEL];
    for (int64_t o = 0; o < rows; o += TILE_ROWS) {
        const int64_t height = tg_min(TILE_ROWS, rows - o);
        tg_rows_product(height, nv, K_CONTIGUOUS, w + o * p->k, p->k, panel, p->k, c, NULL, NULL);
        for (int64_t r = 0; r < height; r++) {
            float *to = out + (o + r) * p->area + first;
            const float more = bias ? bias[o + r] : 0;
            for (int64_t l = 0; l < cols; l++) to[l] = c[r * lanes + l] + more;
        }
    }
}

static void conv_part(void *ctx, int part, int parts) {
    const conv *p = ctx;
    const int64_t per = p->panels * p->chunks;
    int64_t from, to;
    tg_range(p->n * p->groups * per, 1, part, parts, &from, &to);
    for (int64_t task = from; task < to; task++) {
        const int64_t both = task / per, group = both % p->groups, first = task % per / p->chunks * PANEL, chunk = task % p->chunks;
        const int64_t most = tg_ceil(tg_ceil(p->outputs, TILE_ROWS), p->chunks) * TILE_ROWS, row = chunk * most;
        const int64_t rows = tg_min(most, p->outputs - row), cols = tg_min(PANEL, p->area - first), o = group * p->outputs + row;
        if (rows <= 0) continue;
        float *out = p->out + (both * p->outputs + row) * p->area;
        const float *x = p->x + both * p->channels * p->inside, *w = p->w + o * p->k, *bias = p->bias ? p->bias + o : NULL;
        if (cols <= VW) column_panel(p, 1, out, x, w, bias, rows, first, cols);
        else column_panel(p, 2, out, x, w, bias, rows, first, cols);
    }
}

conv tg_conv_of(void *const *ptr, const int64_t *ints) {
    conv p = {.out = ptr[0], .x = ptr[1], .w = ptr[2], .bias = ptr[3], .n = ints[0], .groups = ints[1], .channels = ints[2],
              .outputs = ints[3], .inside = 1, .area = 1, .k = ints[2]};
    for (int a = 0; a < AXES; a++) {
        const int64_t *at = ints + 4 + 6 * a;
        p.in[a] = at[0], p.places[a] = at[1], p.size[a] = at[2], p.stride[a] = at[3], p.before[a] = at[4], p.dilation[a] = at[5];
        p.inside *= at[0], p.area *= at[1], p.k *= at[2];
    }
    return p;
}

/* out[n, groups * outputs, places] = bias + sums over c and k of x[n, groups * channels, in] * w[groups * outputs, channels, size],
 * x at stride * place + dilation * k - before, 0 outside.
 * ptr: out, x, w, bias (or NULL).  ints: n, groups, channels, outputs (of a group), then for each of three axes: in, places, size,
 * stride, before, dilation; of fewer axes the first ones are 1, 1, 1, 1, 0, 1. */
TG_KERNEL(tg_conv_f32) {
    (void)floats;
    conv p = tg_conv_of(ptr, ints);
    if (p.n <= 0 || p.groups * p.outputs <= 0 || p.area <= 0) return;
    if (p.channels == 1 && p.in[0] == 1 && p.places[0] == 1 && p.size[0] == 1) {
        tg_depthwise(&p);
        return;
    }
    p.plain = p.k == p.channels && p.area == p.inside;
    for (int a = 0; a < AXES; a++) p.plain &= p.stride[a] == 1 && p.before[a] == 0;
    p.panels = tg_ceil(p.area, PANEL), p.chunks = 1;
    const int64_t tasks = p.n * p.groups * p.panels, wanted = 2 * tg_threads();
    if (tasks < wanted) p.chunks = tg_max_i(1, tg_min(tg_ceil(wanted, tasks), p.outputs / (4 * TILE_ROWS)));
    const int64_t work = tg_min(p.area, PANEL) * tg_ceil(p.outputs, p.chunks) * tg_max_i(p.k, 1);
    tg_parallel(conv_part, &p, tg_parts(tasks * p.chunks, tg_ceil(100000, work)));
}
