/* tensor_attention: attention of many queries by tensor cores of compute capability 9.0. A block has 64 GROUPS queries of one head: one
 * warp has tiles of KEYS keys and values copied to shared memory, STAGES of them ahead, and GROUPS warpgroups compute 64 queries each.
 * Of each tile a warpgroup multiplies queries by keys, and weighs the scores while the products of the tile before with its values are
 * under way; warpgroups take turns, so that one multiplies while another weighs (Shah, Bikshandi, Zhang, Thakkar, Ramani and Dao,
 * FlashAttention-3, 2024; the sums of softmax over parts of a row, each with its own maximum: Milakov and Gimelshein 2018).
 * Weights are rounded to 16 bits for their products with values; where they are NEAR, what that drops is multiplied too.
 * `plain` (plain_attention.cu) is for operands that no map can be made of.
 * Given by the text before: what plain_attention.cu is given, of 16 bits each; KIND (Bf16, F16), PADDED (D up to a multiple of 64), KEYS,
 * STAGES, GROUPS, NEAR (0, 1), and what weighed_scores.cu is given. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "tensor_cores.cuh"
#endif

#define TG_ROWS (64 * GROUPS)
#define TG_BOXES (PADDED / 64)
#define TG_Q_BYTES (TG_BOXES * TG_ROWS * 128)
#define TG_TILE_BYTES (TG_BOXES * KEYS * 128)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* Weights rounded, two in a word. Made once no products are under way: what they read from registers is written before they begin, or they
 * are made one by one. */
TG_INLINE void pack(uint32_t (&p)[NEAR + 1][KEYS / 4], const float (&s)[KEYS / 2]) {
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) {
        p[0][i] = two_of(KIND(), s[2 * i], s[2 * i + 1]);
        if (NEAR) p[NEAR][i] = two_of(KIND(), s[2 * i] - low_of(KIND(), p[0][i]), s[2 * i + 1] - high_of(KIND(), p[0][i]));
    }
}

TG_INLINE void multiply_keys(float (&s)[KEYS / 2], uint32_t queries, uint32_t keys) {
#pragma unroll
    for (int i = 0; i < PADDED / 16; i++)
        Warpgroup<KIND, KEYS>::add<0, 0>(s, tile_along(queries + i / 4 * (TG_ROWS * 128) + i % 4 * 32),
                                         tile_along(keys + i / 4 * (KEYS * 128) + i % 4 * 32), i > 0);
}

TG_INLINE void add_values(float (&o)[PADDED / 2], const uint32_t (&p)[NEAR + 1][KEYS / 4], uint32_t values) {
#pragma unroll
    for (int part = NEAR; part >= 0; part--)
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++) {
            const uint32_t some[4] = {p[part][4 * i], p[part][4 * i + 1], p[part][4 * i + 2], p[part][4 * i + 3]};
            Warpgroup<KIND, PADDED>::add<1>(o, some, tile_across(values + 2048 * i, KEYS * 128), 1);
        }
}

extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) tensor_attention(Y *__restrict__ y, const Q *q, const K *k, const V *v,
                                                                                     const int64_t *sizes,
                                                                                     const __grid_constant__ TensorMaps<3> maps) {
    extern __shared__ char shared[];
    __shared__ __align__(8) uint64_t barriers[1 + 4 * STAGES];
    const uint32_t of_q = (shared_at(shared) + 1023) / 1024 * 1024, of_k = of_q + TG_Q_BYTES, of_v = of_k + STAGES * TG_TILE_BYTES;
    const uint32_t q_full = shared_at(barriers), k_full = q_full + 8, v_full = k_full + 8 * STAGES, k_empty = v_full + 8 * STAGES,
                   v_empty = k_empty + 8 * STAGES;
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        barrier_begin(q_full, 1);
        for (int i = 0; i < 2 * STAGES; i++) {
            barrier_begin(k_full + 8 * i, 1);
            barrier_begin(k_empty + 8 * i, 4 * GROUPS);
        }
        barriers_begun();
    }
    __syncthreads();
    after_those_before();
    const int64_t n = sizes[0], keys = sizes[1], start = sizes[2];
    const int head = blockIdx.x % TG_ALL_HEADS;                     /* those that see most keys come first */
    const int64_t row = ((n + TG_ROWS - 1) / TG_ROWS - 1 - blockIdx.x / TG_ALL_HEADS) * TG_ROWS;
    const Range seen = seen_by(start + row, start + (row + TG_ROWS < n ? row + TG_ROWS : n) - 1, keys);
    const int first = (int)(seen.low / KEYS), tiles = seen.low < seen.high ? (int)((seen.high + KEYS - 1) / KEYS) - first : 0;
    if (group == 0) {
        give_registers<GROUPS == 2 ? 24 : 32>();
        if (threadIdx.x == 0 && tiles > 0) {
            arrive_expecting(q_full, TG_Q_BYTES);
            for (int c = 0; c < TG_BOXES; c++) copy_box(of_q + c * (TG_ROWS * 128), &maps.at[0], q_full, 64 * c, (int)row, head);
            int stage = 0, parity = 1;
            for (int i = tiles - 1; i >= 0; i--) {
                const int from = (first + i) * KEYS;
                wait_for(k_empty + 8 * stage, parity);
                arrive_expecting(k_full + 8 * stage, TG_TILE_BYTES);
                for (int c = 0; c < TG_BOXES; c++)
                    copy_box(of_k + stage * TG_TILE_BYTES + c * (KEYS * 128), &maps.at[1], k_full + 8 * stage, 64 * c, from, head / GROUP);
                wait_for(v_empty + 8 * stage, parity);
                arrive_expecting(v_full + 8 * stage, TG_TILE_BYTES);
                for (int c = 0; c < TG_BOXES; c++)
                    copy_box(of_v + stage * TG_TILE_BYTES + c * (KEYS * 128), &maps.at[2], v_full + 8 * stage, 64 * c, from, head / GROUP);
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        }
        return;
    }
    take_registers<GROUPS == 2 ? 240 : 160>();
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int64_t ours = row + 64 * (group - 1), mine = ours + threadIdx.x % 128 / 32 * 16 + g;
    const uint32_t queries = of_q + 64 * 128 * (group - 1);
    float o[PADDED / 2], s[KEYS / 2], top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}, kept[2];
    uint32_t p[NEAR + 1][KEYS / 4];
#pragma unroll
    for (int i = 0; i < PADDED / 2; i++) o[i] = 0;
    if (tiles > 0) {
        const int64_t low = start + ours, high = low + 63;          /* positions of this warpgroup */
        auto hides = [&](int64_t from) {
            return from + KEYS > keys || (CAUSAL && from + KEYS - 1 > low) || (WINDOW && from <= high - WINDOW);
        };
        int64_t from = (int64_t)(first + tiles - 1) * KEYS;
        wait_for(q_full, 0);
        wait_for(k_full, 0);
        hold(s);
        products_begin();
        multiply_keys(s, queries, of_k);
        products_end();
        products_wait<0>();
        hold(s);
        if (lane == 0) arrive(k_empty);
        weigh(s, top, total, kept, from + 2 * t, start + mine, keys, hides(from));
        pack(p, s);
        if (GROUPS > 1 && group == GROUPS) let_pass(1, 256);
        int stage = 0, parity = 0;
        for (int i = 1; i < tiles; i++) {
            const int next = stage + 1 == STAGES ? 0 : stage + 1, next_parity = next == 0 ? parity ^ 1 : parity;
            wait_for(k_full + 8 * next, next_parity);
            if (GROUPS > 1) meet(group, 256);
            hold(s);
            products_begin();
            multiply_keys(s, queries, of_k + next * TG_TILE_BYTES);
            products_end();
            wait_for(v_full + 8 * stage, parity);
            hold(o);
            for (int i = 0; i <= NEAR; i++) hold(p[i]);
            products_begin();
            add_values(o, p, of_v + stage * TG_TILE_BYTES);
            products_end();
            if (GROUPS > 1 && (group < GROUPS || i + 1 < tiles)) let_pass(group == GROUPS ? 1 : group + 1, 256);
            products_wait<1>();
            hold(s);
            if (lane == 0) arrive(k_empty + 8 * next);
            from -= KEYS;
            weigh(s, top, total, kept, from + 2 * t, start + mine, keys, hides(from));
            products_wait<0>();
            hold(o);
            if (lane == 0) arrive(v_empty + 8 * stage);
#pragma unroll
            for (int e = 0; e < PADDED / 2; e++) o[e] *= kept[e / 2 % 2];
            pack(p, s);
            stage = next, parity = next_parity;
        }
        wait_for(v_full + 8 * stage, parity);
        hold(o);
        for (int i = 0; i <= NEAR; i++) hold(p[i]);
        products_begin();
        add_values(o, p, of_v + stage * TG_TILE_BYTES);
        products_end();
        products_wait<0>();
        hold(o);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        total[h] += __shfl_xor_sync(0xffffffffu, total[h], 1);
        total[h] += __shfl_xor_sync(0xffffffffu, total[h], 2);
        const Range own = seen_by(start + mine + 8 * h, start + mine + 8 * h, keys);
        const float by = own.low < own.high ? 1.0f / total[h] : 0.0f;
        Y *const to = y + ((mine + 8 * h) * TG_ALL_HEADS + head) * D;
#pragma unroll
        for (int j = 0; j < PADDED / 8; j += 4) {
            uint32_t word[4];
#pragma unroll
            for (int i = 0; i < 4; i++) word[i] = two_of(KIND(), o[4 * (j + i) + 2 * h] * by, o[4 * (j + i) + 2 * h + 1] * by);
            turn_quad(word, t);
            const int column = 8 * (j + t);
            if (mine + 8 * h < n && column < D)
                put_pack<4>((uint32_t *)(to + column), Pack<uint32_t, 4>{{word[0], word[1], word[2], word[3]}});
        }
    }
}
#endif
