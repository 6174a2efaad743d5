/* windows.h: what the windows of a convolution see, as the right operand of a product: element (i, j) is the one under tap i, of channel
 * i / taps, of the window at place j. It is gathered panel by panel and never written as a whole. */
#ifndef TG_WINDOWS_H
#define TG_WINDOWS_H

#include "vec.h"

enum { AXES = 3 };

typedef struct windows {
    int64_t in[AXES], places[AXES], size[AXES], stride[AXES], before[AXES], dilation[AXES];
    int64_t inside, area, taps; /* elements of a channel of the input, places, and elements of a window in one channel */
    const char *end;            /* of the input's memory */
} windows;

/* ints: for each of three axes: in, places, size, stride, before, dilation; of fewer axes the first ones are 1, 1, 1, 1, 0, 1. */
TG_INLINE windows windows_of(const int64_t *ints) {
    windows w = {.inside = 1, .area = 1, .taps = 1};
    for (int a = 0; a < AXES; a++, ints += 6) {
        w.in[a] = ints[0], w.places[a] = ints[1], w.size[a] = ints[2], w.stride[a] = ints[3], w.before[a] = ints[4];
        w.dilation[a] = ints[5], w.inside *= ints[0], w.area *= ints[1], w.taps *= ints[2];
    }
    return w;
}

/* Whether the windows see one element each, at their own place: the input as it lies. */
TG_INLINE int see_themselves(const windows *w) {
    int same = w->taps == 1 && w->inside == w->area;
    for (int a = 0; a < AXES; a++) same &= w->stride[a] == 1 && w->before[a] == 0;
    return same;
}

/* Where tap i at a place is in the channels of its image; -1 around it. */
TG_INLINE int64_t seen_at(const windows *w, int64_t i, int64_t place) {
    const int64_t tap[AXES] = {i / w->size[2] / w->size[1] % w->size[0], i / w->size[2] % w->size[1], i % w->size[2]};
    const int64_t rest = place / w->places[2], at[AXES] = {rest / w->places[1], rest % w->places[1], place % w->places[2]};
    int64_t from = i / w->taps;
    for (int a = 0; a < AXES; a++) {
        const int64_t y = at[a] * w->stride[a] + tap[a] * w->dilation[a] - w->before[a];
        if (y < 0 || y >= w->in[a]) return -1;
        from = from * w->in[a] + y;
    }
    return from;
}

/* Places that follow each other in a line of places. */
typedef struct piece {
    int64_t lane, count, from[AXES]; /* its first lane; where the window of its first place begins */
    const char *line;                /* the line that the windows see under the present tap; NULL: one around the image */
} piece;

/* `most` elements from `row` on, `count` of which are needed; the others are read if there are any before `end`. */
TG_INLINE void copy_some(char *to, const char *row, const int size, const int most, int64_t count, const char *end) {
    if (row + most * size <= end) memcpy(to, row, (size_t)(most * size));
    else memcpy(to, row, (size_t)(count * size));
}

TG_INLINE void copy_apart(char *to, const char *row, const int size, int64_t stride, int64_t count) {
#define APART(type, by) \
    for (int64_t l = 0; l < count; l++) ((type *)to)[l] = ((const type *)row)[l * (by)]
    if (size == 8) APART(uint64_t, stride);
    else if (size == 4 && stride == 1) APART(uint32_t, 1);
    else if (size == 4 && stride == 2) APART(uint32_t, 2);
    else if (size == 4) APART(uint32_t, stride);
    else if (stride == 1) APART(uint16_t, 1);
    else if (stride == 2) APART(uint16_t, 2);
    else APART(uint16_t, stride);
#undef APART
}

/* to[step][lanes], elements of `size` bytes: what `count` windows from place `first` on see under the taps from `from` on, zeros in
 * lanes that are left. x: the channels of the image. Whole runs of `most` lanes are written, and what lies behind a run is written after
 * it: so `to` has room for `most` elements more. `size` and `most` are constants. */
TG_INLINE void gather(const windows *w, const int size, const int most, const char *x, int64_t first, int64_t count, int64_t lanes,
                      int64_t from, int64_t steps, char *to) {
    piece pieces[32];
    int parts = 0;
    for (int64_t l = 0; l < count; l += pieces[parts++].count) {
        const int64_t place = first + l, rest = place / w->places[2], at[AXES] = {rest / w->places[1], rest % w->places[1], place % w->places[2]};
        piece *p = pieces + parts;
        p->lane = l, p->count = tg_min(count - l, w->places[2] - at[2]);
        for (int a = 0; a < AXES; a++) p->from[a] = at[a] * w->stride[a] - w->before[a];
    }
    const char *channel = x + from / w->taps * w->inside * size;
    int64_t tap[AXES] = {from / w->size[2] / w->size[1] % w->size[0], from / w->size[2] % w->size[1], from % w->size[2]};
    for (int64_t i = 0; i < steps; i++, to += lanes * size) {
        for (piece *p = pieces; p < pieces + parts; p++) {
            if (i == 0 || tap[2] == 0) {
                const int64_t at0 = p->from[0] + tap[0] * w->dilation[0], at1 = p->from[1] + tap[1] * w->dilation[1];
                const int inside = at0 >= 0 && at0 < w->in[0] && at1 >= 0 && at1 < w->in[1];
                p->line = inside ? channel + (at0 * w->in[1] + at1) * w->in[2] * size : NULL;
            }
            char *out = to + p->lane * size;
            const int64_t at = p->from[2] + tap[2] * w->dilation[2], by = w->stride[2], last = at + (p->count - 1) * by;
            const char *row = p->line + at * size;
            if (p->line && at >= 0 && last < w->in[2]) {
                if (by == 1) copy_some(out, row, size, most, p->count, w->end);
                else copy_apart(out, row, size, by, p->count);
                continue;
            }
            /* the places of the piece whose windows have this tap inside of the line: those from `begin` to `past` */
            const int64_t begin = at < 0 ? tg_ceil(-at, by) : 0, past = last < w->in[2] ? p->count : tg_ceil(w->in[2] - at, by);
            memset(out, 0, (size_t)(most * size));
            if (!p->line || begin >= past) continue;
            copy_apart(out + begin * size, row + begin * by * size, size, by, past - begin);
        }
        if (count < lanes) memset(to + count * size, 0, (size_t)((lanes - count) * size));
        if (++tap[2] < w->size[2]) continue;
        tap[2] = 0;
        if (++tap[1] < w->size[1]) continue;
        tap[1] = 0;
        if (++tap[0] < w->size[0]) continue;
        tap[0] = 0, channel += w->inside * size;
    }
}

#endif
