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
    const Ring r = ring_of(shared, barriers);
    after_those_before();
    const Block b = block_of(sizes);
    const int group = threadIdx.x / 128;
    if (group == 0) {
        give_registers<GROUPS == 2 ? 24 : 32>();
        if (threadIdx.x == 0 && b.tiles > 0) copy_tiles(r, b, maps);
        return;
    }
    take_registers<GROUPS == 2 ? 240 : 160>();
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int64_t ours = b.row + 64 * (group - 1), mine = ours + threadIdx.x % 128 / 32 * 16 + g;
    const uint32_t queries = r.of_q + 64 * 128 * (group - 1);
    float o[PADDED / 2], s[KEYS / 2], top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}, kept[2];
    uint32_t p[NEAR + 1][KEYS / 4];
#pragma unroll
    for (int i = 0; i < PADDED / 2; i++) o[i] = 0;
    if (b.tiles > 0) {
        const int64_t low = b.start + ours, high = low + 63;          /* positions of this warpgroup */
        auto hides = [&](int64_t from) {
            return from + KEYS > b.keys || (CAUSAL && from + KEYS - 1 > low) || (WINDOW && from <= high - WINDOW);
        };
        int64_t from = (int64_t)(b.first + b.tiles - 1) * KEYS;
        wait_for(r.q_full, 0);
        wait_for(r.k_full, 0);
        hold(s);
        products_begin();
        multiply_keys(s, queries, r.of_k);
        products_end();
        products_wait<0>();
        hold(s);
        if (lane == 0) arrive(r.k_empty);
        weigh(s, top, total, kept, from + 2 * t, b.start + mine, b.keys, hides(from));
        pack(p, s);
        if (GROUPS > 1 && group == GROUPS) let_pass(1, 256);
        int stage = 0, parity = 0;
        for (int i = 1; i < b.tiles; i++) {
            const int next = stage + 1 == STAGES ? 0 : stage + 1, next_parity = next == 0 ? parity ^ 1 : parity;
            wait_for(r.k_full + 8 * next, next_parity);
            if (GROUPS > 1) meet(group, 256);
            hold(s);
            products_begin();
            multiply_keys(s, queries, r.of_k + next * TG_PART);
            products_end();
            wait_for(r.v_full + 8 * stage, parity);
            hold(o);
            for (int i = 0; i <= NEAR; i++) hold(p[i]);
            products_begin();
            add_values(o, p, r.of_v + stage * TG_PART);
            products_end();
            if (GROUPS > 1 && (group < GROUPS || i + 1 < b.tiles)) let_pass(group == GROUPS ? 1 : group + 1, 256);
            products_wait<1>();
            hold(s);
            if (lane == 0) arrive(r.k_empty + 8 * next);
            from -= KEYS;
            weigh(s, top, total, kept, from + 2 * t, b.start + mine, b.keys, hides(from));
            products_wait<0>();
            hold(o);
            if (lane == 0) arrive(r.v_empty + 8 * stage);
#pragma unroll
            for (int e = 0; e < PADDED / 2; e++) o[e] *= kept[e / 2 % 2];
            pack(p, s);
            stage = next, parity = next_parity;
        }
        wait_for(r.v_full + 8 * stage, parity);
        hold(o);
        for (int i = 0; i <= NEAR; i++) hold(p[i]);
        products_begin();
        add_values(o, p, r.of_v + stage * TG_PART);
        products_end();
        products_wait<0>();
        hold(o);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        total[h] += __shfl_xor_sync(0xffffffffu, total[h], 1);
        total[h] += __shfl_xor_sync(0xffffffffu, total[h], 2);
        const Range own = seen_by(b.start + mine + 8 * h, b.start + mine + 8 * h, b.keys);
        const float by = own.low < own.high ? 1.0f / total[h] : 0.0f;
        Y *const to = y + ((mine + 8 * h) * TG_ALL_HEADS + b.head) * D;
#pragma unroll
        for (int j = 0; j < PADDED / 8; j += 4) {
            uint32_t word[4];
#pragma unroll
            for (int i = 0; i < 4; i++) word[i] = two_of(KIND(), o[4 * (j + i) + 2 * h] * by, o[4 * (j + i) + 2 * h + 1] * by);
            turn_quad(word, t);
            const int column = 8 * (j + t);
            if (mine + 8 * h < b.n && column < D)
                put_pack<4>((uint32_t *)(to + column), Pack<uint32_t, 4>{{word[0], word[1], word[2], word[3]}});
        }
    }
}
#endif
