/* float_attention: attention of many queries of floats by tensor cores of compute capability 9.0, as tensor_attention.cu does it for
 * numbers of 16 bits. Each float is the sum of three bf16 numbers (float_parts.cuh); products are made of those of their parts, the
 * smallest first, and those below 2^-25 are left out. Tensor cores cut off what they add to a sum (Fasi, Higham, Mikaitis and Pranesh,
 * Numerical behavior of NVIDIA tensor cores, 2021), so that what a tile of keys adds is a sum of its own. `attention_parts` makes the parts
 * of q, k, v before. Rows that are not finite are made again key by key, as parts of such numbers say nothing.
 * Given by the text before: what plain_attention.cu is given; PADDED (D up to a multiple of 64), KEYS (of a tile), STAGES (tiles that are
 * copied ahead), GROUPS (warpgroups, with 64 queries each), and what weighed_scores.cu is given. */
#include "float_parts.cuh"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* The parts of rows of WIDTH floats, beside each other in each row: all high ones, the middle ones, the low ones. */
template <int WIDTH> TG_INLINE void parts_of_rows(const float *from, uint16_t *to, int64_t rows) {
    for (int64_t i = (blockIdx.x * 256LL + threadIdx.x) * 4; i < rows * WIDTH; i += gridDim.x * 1024LL) {
        const Pack<float, 4> all = pack_at<4>(from + i);
        Pack<uint16_t, 4> part[3];
#pragma unroll
        for (int e = 0; e < 4; e++) three_parts(all.at[e], part[0].at[e], part[1].at[e], part[2].at[e]);
        const int64_t row = i / WIDTH, column = i % WIDTH;
#pragma unroll
        for (int p = 0; p < 3; p++) put_pack<4>(to + (3 * row + p) * WIDTH + column, part[p]);
    }
}

extern "C" __global__ void __launch_bounds__(256) attention_parts(Y *__restrict__ y, const Q *q, const K *k, const V *v, const int64_t *sizes,
                                                                  uint16_t *of_q, uint16_t *of_k, uint16_t *of_v) {
    const int64_t n = sizes[0], s = sizes[1];
    after_those_before();
    parts_of_rows<TG_ALL_HEADS * D>(q, of_q, n);
    parts_of_rows<HEADS * D>(k, of_k, s);
    parts_of_rows<HEADS * D>(v, of_v, s);
}

/* The parts of pair number i, the smallest product first, the largest last. */
__device__ constexpr int left_of(int i) { return i == 0 || i == 3 || i == 5 ? 0 : i == 2 ? 2 : 1; }
__device__ constexpr int right_of(int i) { return i == 0 ? 2 : i == 1 || i == 3 ? 1 : 0; }

extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) float_attention(Y *__restrict__ y, const Q *q, const K *k, const V *v,
                                                                                    const int64_t *sizes, const uint16_t *,
                                                                                    const uint16_t *, const uint16_t *,
                                                                                    const __grid_constant__ TensorMaps<3> maps) {
    extern __shared__ char shared[];
    __shared__ __align__(8) uint64_t barriers[1 + 4 * STAGES];
    const Ring r = ring_of(shared, barriers);
    after_those_before();
    const Block b = block_of(sizes);
    const int group = threadIdx.x / 128;
    if (group == 0) {
        if (GROUPS > 1) give_registers<24>();
        if (threadIdx.x == 0 && b.tiles > 0) copy_tiles(r, b, maps);
        return;
    }
    if (GROUPS > 1) take_registers<240>();
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int64_t ours = b.row + 64 * (group - 1), mine = ours + threadIdx.x % 128 / 32 * 16 + g;
    const uint32_t queries = r.of_q + 64 * 128 * (group - 1);
    float o[PADDED / 2], top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < PADDED / 2; i++) o[i] = 0;
    const int64_t low = b.start + ours, high = low + 63;              /* positions of this warpgroup */
    if (b.tiles > 0) wait_for(r.q_full, 0);
    int stage = 0, parity = 0;
    for (int i = b.tiles - 1; i >= 0; i--) {
        const int64_t from = (int64_t)(b.first + i) * KEYS;
        float s[KEYS / 2], kept[2];
        wait_for(r.k_full + 8 * stage, parity);
        hold(s);
        products_begin();
#pragma unroll
        for (int pair = 0; pair < 6; pair++)
#pragma unroll
            for (int c = 0; c < PADDED / 16; c++)
                Warpgroup<Bf16, KEYS>::add<0, 0>(
                    s, tile_along(queries + left_of(pair) * TG_Q_PART + c / 4 * (TG_ROWS * 128) + c % 4 * 32),
                    tile_along(r.of_k + (stage * 3 + right_of(pair)) * TG_PART + c / 4 * (KEYS * 128) + c % 4 * 32), pair + c > 0);
        products_end();
        products_wait<0>();
        hold(s);
        if (lane == 0) arrive(r.k_empty + 8 * stage);
        weigh(s, top, total, kept, from + 2 * t, b.start + mine, b.keys,
              from + KEYS > b.keys || (CAUSAL && from + KEYS - 1 > low) || (WINDOW && from <= high - WINDOW));
        uint32_t p[3][KEYS / 4];
#pragma unroll
        for (int e = 0; e < KEYS / 4; e++) {
            const float one = s[2 * e], two = s[2 * e + 1];
            p[0][e] = two_of(Bf16(), one, two);
            const float rest_one = one - low_of(Bf16(), p[0][e]), rest_two = two - high_of(Bf16(), p[0][e]);
            p[1][e] = two_of(Bf16(), rest_one, rest_two);
            p[2][e] = two_of(Bf16(), rest_one - low_of(Bf16(), p[1][e]), rest_two - high_of(Bf16(), p[1][e]));
        }
        wait_for(r.v_full + 8 * stage, parity);
        hold(p[0]);
        hold(p[1]);
        hold(p[2]);
        float sum[2][32];                                           /* of 64 columns each, in turns */
#pragma unroll
        for (int c = 0; c <= TG_BOXES; c++) {
            if (c < TG_BOXES) {
                hold(sum[c % 2]);
                products_begin();
#pragma unroll
                for (int pair = 0; pair < 6; pair++)
#pragma unroll
                    for (int e = 0; e < KEYS / 16; e++) {
                        const uint32_t *const left = p[left_of(pair)];
                        const uint32_t some[4] = {left[4 * e], left[4 * e + 1], left[4 * e + 2], left[4 * e + 3]};
                        Warpgroup<Bf16, 64>::add<1>(
                            sum[c % 2], some,
                            tile_across(r.of_v + (stage * 3 + right_of(pair)) * TG_PART + c * (KEYS * 128) + 2048 * e, KEYS * 128), pair + e > 0);
                    }
                products_end();
            }
            if (c == 0) continue;
            if (c < TG_BOXES) products_wait<1>();
            else products_wait<0>();
            hold(sum[(c - 1) % 2]);
#pragma unroll
            for (int e = 0; e < 32; e++) {
                float &one = o[32 * (c - 1) + e];
                one = fmaf(one, kept[e / 2 % 2], sum[(c - 1) % 2][e]);
            }
        }
        if (lane == 0) arrive(r.v_empty + 8 * stage);
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    bool again = false;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        total[h] += __shfl_xor_sync(0xffffffffu, total[h], 1);
        total[h] += __shfl_xor_sync(0xffffffffu, total[h], 2);
        const int64_t at = mine + 8 * h;
        const Range own = seen_by(b.start + at, b.start + at, b.keys);
        const float by = own.low < own.high ? 1.0f / total[h] : 0.0f;
#pragma unroll
        for (int j = 0; j < PADDED / 8; j++) {
            const int column = 8 * j + 2 * t;
            const float one = o[4 * j + 2 * h] * by, two = o[4 * j + 2 * h + 1] * by;
            again = again || !(fabsf(one) < INFINITY) || !(fabsf(two) < INFINITY);
            if (at < b.n && column < D) put_pack<2>(y + (at * TG_ALL_HEADS + b.head) * D + column, Pack<float, 2>{{one, two}});
        }
    }
    const uint32_t lanes = __ballot_sync(0xffffffffu, again);
    if (lanes == 0) return;
    __syncwarp();
    for (int r = 0; r < 16; r++) {                                  /* rows of this warp of which some lane has seen such */
        const int64_t at = ours + threadIdx.x % 128 / 32 * 16 + r;
        if ((lanes >> 4 * (r % 8) & 15) && at < b.n) one_row(y, q, k, v, b.keys, b.start, at * TG_ALL_HEADS + b.head);
    }
}
#endif
