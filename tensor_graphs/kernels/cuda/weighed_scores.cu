/* Scores of a tile of a warpgroup as weights, by both kernels for many queries. Given by the text before: KEYS (of a tile), SCALE, CAP (0:
 * none), CAUSAL, WINDOW (0: none), POWER (of 2, of a float), POWER_OF_TWO (the least that is no smaller than SCALE · log2 e), LIFT (a power
 * of two, by which all weights, and so their sum, are multiplied). */
#define TG_LOG2_E 1.4426950408889634
/* Scores are changed before they are compared, or are multiples of what weights are powers of 2 of. */
#define TG_CHANGED (CAP || SCALE < 0)
#define TG_BY (TG_CHANGED ? 1.0f : (float)(SCALE * TG_LOG2_E))
/* The largest score of a row, times TG_BY, rounds to half a gap between floats, which all weights of the row share and which may be as
 * much as 8 up to here. Beyond, scores that differ do so by 16 at least: their weights are 0 beside the largest's by any factor that is
 * no smaller, and a power of two rounds nothing. */
#define TG_FAR 0x1p28f

/* The scores of a tile as weights; top, total: of each of a thread's two rows, which are kept up; kept: what sums so far are multiplied
 * by. */
TG_INLINE void weigh(float (&s)[KEYS / 2], float (&top)[2], float (&total)[2], float (&kept)[2], int64_t key, int64_t position,
                     int64_t keys, bool hides) {
    if (TG_CHANGED)
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
            const float x = s[i] * (float)(SCALE);
            s[i] = (CAP ? (float)(CAP) * tanhf(x / (float)(CAP ? CAP : 1)) : x) * (float)TG_LOG2_E;
        }
    if (hides)
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
            const int64_t at = key + i / 4 * 8 + i % 2, row = position + i / 2 % 2 * 8;
            if (at >= keys || (CAUSAL && at > row) || (WINDOW && at <= row - WINDOW)) s[i] = -INFINITY;
        }
    float shift[2], by[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float best = top[h];
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) best = f32_max(best, f32_max(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
        best = f32_max(best, __shfl_xor_sync(0xffffffffu, best, 1));
        best = f32_max(best, __shfl_xor_sync(0xffffffffu, best, 2));
        by[h] = !TG_CHANGED && fabsf(best * TG_BY) > TG_FAR ? (float)(POWER_OF_TWO) : TG_BY;
        shift[h] = best == -INFINITY ? 0.0f : best * by[h];
        kept[h] = POWER(__fmul_rn(top[h], by[h]) - shift[h]);
        top[h] = best;
        total[h] *= kept[h];
    }
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        const int h = i / 2 % 2;
        s[i] = POWER(fmaf(s[i], by[h], -shift[h])) * LIFT;
        total[h] += s[i];
    }
}

