/* pairs_tile.h: the part of multiply.h for two operands of bfloat16: panels of pairs, and the tile that multiplies by them (pairs.h). */
enum { BLOCK = 256 }; /* pairs whose products one f32 sum adds up; the error of a longer one would grow with its length */

TG_INLINE int64_t pairs_bytes(int64_t k) { return (tg_max_i(k, 1) + 1) / 2 * PANEL * 4 + PANEL * (int64_t)sizeof(extent); }
TG_INLINE extent *extents_of(const char *panel, int64_t k) { return (extent *)(panel + pairs_bytes(k)) - PANEL; }

/* Looks through a panel of `lanes`, a constant. */
TG_INLINE void look_through(const int lanes, const uint32_t *panel, int64_t pairs, extent *extents) {
    const uint16_t *x = (const uint16_t *)panel;
    uint16_t most[2 * PANEL] = {0}, below[2 * PANEL];
    memset(below, 0xff, sizeof below);
    for (int64_t i = 0; i < pairs; i++, x += 2 * lanes)
        for (int l = 0; l < 2 * lanes; l++) {
            const uint16_t size = x[l] & 0x7fff, less = (uint16_t)(size - 1);
            most[l] = size > most[l] ? size : most[l], below[l] = less < below[l] ? less : below[l];
        }
    for (int l = 0; l < lanes; l++) extents[l] = joined(of_bits(most[2 * l], below[2 * l]), of_bits(most[2 * l + 1], below[2 * l + 1]));
}

/* Makes pairs of two lines each, in their place. */
TG_INLINE void interleave(const int lanes, uint32_t *panel, int64_t pairs) {
    for (int64_t i = 0; i < pairs; i++, panel += lanes) {
        uint16_t line[2][PANEL];
        memcpy(line[0], panel, (size_t)lanes * 2), memcpy(line[1], (uint16_t *)panel + lanes, (size_t)lanes * 2);
        for (int l = 0; l < lanes; l++) panel[l] = line[0][l] | (uint32_t)line[1][l] << 16;
    }
}

/* The panel of b: [pair][lane], a pair being two numbers that follow each other along k, and what extents its lanes have. */
static void pack_pairs(const product *p, int64_t batch, int64_t column, int64_t count, int64_t lanes, uint32_t *to) {
    const int64_t k = p->k, pairs = (k + 1) / 2;
    const uint16_t *b = (const uint16_t *)p->b + batch * p->bb + column * p->bn;
    if (p->seen || p->bk != 1) {
        lines_of_b(p, 2, batch, column, count, lanes, 0, k, (char *)to);
        if (k % 2) memset((uint16_t *)to + k * lanes, 0, (size_t)lanes * 2);
        if (lanes == VW) interleave(VW, to, pairs);
        else interleave(PANEL, to, pairs);
    } else if (k % 2 == 0 && p->bn % 2 == 0) {
        turned_32(to, lanes, b, p->bn / 2, pairs, count);
        for (int64_t i = 0; i < pairs && count < lanes; i++) memset(to + i * lanes + count, 0, (size_t)(lanes - count) * 4);
    } else
        for (int64_t l = 0; l < lanes; l++)
            for (int64_t i = 0; i < pairs; i++) {
                const uint16_t *two = b + l * p->bn + 2 * i;
                to[i * lanes + l] = l < count ? two[0] | (2 * i + 1 < k ? (uint32_t)two[1] << 16 : 0) : 0;
            }
    if (lanes == VW) look_through(VW, to, pairs, extents_of((char *)to, k));
    else look_through(PANEL, to, pairs, extents_of((char *)to, k));
}

/* c[r][lane] = sums of products of `rows` rows of a, `stride` apart; `rows` and `nv` are constants. From `next` on 16 bytes per pair are
 * asked into the L2 cache on the way (NULL: none). */
TG_INLINE void pairs_tile(const int rows, const int nv, const char *a, int64_t stride, const uint32_t *panel, int64_t k, float *c,
                          const char *next) {
    vf acc[TILE_ROWS][2];
    const char *base[(TILE_ROWS + 2) / 3]; /* every third row has its own pointer, as in gemm.c */
    for (int r = 0; r < (rows + 2) / 3; r++) base[r] = a + 3 * r * stride;
#define STEP(at, bits)                                                                                                      \
    {                                                                                                                       \
        vf lane[2];                                                                                                         \
        for (int v = 0; v < nv; v++) lane[v] = *(const vf *)(panel + ((at) * nv + v) * VW);                                 \
        _Pragma("GCC unroll 16") for (int r = 0; r < rows; r++) {                                                           \
            uint32_t word = 0;                                                                                              \
            memcpy(&word, base[r / 3] + (r % 3) * stride + (at) * 4, bits);                                                 \
            for (int v = 0; v < nv; v++) acc[r][v] = plus_pairs(acc[r][v], word, lane[v]);                                  \
        }                                                                                                                   \
    }
    int64_t i = 0;
    do {
        const int64_t from = i, to = tg_min(i + BLOCK, k / 2);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < nv; v++) acc[r][v] = (vf){0};
        for (; i + 4 <= to; i += 4) {
            if (next) __builtin_prefetch(next, 0, 2), next += 64;
            STEP(0, 4) STEP(1, 4) STEP(2, 4) STEP(3, 4)
            panel += 4 * nv * VW;
            for (int r = 0; r < (rows + 2) / 3; r++) base[r] += 16;
        }
        for (; i < to; i++) {
            STEP(0, 4)
            panel += nv * VW;
            for (int r = 0; r < (rows + 2) / 3; r++) base[r] += 4;
        }
        if (i == k / 2 && k % 2) STEP(0, 2)
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < nv; v++) {
                vf *sum = (vf *)(c + (r * nv + v) * VW);
                *sum = from ? *sum + acc[r][v] : acc[r][v];
            }
    } while (i < k / 2);
#undef STEP
}

#define ALL_ROWS(name, nv)                                                                                                      \
    static __attribute__((noinline)) void name(int64_t rows, const char *a, int64_t stride, const uint32_t *panel, int64_t k,   \
                                               float *c, const char *next) {                                                    \
        int64_t r = 0;                                                                                                          \
        for (; stride % 4096 == 0 && r + NEAR_ROWS <= rows; r += NEAR_ROWS) { /* as in gemm.c */                                \
            pairs_tile(NEAR_ROWS, nv, a + r * stride, stride, panel, k, c + r * nv * VW, next);                                 \
            if (next) next += 8 * k * NEAR_ROWS / TILE_ROWS;                                                                    \
        }                                                                                                                       \
        for (; r + TILE_ROWS <= rows; r += TILE_ROWS) {                                                                         \
            pairs_tile(TILE_ROWS, nv, a + r * stride, stride, panel, k, c + r * nv * VW, next);                                 \
            if (next) next += 8 * k;                                                                                            \
        }                                                                                                                       \
        for (; r + 4 <= rows; r += 4) pairs_tile(4, nv, a + r * stride, stride, panel, k, c + r * nv * VW, NULL);               \
        for (; r + 2 <= rows; r += 2) pairs_tile(2, nv, a + r * stride, stride, panel, k, c + r * nv * VW, NULL);               \
        for (; r < rows; r++) pairs_tile(1, nv, a + r * stride, stride, panel, k, c + r * nv * VW, NULL);                       \
    }
ALL_ROWS(pairs_1, 1)
ALL_ROWS(pairs_2, 2)

/* Makes sums of a row of pairs again, of all lanes or those below `least`, with the operands widened. */
static __attribute__((noinline)) void sums_again(const uint16_t *a, const uint32_t *panel, int64_t k, int64_t lanes, uint32_t least,
                                                 float *c) {
    double sum[PANEL] = {0};
    for (int64_t i = 0; i < (k + 1) / 2; i++, panel += lanes) {
        const double one = bf16_to_f32(a[2 * i]), two = 2 * i + 1 < k ? bf16_to_f32(a[2 * i + 1]) : 0;
        for (int64_t l = 0; l < lanes; l++) sum[l] += one * float_of(panel[l] << 16) + two * float_of(panel[l] & 0xffff0000u);
    }
    for (int64_t l = 0; l < lanes; l++)
        if (says_nothing(c[l], least)) c[l] = (float)sum[l];
}

/* c = the sums of rows of a by a panel. */
static void pairs_product(const product *p, int64_t rows, int64_t nv, const char *a, int64_t stride, const char *panel, float *c,
                          const extent *of_rows, const char *next) {
    const int64_t k = p->k, lanes = nv * VW;
    (nv == 1 ? pairs_1 : pairs_2)(rows, a, stride, (const uint32_t *)panel, k, c, next);
    const extent *of_lanes = extents_of(panel, k);
    extent all = NOTHING;
    for (int64_t l = 0; l < lanes; l++) all = joined(all, of_lanes[l]);
    for (int64_t r = 0; r < rows; r++, c += lanes, a += stride) {
        if (nothing_lost(of_rows[r], all)) continue;
        const uint32_t least = least_sum(k, p->out_dtype, of_rows[r], all);
        int again = 0;
        for (int64_t l = 0; l < lanes; l++) again |= says_nothing(c[l], least) && of_lanes[l].most != 0;
        if (again) sums_again((const uint16_t *)a, (const uint32_t *)panel, k, lanes, least, c);
    }
}
