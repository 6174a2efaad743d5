/* few_queries: attention of few queries over many keys of 16 bits, by tensor cores from compute capability 8.0 on. The heads that share a
 * head of keys, and queries beside each other, are up to 16 rows of a tile, so that each key is read once for them all; the keys are cut
 * into parts, a block for each, whose sums `queries_joined` adds up (Flash-Decoding, Dao et al. 2023; the sums of softmax over parts of a
 * row, each with its own maximum: Milakov and Gimelshein 2018). A warp copies 16 keys and values at a time for itself, STAGES ahead.
 * A weight is the sum of two numbers of 16 bits for its products with values. By pages (Kwon et al. 2023) a block begins with each
 * query: those of a tile that follow each other in one sequence are its first one's, and parts are of all positions of a table.
 * Given by the text before: Q, K, V, Y (16 bits each), NARROW_Y, KIND (Bf16, F16), D (a multiple of 64), WARPS, STAGES, GROUP (heads
 * that share a head of keys, up to 16), LIFT (as weighed_scores.cu), HEADS (of keys), JOINED (columns of a block of queries_joined, a part of D), SCALE, CAP (0: none), CAUSAL, WINDOW (0: none). */
#include "tensor_cores.cuh"

#define TG_QUERIES (16 / GROUP)                                     /* of a tile */
#define TG_HALF (16 * D * 2)                                        /* bytes of 16 keys */
#define TG_CHUNKS (D / 8)
#define TG_LOG2_E 1.4426950408889634

/* Keys of each of some parts. */
TG_INLINE int64_t keys_of_part(Range seen, int parts) {
    const int64_t all = seen.low < seen.high ? seen.high - seen.low : 0, each = (all + parts - 1) / parts;
    return (each + 15) / 16 * 16;
}
/* Where a pack of 8 elements of a row lies in a tile: packs are moved by the row, so that 8 rows of a column lie in different banks. */
TG_INLINE uint32_t place(int row, int chunk) { return (uint32_t)(row * TG_CHUNKS + (chunk ^ (row & 7))) * 16; }

/* 16 rows of D elements, those of one head from a key on, of which `there` are read, the others are 0. */
template <class T> TG_INLINE void copy_rows(uint32_t shared, const T *from, const Rows &rows, int64_t there) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 16 * TG_CHUNKS / 32; i++) {
        const int at = i * 32 + lane, row = at / TG_CHUNKS, chunk = at % TG_CHUNKS;
        const int64_t of_key = row < there ? rows(row) : -1;
        copy_16(shared + place(row, chunk), from + (of_key >= 0 ? of_key * (HEADS * D) + chunk * 8 : 0), of_key >= 0 ? 16 : 0);
    }
}

/* The queries from `first` to `last`, whose positions are theirs + start, over the keys from `begin` to `end`. */
TG_INLINE void part_of_keys(const Q *q, const K *k, const V *v, const Keys &all_keys, int64_t start, int64_t first, int64_t last,
                            int64_t begin, int64_t end, int head, int part, int parts, float *__restrict__ sums,
                            float *__restrict__ tops) {
    extern __shared__ __align__(128) char shared[];
    __shared__ __align__(16) char of_q[TG_HALF];
    __shared__ float other_tops[WARPS][16], other_totals[WARPS][16];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const uint32_t mine = shared_at(shared) + warp * (STAGES * 2 * TG_HALF);
    const int turns = (int)((end - begin + 16 * WARPS - 1) / (16 * WARPS));
    auto copy_turn = [&](int turn) {
        const int64_t key = begin + (turn * WARPS + warp) * 16;
        const uint32_t to = mine + turn % STAGES * (2 * TG_HALF);
        if (turn < turns) {
            const Rows rows = all_keys.from(key < end ? key : begin);
            copy_rows(to, k + head * D, rows, end - key);
            copy_rows(to + TG_HALF, v + head * D, rows, end - key);
        }
        copies_end();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) copy_turn(i);
    for (int at = threadIdx.x; at < 16 * TG_CHUNKS; at += 32 * WARPS) {
        const int row = at / TG_CHUNKS, chunk = at % TG_CHUNKS;
        const int64_t query = first + row / GROUP;
        Pack<uint32_t, 4> x = {};
        if (row < TG_QUERIES * GROUP && query <= last)
            x = pack_at<4>((const uint32_t *)(q + ((query * HEADS + head) * GROUP + row % GROUP) * D + chunk * 8));
        put_pack<4>((uint32_t *)(of_q + place(row, chunk)), x);
    }
    __syncthreads();
    float o[D / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    Range own[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int64_t position = start + first + (g + 8 * h) / GROUP;
        own[h] = seen_by(position, position, end);
    }
    const uint32_t queries = shared_at(of_q);
    for (int turn = 0; turn < turns; turn++) {
        copies_wait<STAGES - 2>();
        __syncwarp();
        copy_turn(turn + STAGES - 1);                               /* over what all lanes have read in the turn before */
        const uint32_t keys = mine + turn % STAGES * (2 * TG_HALF), values = keys + TG_HALF;
        float score[2][4] = {};
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            uint32_t a[4], b[4];
            four_blocks(a, queries + place(lane % 16, 2 * i + lane / 16));
            four_blocks(b, keys + place(lane / 16 * 8 + lane % 8, 2 * i + lane / 8 % 2));
            add_product(KIND(), score[0], a, b[0], b[1]);
            add_product(KIND(), score[1], a, b[2], b[3]);
        }
        const int64_t key = begin + (turn * WARPS + warp) * 16 + 2 * t;
        float kept[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float best = top[h];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &x = score[i / 2][2 * h + i % 2];
                const int64_t at = key + i / 2 * 8 + i % 2;
                x *= (float)(SCALE);
                if (CAP) x = (float)(CAP) * tanhf(x / (float)(CAP ? CAP : 1));
                x = at >= own[h].low && at < own[h].high ? x * (float)TG_LOG2_E : -INFINITY;
                best = f32_max(best, x);
            }
            best = f32_max(best, __shfl_xor_sync(0xffffffffu, best, 1));
            best = f32_max(best, __shfl_xor_sync(0xffffffffu, best, 2));
            const float shift = best == -INFINITY ? 0.0f : best;
            kept[h] = exp2_flushed(top[h] - shift);
            top[h] = best;
            total[h] *= kept[h];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &x = score[i / 2][2 * h + i % 2];
                x = exp2_flushed(x - shift) * LIFT;
                total[h] += x;
            }
        }
        uint32_t p[4], rest[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float one = score[i / 2][i % 2 * 2], two = score[i / 2][i % 2 * 2 + 1];
            p[i] = two_of(KIND(), one, two);
            rest[i] = two_of(KIND(), one - low_of(KIND(), p[i]), two - high_of(KIND(), p[i]));
        }
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            uint32_t b[4];
            four_blocks_across(b, values + place(lane % 16, 2 * i + lane / 16));
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float(&sum)[4] = o[2 * i + j];
                sum[0] *= kept[0], sum[1] *= kept[0], sum[2] *= kept[1], sum[3] *= kept[1];
                add_product(KIND(), sum, rest, b[2 * j], b[2 * j + 1]);
                add_product(KIND(), sum, p, b[2 * j], b[2 * j + 1]);
            }
        }
    }
    copies_wait<0>();
    __syncthreads();
    float *const all = (float *)shared;                             /* of each warp 16 rows of D, where the copies were */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        total[h] += __shfl_xor_sync(0xffffffffu, total[h], 1);
        total[h] += __shfl_xor_sync(0xffffffffu, total[h], 2);
        if (t == 0) other_tops[warp][g + 8 * h] = top[h], other_totals[warp][g + 8 * h] = total[h];
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            put_pack<2>(all + (warp * 16 + g + 8 * h) * D + 8 * i + 2 * t, Pack<float, 2>{{o[i][2 * h], o[i][2 * h + 1]}});
    }
    __syncthreads();
    for (int at = threadIdx.x; at < 16 * D / 4; at += 32 * WARPS) {
        const int row = at / (D / 4), column = at % (D / 4) * 4;
        const int64_t query = first + row / GROUP;
        if (row >= TG_QUERIES * GROUP || query > last) continue;
        float best = -INFINITY, sum = 0;
        Pack<float, 4> mixed = {};
#pragma unroll
        for (int w = 0; w < WARPS; w++) best = f32_max(best, other_tops[w][row]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float weight = exp2_flushed(other_tops[w][row] - (best == -INFINITY ? 0.0f : best));
            const Pack<float, 4> one = pack_at<4>(all + (w * 16 + row) * D + column);
            sum += weight * other_totals[w][row];
#pragma unroll
            for (int e = 0; e < 4; e++) mixed.at[e] = fmaf(weight, one.at[e], mixed.at[e]);
        }
        const int64_t place = ((query * HEADS + head) * GROUP + row % GROUP) * parts + part;
        put_pack<4>(sums + place * D + column, mixed);
        if (column == 0) tops[2 * place] = best, tops[2 * place + 1] = sum;
    }
}

#if PAGED
/* Whether query i continues the sequence of the one before: the next position, and the same pages as far as they are seen. */
TG_INLINE bool continues(const int32_t *pages, const int32_t *positions, int64_t width, int64_t i) {
    const int32_t before = positions[i - 1], seen = positions[i] / PAGE + 1;
    bool same = before >= 0 && positions[i] == before + 1;
    for (int64_t at = threadIdx.x; same && at < width && at < seen; at += 32 * WARPS)
        same = pages[(i - 1) * width + at] == pages[i * width + at];
    return __syncthreads_and(same);
}
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS) queries_parts(Y *__restrict__ y, const Q *q, const K *k, const V *v, TG_TABLES
                                                                       const int64_t *sizes, float *__restrict__ sums,
                                                                       float *__restrict__ tops) {
    const int parts = (int)sizes[3], part = blockIdx.x % parts, head = blockIdx.x / parts % HEADS;
    const int64_t n = sizes[0];
#if PAGED
    const int64_t first = blockIdx.x / (parts * HEADS), group_end = (first / TG_QUERIES + 1) * TG_QUERIES;
    const int64_t width = sizes[1], s = width * PAGE, each = keys_of_part({0, s}, parts);
    after_those_before();
    if (first % TG_QUERIES && continues(pages, positions, width, first)) return;
    int64_t last = first;
    while (last + 1 < n && last + 1 < group_end && continues(pages, positions, width, last + 1)) last++;
    const Range seen = seen_by(positions[first], positions[first] + last - first, s);
    const int64_t low = seen.low / 16 * 16, begin = low > part * each ? low : part * each;
    const int64_t end = (part + 1) * each < seen.high ? (part + 1) * each : seen.high;
    if (begin < end)
        part_of_keys(q, k, v, {pages + first * width, sizes[2]}, positions[first] - first, first, last, begin, end, head, part, parts, sums,
                     tops);
#else
    const int64_t start = sizes[2], tile = blockIdx.x / (parts * HEADS) * (int64_t)TG_QUERIES;
    const int64_t last = tile + TG_QUERIES < n ? tile + TG_QUERIES - 1 : n - 1;
    after_those_before();
    const Range seen = seen_by(start + tile, start + last, sizes[1]);
    const int64_t each = keys_of_part(seen, parts), begin = seen.low + part * each;
    const int64_t end = begin + each < seen.high ? begin + each : seen.high;
    if (begin < end) part_of_keys(q, k, v, {}, start, tile, last, begin, end, head, part, parts, sums, tops);
#endif
}

/* JOINED columns of a row of y: what its parts have come to. Threads have four columns each, and those beside a row's share its parts. */
#define TG_ACROSS (JOINED / 4)
#define TG_BESIDE (256 / TG_ACROSS)
extern "C" __global__ void __launch_bounds__(256) queries_joined(Y *__restrict__ y, const Q *q, const K *k, const V *v, TG_TABLES const int64_t *sizes,
                                                                 const float *sums, const float *tops) {
    __shared__ float kept[256], shared_top[8], shared_sum[8];
    __shared__ __align__(16) float mixed[TG_BESIDE][JOINED];
    const int64_t row = blockIdx.x / (D / JOINED), query = row / (HEADS * GROUP);
#if PAGED
    after_those_before();
    const Range own = seen_by(positions[query], positions[query], sizes[1] * PAGE);
    const int64_t each = keys_of_part({0, sizes[1] * PAGE}, (int)sizes[3]), place = row * sizes[3] + own.low / each;
    const int parts = own.low < own.high ? (int)((own.high + each - 1) / each - own.low / each) : 0;
#else
    const int64_t n = sizes[0], s = sizes[1], start = sizes[2];
    const int64_t first = query / TG_QUERIES * TG_QUERIES, last = first + TG_QUERIES < n ? first + TG_QUERIES - 1 : n - 1;
    const Range seen = seen_by(start + first, start + last, s), own = seen_by(start + query, start + query, s);
    const int64_t each = keys_of_part(seen, (int)sizes[3]), place = row * sizes[3];
    const int parts = seen.low < seen.high ? (int)((seen.high - seen.low + each - 1) / each) : 0;
    after_those_before();
#endif
    const bool is = threadIdx.x < parts;
    const float top = is ? tops[2 * (place + threadIdx.x)] : -INFINITY, total = is ? tops[2 * (place + threadIdx.x) + 1] : 0.0f;
#if SINKS
    const float sink = sinks[row % (HEADS * GROUP)] * (float)TG_LOG2_E;
#else
    const float sink = -INFINITY;
#endif
    const float best = f32_max(reduced<256>(top, Max(), shared_top), sink), shift = best == -INFINITY ? 0.0f : best;
    const float weight = exp2_flushed(top - shift);
    kept[threadIdx.x] = weight;
    const float divisor = reduced<256>(is ? weight * total : 0.0f, Sum(), shared_sum) + exp2_flushed(sink - shift);
    const int column = threadIdx.x % TG_ACROSS * 4, beside = threadIdx.x / TG_ACROSS, first_column = blockIdx.x % (D / JOINED) * JOINED;
    Pack<float, 4> sum = {};
#pragma unroll 8
    for (int p = beside; p < parts; p += TG_BESIDE) {
        const Pack<float, 4> one = pack_at<4>(sums + (place + p) * D + first_column + column);
#pragma unroll
        for (int e = 0; e < 4; e++) sum.at[e] = fmaf(kept[p], one.at[e], sum.at[e]);
    }
    put_pack<4>(&mixed[beside][column], sum);
    __syncthreads();
    if (threadIdx.x < JOINED) {
        float all = 0;
#pragma unroll
        for (int i = 0; i < TG_BESIDE; i++) all += mixed[i][threadIdx.x];
        y[row * D + first_column + threadIdx.x] = NARROW_Y(own.low < own.high ? all / divisor : 0.0f);
    }
}
