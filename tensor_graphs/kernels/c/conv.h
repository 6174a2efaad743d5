/* conv.h: convolutions over lines of an image, which are copied with zeros around them and the elements of a stride next to each other, so
 * that windows are read without looking at borders. */
#ifndef TG_CONV_H
#define TG_CONV_H

#include "pairs.h"
#include "windows.h"

typedef struct conv {
    char *out;
    const char *x, *w;
    const void *bias;
    int64_t n, groups, channels, outputs, k; /* channels and outputs of one group; products of a sum */
    int64_t dtype, w_dtype, bias_dtype;      /* dtype: of x and out */
    windows s;
} conv;

/* The arguments of a convolution kernel, in the order of product.h. */
TG_INLINE conv conv_of(void *const *ptr, const int64_t *ints) {
    const int64_t *dtypes = ints + 4 + 6 * AXES;
    conv p = {.out = ptr[0], .x = ptr[1], .w = ptr[2], .bias = ptr[3], .n = ints[0], .groups = ints[1], .channels = ints[2],
              .outputs = ints[3], .dtype = dtypes[0], .w_dtype = dtypes[1], .bias_dtype = dtypes[2], .s = windows_of(ints + 4)};
    p.k = p.channels * p.s.taps;
    return p;
}

TG_INLINE float bias_of(const conv *p, int64_t output) { return p->bias ? (float)widened(p->bias, p->bias_dtype, output) : 0; }

/* to[i] = from[i] for i < count: short runs, without a call. */
TG_INLINE void copy_run(float *to, const float *from, int64_t count) {
    if (count >= VW) {
        for (int64_t i = 0; i + VW <= count; i += VW) v_store(to + i, v_load(from + i));
        v_store(to + count - VW, v_load(from + count - VW));
    } else if (count >= 4) {
        v4 some;
        for (int64_t i = 0; i + 4 <= count; i += 4) memcpy(&some, from + i, 16), memcpy(to + i, &some, 16);
        memcpy(&some, from + count - 4, 16), memcpy(to + count - 4, &some, 16);
    } else {
        if (count > 0) to[0] = from[0];
        if (count > 1) to[1] = from[1];
        if (count > 2) to[2] = from[2];
    }
}

/* `count` elements of the result, which follow each other. */
TG_INLINE void put_run(const conv *p, int64_t at, const float *sums, int64_t count) {
    uint16_t *narrow = (uint16_t *)p->out + at;
    if (p->dtype == TG_F32) copy_run((float *)p->out + at, sums, count);
    else if (p->dtype == TG_BF16 && count >= VW) {
        for (int64_t i = 0; i + VW <= count; i += VW) v_store_bf16(narrow + i, v_load(sums + i));
        v_store_bf16(narrow + count - VW, v_load(sums + count - VW));
    } else if (p->dtype == TG_BF16)
        for (int64_t i = 0; i < count; i++) narrow[i] = bf16_of_f32(sums[i]);
    else
        for (int64_t i = 0; i < count; i++) narrow[i] = f16_of_f32(sums[i]);
}

/* A sum, from the operands themselves; output: of all groups. */
static __attribute__((noinline)) double one_sum(const conv *p, int64_t image, int64_t output, int64_t place) {
    double sum = 0;
    for (int64_t i = 0; i < p->k; i++) {
        const int64_t from = seen_at(&p->s, i, place), channel = (image * p->groups + output / p->outputs) * p->channels;
        const double seen = from < 0 ? 0 : widened(p->x, p->dtype, channel * p->s.inside + from);
        sum += widened(p->w, p->w_dtype, output * p->k + i) * seen;
    }
    return sum;
}

/* Those of `outputs` outputs at `rows` lines of `cols` places, for when there is no memory. */
TG_INLINE void one_by_one(const conv *p, int64_t image, int64_t output, int64_t outputs, int64_t place, int64_t rows, int64_t cols) {
    for (int64_t o = output; o < output + outputs; o++)
        for (int64_t l = 0; l < rows * cols; l++) {
            const int64_t at = place + l / cols * p->s.places[2] + l % cols;
            const float sum = (float)(one_sum(p, image, o, at) + bias_of(p, o));
            put_run(p, (image * p->groups * p->outputs + o) * p->s.area + at, &sum, 1);
        }
}

/* A block of lines. Of line r, element i lies at (r * stride + i % stride) * length + i / stride. */
typedef struct lines {
    int64_t stride, length; /* length: a multiple of VW */
} lines;

/* How `cols` places lie, of windows of `size` elements `dilation` apart. One vector may be read from where any place is. */
TG_INLINE lines lines_of(int64_t cols, int64_t size, int64_t stride, int64_t dilation) {
    const int64_t last = tg_max_i(cols, VW) + (size - 1) * dilation / stride + 1;
    return (lines){stride, tg_ceil(last, VW) * VW};
}

enum { NUMBERS_OF_TWO = -1 /* as a dtype: bfloat16 numbers of two channels as the halves of a word */ };

/* Elements `stride` apart as floats, or as pairs with those of another channel (NULL: zeros). */
TG_INLINE void copy_line(float *to, const int dtype, const char *from, const char *other, const int stride, int64_t count) {
    const uint16_t *one = (const uint16_t *)from, *two = (const uint16_t *)other;
    if (dtype == TG_F32 && stride == 1) copy_run(to, (const float *)from, count);
    else if (dtype == TG_BF16 && stride == 1 && count >= VW) {
        for (int64_t i = 0; i + VW <= count; i += VW) v_store(to + i, v_load_bf16(one + i));
        v_store(to + count - VW, v_load_bf16(one + count - VW));
    } else if (dtype != NUMBERS_OF_TWO)
        for (int64_t i = 0; i < count; i++) to[i] = (float)widened(from, dtype, i * stride);
    else if (!two)
        for (int64_t i = 0; i < count; i++) ((uint32_t *)to)[i] = one[i * stride];
    else
        for (int64_t i = 0; i < count; i++) ((uint32_t *)to)[i] = one[i * stride] | (uint32_t)two[i * stride] << 16;
}

/* The block from line `row` and element `col` on, `rows` lines of it, of a plane of height x width elements (and, of pairs, another one);
 * 0 outside of it. */
TG_INLINE void copy_lines(float *to, lines l, const int dtype, int64_t rows, const char *plane, const char *other, int64_t height,
                          int64_t width, int64_t row, int64_t col) {
    const int size = dtype == TG_F32 ? 4 : 2;
    for (int64_t r = row; r < row + rows; r++) {
        for (int64_t phase = 0; phase < l.stride; phase++, to += l.length) {
            for (int64_t i = 0; i < l.length; i += VW) *(vf *)(to + i) = (vf){0};
            if (r < 0 || r >= height) continue;
            const int64_t first = col + phase; /* where i = 0 is; those inside of the line are from <= i < past */
            const int64_t from = first < 0 ? tg_ceil(-first, l.stride) : 0, at = (r * width + first + from * l.stride) * size;
            const int64_t past = first < width ? tg_min(l.length, (width - 1 - first) / l.stride + 1) : 0;
            const char *next = other ? other + at : NULL;
            if (past <= from) continue;
            if (l.stride == 1) copy_line(to + from, dtype, plane + at, next, 1, past - from);
            else if (l.stride == 2) copy_line(to + from, dtype, plane + at, next, 2, past - from);
            else copy_line(to + from, dtype, plane + at, next, (int)l.stride, past - from);
        }
    }
}

#endif
