/* lines.h: lines of an image with zeros around them, and the elements of a stride next to each other: what convolutions read
 * without looking at borders. */
#ifndef TG_LINES_H
#define TG_LINES_H

#include "conv.h"

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

/* A block of lines. Of line r, element i lies at (r * stride + i % stride) * length + i / stride. */
typedef struct lines {
    int64_t stride, length; /* length: a multiple of VW */
} lines;

/* How `cols` places lie, of windows of `size` elements `dilation` apart. One vector may be read from where any place is. */
TG_INLINE lines lines_of(int64_t cols, int64_t size, int64_t stride, int64_t dilation) {
    const int64_t last = tg_max_i(cols, VW) + (size - 1) * dilation / stride + 1;
    return (lines){stride, tg_ceil(last, VW) * VW};
}

/* The block from line `row` and element `col` on, `rows` lines of it, of a plane of height x width elements; 0 outside of it. */
TG_INLINE void copy_lines(float *to, lines l, int64_t rows, const float *plane, int64_t height, int64_t width, int64_t row,
                          int64_t col) {
    for (int64_t r = row; r < row + rows; r++) {
        const float *line = plane + r * width;
        for (int64_t phase = 0; phase < l.stride; phase++, to += l.length) {
            for (int64_t i = 0; i < l.length; i += VW) *(vf *)(to + i) = (vf){0};
            if (r < 0 || r >= height) continue;
            const int64_t first = col + phase; /* where i = 0 is; those inside of the line are from <= i < past */
            const int64_t from = first < 0 ? tg_ceil(-first, l.stride) : 0;
            const int64_t past = first < width ? tg_min(l.length, (width - 1 - first) / l.stride + 1) : 0;
            if (l.stride == 1) {
                if (past > from) copy_run(to + from, line + first + from, past - from);
            } else if (l.stride == 2)
                for (int64_t i = from; i < past; i++) to[i] = line[first + 2 * i];
            else
                for (int64_t i = from; i < past; i++) to[i] = line[first + l.stride * i];
        }
    }
}

#endif
