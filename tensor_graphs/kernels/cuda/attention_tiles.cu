/* attention_tiles: which tiles a block of tensor_attention.cu or float_attention.cu needs, and how one warp copies them to shared memory,
 * STAGES of keys and values ahead. Given by the text before: what those are given; PARTS (of a number: 1, or 3 of a float). */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "tensor_cores.cuh"
#endif

#define TG_ROWS (64 * GROUPS)
#define TG_BOXES (PADDED / 64)
#define TG_Q_PART (TG_BOXES * TG_ROWS * 128)
#define TG_PART (TG_BOXES * KEYS * 128)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* Where copies lie in shared memory, and barriers: full once what a stage waits for is there, empty once all warps have read it. */
struct Ring {
    uint32_t of_q, of_k, of_v, q_full, k_full, v_full, k_empty, v_empty;
};
TG_INLINE Ring ring_of(const char *shared, const uint64_t *barriers) {
    const uint32_t of_q = (shared_at(shared) + 1023) / 1024 * 1024, of_k = of_q + PARTS * TG_Q_PART, q_full = shared_at(barriers);
    if (threadIdx.x == 0) {
        barrier_begin(q_full, 1);
        for (int i = 0; i < 2 * STAGES; i++) {
            barrier_begin(q_full + 8 + 8 * i, 1);
            barrier_begin(q_full + 8 + 16 * STAGES + 8 * i, 4 * GROUPS);
        }
        barriers_begun();
    }
    __syncthreads();
    return {of_q, of_k, of_k + STAGES * PARTS * TG_PART, q_full, q_full + 8, q_full + 8 + 8 * STAGES, q_full + 8 + 16 * STAGES,
            q_full + 8 + 24 * STAGES};
}

/* A block: a head, its first row of queries, and the tiles of keys that these see. */
struct Block {
    int64_t n, keys, start, row;
    int head, first, tiles;
};
TG_INLINE Block block_of(const int64_t *sizes) {
    const int64_t n = sizes[0], keys = sizes[1], start = sizes[2];
    const int head = blockIdx.x % TG_ALL_HEADS;                     /* those that see most keys come first */
    const int64_t row = ((n + TG_ROWS - 1) / TG_ROWS - 1 - blockIdx.x / TG_ALL_HEADS) * TG_ROWS;
    const Range seen = seen_by(start + row, start + (row + TG_ROWS < n ? row + TG_ROWS : n) - 1, keys);
    const int first = (int)(seen.low / KEYS);
    return {n, keys, start, row, head, first, seen.low < seen.high ? (int)((seen.high + KEYS - 1) / KEYS) - first : 0};
}

/* By one thread: the queries, then the tiles from the last to the first. */
TG_INLINE void copy_tiles(const Ring &r, const Block &b, const TensorMaps<3> &maps) {
    arrive_expecting(r.q_full, PARTS * TG_Q_PART);
    for (int p = 0; p < PARTS; p++)
        for (int c = 0; c < TG_BOXES; c++)
            copy_box(r.of_q + p * TG_Q_PART + c * (TG_ROWS * 128), &maps.at[0], r.q_full, 64 * c, (int)b.row, p * TG_ALL_HEADS + b.head);
    int stage = 0, parity = 1;
    for (int i = b.tiles - 1; i >= 0; i--) {
        for (int which = 0; which < 2; which++) {
            const uint32_t full = (which ? r.v_full : r.k_full) + 8 * stage, to = (which ? r.of_v : r.of_k) + stage * PARTS * TG_PART;
            wait_for((which ? r.v_empty : r.k_empty) + 8 * stage, parity);
            arrive_expecting(full, PARTS * TG_PART);
            for (int p = 0; p < PARTS; p++)
                for (int c = 0; c < TG_BOXES; c++)
                    copy_box(to + p * TG_PART + c * (KEYS * 128), &maps.at[1 + which], full, 64 * c, (b.first + i) * KEYS,
                             p * HEADS + b.head / GROUP);
        }
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
}
#endif
