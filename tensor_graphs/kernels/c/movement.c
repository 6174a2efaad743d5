/* movement.c: kernels that move numbers and compute none: strided copy, rows into a state, a pure read. */
#include "loops.h"
#include "turned.h"

enum { MAX_RANK = 8, MAX_TIMES = 16 };

/* One dimension after another from the last inwards; merged dimensions come from run_copy. times: how often each element of a line
 * is written, one behind the other, where that is an axis of its own that is not in `rank`; else 1. */
typedef struct copy {
    char *out;
    const char *in;
    int rank;
    int64_t times;
    int64_t shape[MAX_RANK], out_step[MAX_RANK], in_step[MAX_RANK]; /* steps in bytes */
    int64_t item;
} copy;

TG_INLINE void copy_line(char *out, int64_t os, const char *in, int64_t is, int64_t n, const int64_t item) {
    for (int64_t i = 0; i < n; i++) memcpy(out + i * os, in + i * is, (size_t)item);
}

/* Elements of an enlarged image: `times` of each beside each other. */
TG_INLINE void repeat_line(char *out, const char *in, int64_t is, int64_t n, const int64_t times, const int64_t item) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t t = 0; t < times; t++) memcpy(out + (i * times + t) * item, in + i * is, (size_t)item);
}

static void repeated_line(char *out, const char *in, int64_t is, int64_t n, int64_t times, int64_t item) {
    if (item == 4 && is == 4 && times == 2) repeat_line(out, in, 4, n, 2, 4);
    else if (item == 4 && is == 4 && times == 3) repeat_line(out, in, 4, n, 3, 4);
    else if (item == 4 && is == 4 && times == 4) repeat_line(out, in, 4, n, 4, 4);
    else if (item == 2 && is == 2 && times == 2) repeat_line(out, in, 2, n, 2, 2);
    else if (item == 4) repeat_line(out, in, is, n, times, 4);
    else if (item == 2) repeat_line(out, in, is, n, times, 2);
    else repeat_line(out, in, is, n, times, item);
}

static void copy_part(void *ctx, int part, int parts) {
    const copy *c = ctx;
    int64_t lines = 1, from, to, last = c->rank - 1, index[MAX_RANK];
    for (int r = 0; r < last; r++) lines *= c->shape[r];
    tg_range(lines, 1, part, parts, &from, &to);
    int64_t n = c->shape[last], os = c->out_step[last], is = c->in_step[last];
    const char *in = c->in;
    char *out = c->out;
    int64_t left = from;
    for (int r = (int)last - 1; r >= 0; r--) {
        index[r] = left % c->shape[r];
        left /= c->shape[r];
        in += index[r] * c->in_step[r], out += index[r] * c->out_step[r];
    }
    for (int64_t line = from; line < to; line++) {
        if (c->times > 1) repeated_line(out, in, is, n, c->times, c->item);
        else if (os == c->item && is == c->item) memcpy(out, in, (size_t)(n * c->item));
        else if (c->item == 4 && os == 4) copy_line(out, 4, in, is, n, 4);
        else if (c->item == 4) copy_line(out, os, in, is, n, 4);
        else if (c->item == 2) copy_line(out, os, in, is, n, 2);
        else if (c->item == 1) copy_line(out, os, in, is, n, 1);
        else if (c->item == 8) copy_line(out, os, in, is, n, 8);
        else copy_line(out, os, in, is, n, c->item);
        for (int r = (int)last - 1; r >= 0; r--) {
            in += c->in_step[r], out += c->out_step[r];
            if (++index[r] < c->shape[r]) break;
            index[r] = 0;
            in -= c->shape[r] * c->in_step[r], out -= c->shape[r] * c->out_step[r];
        }
    }
}

enum { COLUMNS = 16, ROWS = 256 }; /* of a block: elements of a line of the cache, and enough to read on and on */

/* Where memory is read along the last but one axis and written along the last one: block by block, so that no line of the cache is
 * read for one element alone. Lines are read to their end: measured on 1024 by 1024 f32, cold, one thread, that takes 0.83 of the time
 * of writing lines to their end, and 0.70 to 0.75 of that of blocks of 64 by 64. A part has blocks. */
static void turned_part(void *ctx, int part, int parts) {
    const copy *c = ctx;
    const int64_t rows = c->shape[c->rank - 2], columns = c->shape[c->rank - 1], down = tg_ceil(rows, ROWS);
    const int64_t os = c->out_step[c->rank - 2], is = c->in_step[c->rank - 1], item = c->item;
    const int64_t blocks = down * tg_ceil(columns, COLUMNS);
    int64_t count = blocks, from, to;
    for (int r = 0; r < c->rank - 2; r++) count *= c->shape[r];
    tg_range(count, 1, part, parts, &from, &to);
    for (int64_t block = from; block < to; block++) {
        int64_t left = block / blocks;
        const int64_t row = block % blocks % down * ROWS, column = block % blocks / down * COLUMNS;
        const int64_t high = tg_min(rows - row, ROWS), wide = tg_min(columns - column, COLUMNS);
        const char *in = c->in + row * item + column * is;
        char *out = c->out + row * os + column * item;
        for (int r = c->rank - 3; r >= 0; r--) {
            in += left % c->shape[r] * c->in_step[r], out += left % c->shape[r] * c->out_step[r];
            left /= c->shape[r];
        }
        if (item == 4) turned_32(out, os / 4, in, is / 4, high, wide);
        else if (item == 2) turned_16(out, os / 2, in, is / 2, high, wide);
        else if (item == 8) turned_64(out, os / 8, in, is / 8, high, wide);
        else if (item == 1) turned_8(out, os, in, is, high, wide);
        else
            for (int64_t i = 0; i < high; i++) copy_line(out + i * os, item, in + i * item, is, wide, item);
    }
}

/* Whether the copy turns a matrix; then the axis along which memory is read becomes the last but one. */
static int turned(copy *c) {
    const int last = c->rank - 1;
    if (last < 1 || c->out_step[last] != c->item || c->in_step[last] == c->item || c->shape[last] < COLUMNS) return 0;
    for (int r = last - 1; r >= 0; r--)
        if (c->in_step[r] == c->item && c->shape[r] >= COLUMNS) {
            const int64_t size = c->shape[r], out_step = c->out_step[r], in_step = c->in_step[r];
            for (int q = r; q < last - 1; q++)
                c->shape[q] = c->shape[q + 1], c->out_step[q] = c->out_step[q + 1], c->in_step[q] = c->in_step[q + 1];
            c->shape[last - 1] = size, c->out_step[last - 1] = out_step, c->in_step[last - 1] = in_step;
            return 1;
        }
    return 0;
}

/* out[i0, i1, ...] = in[i0, i1, ...], each operand with its own strides (elements, negative and 0 allowed for in).
 * ptr: out, in (both at index 0, 0, ...).  ints: rank (0..8), itemsize [byte], shape[8], out_strides[8], in_strides[8]
 * (entries from rank on are ignored). */
TG_KERNEL(tg_copy_strided) {
    (void)floats;
    copy c = {.out = ptr[0], .in = ptr[1], .times = 1, .item = ints[1]};
    int64_t total = 1;
    for (int r = 0; r < ints[0]; r++) { /* drop axes of 1 and merge an axis with the one it runs on from */
        int64_t size = ints[2 + r], os = ints[10 + r] * c.item, is = ints[18 + r] * c.item;
        total *= size;
        if (size == 1) continue;
        int p = c.rank - 1;
        if (c.rank && c.out_step[p] == os * size && c.in_step[p] == is * size) {
            c.shape[p] *= size, c.out_step[p] = os, c.in_step[p] = is;
            continue;
        }
        c.shape[c.rank] = size, c.out_step[c.rank] = os, c.in_step[c.rank] = is;
        c.rank++;
    }
    if (total <= 0) return;
    if (!c.rank) c.shape[0] = 1, c.out_step[0] = c.in_step[0] = c.item, c.rank = 1;
    if (c.rank == 1 && total >= 2 * PART_ELEMENTS && c.out_step[0] == c.item && c.in_step[0] == c.item &&
        total % 1024 == 0) { /* one long line: make lines of it, to have something to cut */
        c.shape[0] = total / 1024, c.shape[1] = 1024, c.rank = 2;
        c.out_step[1] = c.in_step[1] = c.item, c.out_step[0] = c.in_step[0] = 1024 * c.item;
    }
    if (turned(&c)) {
        const int64_t rows = c.shape[c.rank - 2], columns = c.shape[c.rank - 1], block = tg_min(rows, ROWS) * COLUMNS;
        const int64_t blocks = tg_ceil(rows, ROWS) * tg_ceil(columns, COLUMNS) * (total / (rows * columns));
        tg_parallel(turned_part, &c, tg_parts(blocks, tg_ceil(PART_ELEMENTS, block)));
        return;
    }
    if (c.rank > 1) { /* a short axis along which one element is repeated belongs to the line */
        const int last = c.rank - 1;
        const int64_t times = c.shape[last];
        if (times <= MAX_TIMES && c.in_step[last] == 0 && c.out_step[last] == c.item && c.out_step[last - 1] == times * c.item)
            c.times = times, c.rank = last;
    }
    const int64_t line = c.shape[c.rank - 1] * c.times;
    tg_parallel(copy_part, &c, tg_parts(total / line, tg_ceil(PART_ELEMENTS, line)));
}

/* state[start + i] = value[i] for the rows that exist; the others are dropped. In place.
 * ptr: state, value.  ints: state_rows, value_rows, row_bytes, start, bytes from one row of value to the next (0: row_bytes). */
TG_KERNEL(tg_write_rows) {
    (void)floats;
    int64_t rows = ints[0], count = ints[1], bytes = ints[2], start = ints[3], apart = ints[4] ? ints[4] : bytes;
    int64_t from = start < 0 ? -start : 0, to = tg_min(count, rows - start);
    if (from >= to) return;
    char *out = (char *)ptr[0] + (start + from) * bytes;
    const char *in = (const char *)ptr[1] + from * apart;
    if (apart == bytes) memcpy(out, in, (size_t)((to - from) * bytes));
    else
        for (int64_t i = from; i < to; i++, out += bytes, in += apart) memcpy(out, in, (size_t)bytes);
}

/* state[index[i]] = value[i] for the rows that exist; the others are dropped. In place.
 * ptr: state, value, index.  ints: state_rows, value_rows, row_bytes, dtype of index. */
TG_KERNEL(tg_write_at_index) {
    (void)floats;
    const int64_t rows = ints[0], count = ints[1], bytes = ints[2];
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = ints[3] == TG_I64 ? ((const int64_t *)ptr[2])[i] : ((const int32_t *)ptr[2])[i];
        if (row >= 0 && row < rows) memcpy((char *)ptr[0] + row * bytes, (const char *)ptr[1] + i * bytes, (size_t)bytes);
    }
}

/* --- the yardstick: a pure read of the same bytes --- */

typedef struct stream {
    const char *data;
    int64_t bytes;
    _Atomic uint32_t *fold;
} stream;

static void read_part(void *ctx, int part, int parts) {
    const stream *s = ctx;
    int64_t from, to;
    tg_range(s->bytes / 64, 64, part, parts, &from, &to);
    vu acc[4] = {{0}};
    for (int64_t line = from; line < to; line++) {
        tg_ahead(s->data + line * 64);
        for (int v = 0; v < 16 / VW; v++) {
            vf word = v_load((const float *)(s->data + line * 64) + v * VW);
            acc[v] ^= (vu)word;
        }
    }
    uint32_t fold = 0;
    for (int v = 0; v < 4; v++)
        for (int i = 0; i < VW; i++) fold ^= acc[v][i];
    __atomic_fetch_xor((uint32_t *)s->fold, fold, __ATOMIC_RELAXED);
}

/* Reads bytes and folds them into 4 by exclusive or (whole 64-byte lines only): what the memory can deliver.
 * ptr: out u32[1], data.  ints: bytes. */
TG_KERNEL(tg_read_stream) {
    (void)floats;
    *(uint32_t *)ptr[0] = 0;
    stream s = {.data = ptr[1], .bytes = ints[0], .fold = ptr[0]};
    tg_parallel(read_part, &s, tg_parts(s.bytes, 64 << 10));
}
