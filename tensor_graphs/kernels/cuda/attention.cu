/* attention: a query and the heads that share a head of keys are a block's; its keys are cut into parts, a block for each, and the
 * last of these blocks adds up their sums (the sums of softmax over parts of a row, each with its own maximum: Milakov and Gimelshein
 * 2018; parts of the keys side by side: Flash-Decoding, Dao et al. 2023). Each key and each value is read once for all heads of the
 * group. LANES lanes share a key in packs of 16 bytes, CHUNKS of them each; a warp has 32 / LANES keys at a time and takes TAKEN turns
 * at once. Given by the text before: Q, K, V, Y (how elements are stored), WIDE_Q, WIDE_K, WIDE_V (f32 of an element), NARROW_Y, D,
 * GROUP, HEADS (of keys), WARPS, PACK, PACK_Q (elements of k and of q that are loaded at once), SPLITS (parts, at most), ROWS (of
 * queries and heads of keys whose keys are cut), SCALE, CAP (0: none), CAUSAL, WINDOW (0: none). */
#define LANES (D / PACK < 32 ? D / PACK : 32)
#define CHUNKS (D / (LANES * PACK))
#define BESIDE (32 / LANES)
#define TAKEN (16 / WARPS)
#define EACH (CHUNKS * PACK)
#define PARTS (WARPS * BESIDE)
#define WORDS (D % 4 ? 1 : 4)
#define THREADS (32 * WARPS)
#define COLUMNS (GROUP * D / WORDS)                                 /* packs of the results of a block */
#define MOST_JOINERS (PARTS / 2 < SPLITS ? PARTS / 2 : SPLITS)
#define JOINERS (COLUMNS * MOST_JOINERS < THREADS ? MOST_JOINERS : COLUMNS < THREADS ? THREADS / COLUMNS : 1)

/* Blocks of each row that have stored their sums; 0 again when the last has joined them. */
__device__ unsigned arrived[ROWS];

/* Keys of each part: enough for all warps of a block; parts behind the last key are not looked at. */
TG_INLINE int64_t keys_of_part(int64_t seen, int splits) {
    const int64_t each = (seen + splits - 1) / splits;
    return each < PARTS * TAKEN ? PARTS * TAKEN : each;
}

TG_INLINE float weight(float score, float top) { return top == -INFINITY ? 0.0f : expf(score - top); }

/* Of the last block of a row: its results are those of all parts, taken in their order by JOINERS threads for each column.
 * y, sums, tops: those of the first head of the row. room: shared memory for (JOINERS * D + 33) * GROUP floats. */
TG_INLINE void join_parts(Y *y, const float *sums, const float *tops, int splits, int parts, float *room) {
    float *const weights = room + JOINERS * GROUP * D, *const divisors = weights + 32 * GROUP;
    const int lane = threadIdx.x % 32, joiner = threadIdx.x / COLUMNS;
    for (int g = threadIdx.x / 32; g < GROUP; g += WARPS) {         /* a lane for each part: there are 32 at most */
        const float top = lane < parts ? tops[(g * splits + lane) * 2] : -INFINITY;
        const float total = lane < parts ? tops[(g * splits + lane) * 2 + 1] : 0.0f;
        const float w = weight(top, reduced<32>(top, Max(), (float *)0)), divisor = reduced<32>(w * total, Sum(), (float *)0);
        weights[32 * g + lane] = w;
        if (lane == 0) divisors[g] = divisor;
    }
    __syncthreads();
    for (int column = threadIdx.x % COLUMNS; joiner < JOINERS && column < COLUMNS; column += THREADS) {
        const int g = column * WORDS / D, e = column * WORDS % D;
        Pack<float, WORDS> mixed = {};
#pragma unroll 8
        for (int part = joiner; part < parts; part += JOINERS) {
            const Pack<float, WORDS> one = pack_at<WORDS>(sums + (g * splits + part) * D + e);
#pragma unroll
            for (int i = 0; i < WORDS; i++) mixed.at[i] = fmaf(weights[32 * g + part], one.at[i], mixed.at[i]);
        }
        put_pack<WORDS>(room + joiner * GROUP * D + column * WORDS, mixed);
    }
    __syncthreads();
    for (int at = threadIdx.x; at < GROUP * D; at += THREADS) {
        float mixed = 0;
#pragma unroll
        for (int j = 0; j < JOINERS; j++) mixed += room[j * GROUP * D + at];
        y[at] = NARROW_Y(mixed / divisors[at / D]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention(
    Y *__restrict__ y, const Q *q, const K *k, const V *v, const int64_t *sizes, float *sums, float *tops) {
    const int64_t s = sizes[0], start = sizes[1];
    const int splits = (int)sizes[2];
    __shared__ __align__(16) float shared_sum[PARTS][GROUP][D];
    __shared__ float shared_top[PARTS][GROUP], shared_total[PARTS][GROUP];
    const int lane = threadIdx.x % LANES, part = threadIdx.x / LANES;
    const int split = blockIdx.x % splits, head = blockIdx.x / splits % HEADS;
    const int64_t query = blockIdx.x / (splits * HEADS), position = start + query;
    const int64_t high = CAUSAL && position + 1 < s ? (position + 1 > 0 ? position + 1 : 0) : s;
    const int64_t low = WINDOW && position - WINDOW + 1 > 0 ? position - WINDOW + 1 : 0;
    const int64_t seen = high > low ? high - low : 0, each = keys_of_part(seen, splits);
    const int64_t begin = low + split * each, end = begin + each < high ? begin + each : high;

    if (begin >= end && (seen > 0 || split > 0)) return;            /* now, to make room for the blocks of later launches */
    for (int64_t at = begin + part; at < end; at += PARTS)          /* what others write of it is written after this, or before */
        for (int line = lane * 128; line < D * (int)sizeof(K); line += LANES * 128) {
            bring((const char *)(k + (at * HEADS + head) * D) + line);
            bring((const char *)(v + (at * HEADS + head) * D) + line);
        }
    after_those_before();
    y += (query * HEADS + head) * GROUP * D;
    if (seen == 0 && split == 0)
        for (int at = threadIdx.x; at < GROUP * D; at += THREADS) y[at] = NARROW_Y(0.0f);
    if (begin >= end) return;
    float ours[GROUP][EACH], sum[GROUP][EACH], top[GROUP], total[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        top[g] = -INFINITY, total[g] = 0;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int e = 0; e < PACK; e += PACK_Q) {
                const Pack<Q, PACK_Q> of_q =
                    pack_at<PACK_Q>(q + ((query * HEADS + head) * GROUP + g) * D + (c * LANES + lane) * PACK + e);
#pragma unroll
                for (int i = 0; i < PACK_Q; i++) ours[g][c * PACK + e + i] = WIDE_Q(of_q.at[i]), sum[g][c * PACK + e + i] = 0;
            }
    }
    for (int64_t at = begin + part; at - part < end; at += PARTS * TAKEN) {
        float score[TAKEN][GROUP];
        Pack<K, PACK> keys[TAKEN][CHUNKS];
        Pack<V, PACK> values[TAKEN][CHUNKS];
#pragma unroll
        for (int t = 0; t < TAKEN; t++) {
            const int64_t key = at + t * PARTS, there = key < end ? key : end - 1;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                keys[t][c] = pack_at<PACK>(k + (there * HEADS + head) * D + (c * LANES + lane) * PACK);
                values[t][c] = pack_at<PACK>(v + (there * HEADS + head) * D + (c * LANES + lane) * PACK);
            }
        }
#pragma unroll
        for (int t = 0; t < TAKEN; t++)
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                float dot = 0;
#pragma unroll
                for (int c = 0; c < CHUNKS; c++)
#pragma unroll
                    for (int e = 0; e < PACK; e++) dot = fmaf(ours[g][c * PACK + e], WIDE_K(keys[t][c].at[e]), dot);
                dot = reduced<LANES>(dot, Sum(), (float *)0) * (float)(SCALE);
                if (CAP) dot = (float)(CAP) * tanhf(dot / (float)(CAP ? CAP : 1));
                score[t][g] = at + t * PARTS < end ? dot : -INFINITY;
            }
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float best = top[g];
#pragma unroll
            for (int t = 0; t < TAKEN; t++) best = f32_max(best, score[t][g]);
            const float kept = weight(top[g], best);
            total[g] *= kept;
#pragma unroll
            for (int e = 0; e < EACH; e++) sum[g][e] *= kept;
#pragma unroll
            for (int t = 0; t < TAKEN; t++) {
                const float w = at + t * PARTS < end ? weight(score[t][g], best) : 0.0f;
                total[g] += w;
                if (at + t * PARTS < end)
#pragma unroll
                    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
                        for (int e = 0; e < PACK; e++)
                            sum[g][c * PACK + e] = fmaf(w, WIDE_V(values[t][c].at[e]), sum[g][c * PACK + e]);
            }
            top[g] = best;
        }
    }
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        if (lane == 0) shared_top[part][g] = top[g], shared_total[part][g] = total[g];
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int e = 0; e < PACK; e += PACK_Q) {
                Pack<float, PACK_Q> some;
#pragma unroll
                for (int i = 0; i < PACK_Q; i++) some.at[i] = sum[g][c * PACK + e + i];
                put_pack<PACK_Q>(&shared_sum[part][g][(c * LANES + lane) * PACK + e], some);
            }
    }
    __syncthreads();
    const int64_t row = query * HEADS + head;
    const int parts = (int)((seen + each - 1) / each);
    sums += row * GROUP * splits * D, tops += row * GROUP * splits * 2;
#pragma unroll 1
    for (int at = threadIdx.x * WORDS; at < GROUP * D; at += THREADS * WORDS) {
        const int g = at / D, e = at % D;
        float best = -INFINITY, all = 0;
        Pack<float, WORDS> mixed = {};
#pragma unroll
        for (int p = 0; p < PARTS; p++) best = f32_max(best, shared_top[p][g]);
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            const float kept = weight(shared_top[p][g], best);
            const Pack<float, WORDS> one = pack_at<WORDS>(&shared_sum[p][g][e]);
            all += kept * shared_total[p][g];
#pragma unroll
            for (int i = 0; i < WORDS; i++) mixed.at[i] = fmaf(kept, one.at[i], mixed.at[i]);
        }
        if (parts == 1) {
#pragma unroll
            for (int i = 0; i < WORDS; i++) y[at + i] = NARROW_Y(mixed.at[i] / all);
            continue;
        }
        put_pack<WORDS>(sums + (g * splits + split) * D + e, mixed);
        if (e == 0) tops[(g * splits + split) * 2] = best, tops[(g * splits + split) * 2 + 1] = all;
    }
    if (parts == 1) return;
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(&arrived[row], 1u) == (unsigned)parts - 1;
        if (is_last) arrived[row] = 0;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    join_parts(y, sums, tops, splits, parts, &shared_sum[0][0][0]);
}
