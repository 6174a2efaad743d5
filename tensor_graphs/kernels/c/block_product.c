/* block_product.c: products of f32 rows with weights in blocks (blocks.h), which are packed before (packed_blocks.h).
 *
 * Of few rows of x each tile of weights is read once: its codes become floats in registers. Where x may be rounded to integers, codes are
 * multiplied as bytes, whatever the number of rows. Many rows of f32: two tiles of weights at a time become a panel of floats, whose lanes
 * are rows of weights as a tile's are, and rows of x are multiplied by it (multiply.h). The bytes as they were before are not read. */
#include "packed_blocks.h"
#include "product.h"

enum { FEW = 8 /* rows of f32 that the weights stream past */, TOGETHER = 4 /* rows of x at once */, X_BYTES = 384 << 10 /* of rows of x */ };

/* Bytes by which weights are requested ahead, to the L2 cache. A core of Zen 4 read 20 GB/s of Q8_0 so, 14 without, 14 to 17 with 2 to 8 KB
 * or to the L1 cache; a pure read, 31. */
enum { AHEAD = 32 << 10 };

typedef struct blocks {
    float *out;
    const float *x, *bias;
    const uint8_t *w, *packed; /* w: what is packed, of rows of `row` bytes */
    rounded_part *rounded;     /* x as integers */
    int64_t n, m, k, row;
    int64_t first, last;   /* rows of x that are multiplied */
    tg_decode decode;
} blocks;

/* One output by its definition: of a sum that met an infinity, which is NaN, whatever it should be, or a scale of MXFP4 by which numbers
 * leave f32. */
static __attribute__((noinline)) float one_output(const blocks *b, int64_t i, int64_t c) {
    double sum = b->bias ? b->bias[i] : 0;
    for (int64_t from = 0; from < b->k; from += PART) {
        float w[PART * VW];
        b->decode((const char *)b->packed, b->k, i / VW * VW, VW, from, PART, w);
        for (int l = 0; l < PART; l++) sum += (double)w[l * VW + i % VW] * b->x[c * b->k + from + l];
    }
    return (float)sum;
}

static void store_outputs(const blocks *b, int64_t tile, int64_t c, const vf *sums) {
    const int64_t first = tile * LANES, count = tg_min(LANES, b->m - first);
    float value[LANES], *out = b->out + c * b->m + first;
    memcpy(value, sums, sizeof value);
    for (int l = 0; l < LANES && b->bias; l++) value[l] += l < count ? b->bias[first + l] : 0;
    float rest = 0;
    for (int l = 0; l < LANES; l++) rest += value[l] - value[l];
    for (int l = 0; l < count && rest != 0; l++)
        if (value[l] - value[l] != 0) value[l] = one_output(b, first + l, c);
    if (count == LANES) memcpy(out, value, sizeof value);
    else memcpy(out, value, (size_t)count * sizeof *out);
}

/* The outputs of a tile for rows [c, c + nx) of x. */
TG_INLINE void tile_outputs(const blocks *b, const int format, const int how, const int nx, int64_t tile, int64_t c) {
    const int parts = block_parts(format);
    const int64_t of_row = b->k / PART;
    const uint8_t *code = b->packed + tile * tile_bytes(format, b->k), *scale = code + of_row * packed_part(format);
    const float *x = b->x + c * b->k;
    const rounded_part *rounded = b->rounded + c * of_row;
    vf out[TOGETHER][N], lost[TOGETHER][N];
    for (int i = 0; i < nx; i++)
        for (int r = 0; r < N; r++) out[i][r] = lost[i][r] = (vf){0};
    for (int64_t l = 0; l < of_row; l += parts, scale += packed_scales(format))
        for (int j = 0; j < parts; j++, code += packed_part(format)) {
            part_scales s;
            for (int64_t i = 0; i < packed_part(format) && nx == 1; i += 64) __builtin_prefetch(code + AHEAD + i, 0, 1);
            packed_scales_of(format, scale, j, &s);
            for (int r = 0; r < N && format == MXFP4; r++) s.scale[0][r] += (vf)((vi)(s.scale[0][r] >= 0x1p125f) & 0x7fc00000);
            if (how != IN_F32) {
                add_rounded_products(format, how, nx, code, &s, rounded + l + j, of_row, out);
                continue;
            }
            vf sums[TOGETHER][N]; /* which are added with what additions round away, as in multiply.h */
            for (int i = 0; i < nx; i++)
                for (int r = 0; r < N; r++) sums[i][r] = -lost[i][r];
            add_products(format, nx, code, &s, x + (l + j) * PART, b->k, sums);
            for (int i = 0; i < nx; i++)
                for (int r = 0; r < N; r++) {
                    const vf high = out[i][r] + sums[i][r];
                    lost[i][r] = (high - out[i][r]) - sums[i][r], out[i][r] = high;
                }
        }
    for (int i = 0; i < nx; i++) store_outputs(b, tile, c + i, out[i]);
}

TG_INLINE void tiles(void *ctx, int part, int parts, const int format, const int how) {
    const blocks *b = ctx;
    int64_t from, to;
    tg_range(tg_ceil(b->m, LANES), 1, part, parts, &from, &to);
    for (int64_t tile = from; tile < to; tile++) {
        int64_t c = b->first;
        for (; c + TOGETHER <= b->last; c += TOGETHER) tile_outputs(b, format, how, TOGETHER, tile, c);
        for (; c < b->last; c++) tile_outputs(b, format, how, 1, tile, c);
    }
}

TG_INLINE void round_rows(void *ctx, int part, int parts, const int format, const int how) {
    const blocks *b = ctx;
    int64_t from, to;
    tg_range(b->n * (b->k / PART), 1, part, parts, &from, &to);
    for (int64_t l = from; l < to; l++) round_part(format, how, b->x + l * PART, b->rounded + l);
}

TG_INLINE void pack_tiles(void *ctx, int part, int parts, const int format) {
    const blocks *b = ctx;
    int64_t from, to;
    tg_range(tg_ceil(b->m, LANES), 1, part, parts, &from, &to);
    for (int64_t tile = from; tile < to; tile++)
        pack_tile(format, b->w + tile * LANES * b->row, tg_min(LANES, b->m - tile * LANES), b->row, b->k,
                  (uint8_t *)b->packed + tile * tile_bytes(format, b->k));
}

/* As `tg_decode` says, of packed weights. */
TG_INLINE void decode(const int format, const char *packed, int64_t k, int64_t row, int64_t lanes, int64_t from, int64_t count, float *to) {
    for (int64_t i = 0; i < lanes; i += VW) {
        const uint8_t *tile = (const uint8_t *)packed + (row + i) / LANES * tile_bytes(format, k), *scale = tile + k / PART * packed_part(format);
        const int r = (int)((row + i) % LANES / VW);
        float *at = to + i;
        for (int64_t l = from / PART; l < (from + count) / PART; l++) {
            part_scales s;
            packed_scales_of(format, scale + l / block_parts(format) * packed_scales(format), (int)(l % block_parts(format)), &s);
            _Pragma("GCC unroll 8") for (int q = 0; q < GROUPS; q++) {
                vf w[4];
                four_numbers(format, tile + l * packed_part(format), &s, q, r, 1, w);
                for (int b = 0; b < 4; b++, at += lanes) v_store(at, w[b]);
            }
        }
    }
}

typedef void (*parts_of)(void *, int, int);

#define FORMAT(name)                                                                                             \
    static void tiles_##name(void *ctx, int part, int parts) { tiles(ctx, part, parts, name, IN_F32); }          \
    static void tiles_8_##name(void *ctx, int part, int parts) { tiles(ctx, part, parts, name, IN_INT8); }       \
    static void tiles_8x2_##name(void *ctx, int part, int parts) { tiles(ctx, part, parts, name, IN_INT8X2); }   \
    static void round_8_##name(void *ctx, int part, int parts) { round_rows(ctx, part, parts, name, IN_INT8); }  \
    static void round_8x2_##name(void *ctx, int part, int parts) { round_rows(ctx, part, parts, name, IN_INT8X2); } \
    static void pack_##name(void *ctx, int part, int parts) { pack_tiles(ctx, part, parts, name); }              \
    static void decode_##name(const char *w, int64_t k, int64_t row, int64_t lanes, int64_t from, int64_t count, float *to) { \
        decode(name, w, k, row, lanes, from, count, to);                                                         \
    }
#define EACH(f) f(Q8_0) f(Q4_0) f(Q4_1) f(Q5_0) f(Q5_1) f(Q4_K) f(Q5_K) f(Q6_K) f(MXFP4) f(IQ4_NL)
EACH(FORMAT)

#define ROW_OF(name) {{tiles_##name, tiles_8_##name, tiles_8x2_##name}, {NULL, round_8_##name, round_8x2_##name}, pack_##name, decode_##name},
static const struct {
    parts_of tiles[3], round[3], pack;
    tg_decode decode;
} of_format[FORMATS] = {EACH(ROW_OF)};

/* Packs w. ptr: out, w.  ints: m, k, format (as blocks.h numbers them), bytes of a row of w. */
TG_KERNEL(tg_pack_blocks) {
    (void)floats;
    blocks b = {.packed = ptr[0], .w = ptr[1], .m = ints[0], .k = ints[1], .row = ints[3]};
    tg_parallel(of_format[ints[2]].pack, &b, tg_parts(tg_ceil(b.m, LANES), tg_ceil(4 << 10, tg_max_i(b.row, 1))));
}

/* out[n,m] = x[n,k] . w[m,k]^T (+ bias[m]) of f32, w in blocks of a format.
 * ptr: out, x, w packed, bias or NULL.  ints: n, m, k, format (as blocks.h numbers them), how x may be rounded. */
TG_KERNEL(tg_block_linear) {
    (void)floats;
    const int64_t how = ints[4];
    blocks b = {.out = ptr[0], .x = ptr[1], .packed = ptr[2], .bias = ptr[3], .n = ints[0], .m = ints[1], .k = ints[2],
                .decode = of_format[ints[3]].decode};
    if (b.n <= 0 || b.m <= 0) return;
    if (how != IN_F32) b.rounded = tg_scratch(0, (size_t)(b.n * (b.k / PART)) * sizeof(rounded_part) + 1);
    if (b.n > FEW && !b.rounded) return tg_linear_decoded(ptr, ints, b.decode);
    if (b.rounded) tg_parallel(of_format[ints[3]].round[how], &b, tg_parts(b.n * (b.k / PART), 1 << 10));
    const int64_t step = b.rounded ? tg_max_i(TOGETHER, X_BYTES / tg_max_i(b.k / PART * (int64_t)sizeof(rounded_part), 1)) : b.n;
    for (b.first = 0; b.first < b.n; b.first = b.last) {
        b.last = tg_min(b.n, b.first + step);
        const int64_t least = tg_ceil(16 << 10, tg_max_i(tile_bytes((int)ints[3], b.k) * tg_ceil(b.n, 8), 1));
        tg_parallel(of_format[ints[3]].tiles[b.rounded ? how : IN_F32], &b, tg_parts(tg_ceil(b.m, LANES), least));
    }
}
