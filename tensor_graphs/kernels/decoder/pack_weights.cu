/* What one kernel for all steps (one_kernel.cu) reads of weights, made of them as they are: their rows in the order in which blocks, warps
 * and lanes read them, and the weights of norms. Kernels of BLOCKS blocks of THREADS threads. */
typedef long long i64;
typedef unsigned long long u64;

/* Four elements of 2 bytes a thread. a, b, c: matrices, whose rows follow each other (in_turn: those of a and b take turns); of_a,
 * of_b: rows of two of them. of_block: rows of a block. sharing: blocks that have the same columns, as many as a row of blocks has
 * warps * lanes * 8. turns: so many times 32 / lanes rows, those behind of_block zeros. */
extern "C" __global__ void pack(u64 *into, const u64 *a, const u64 *b, const u64 *c, i64 of_a, i64 of_b, i64 in_turn,
                                i64 columns, i64 of_block, i64 sharing, i64 warps, i64 lanes, i64 turns, i64 all) {
    for (i64 i = blockIdx.x * (i64)THREADS + threadIdx.x; i < all; i += (i64)BLOCKS * THREADS) {
        const i64 half = i % 2, lane = i / 2 % lanes, one = i / 2 / lanes % (32 / lanes), turn = i / 64 % turns;
        const i64 warp = i / 64 / turns % warps, block = i / 64 / turns / warps, inside = turn * (32 / lanes) + one;
        u64 four = 0;
        if (inside < of_block) {
            const i64 row = block % sharing * of_block + inside;
            const i64 column = (block / sharing * warps + warp) * lanes * 8 + half * lanes * 4 + lane * 4;
            const u64 *from = in_turn ? (row % 2 ? b : a) : row < of_a ? a : row < of_a + of_b ? b : c;
            const i64 at = in_turn ? row / 2 : row < of_a ? row : row < of_a + of_b ? row - of_a : row - of_a - of_b;
            four = from[(at * columns + column) / 4];
        }
        into[i] = four;
    }
}

/* offset + weight in f32; of no weight, zeros. */
extern "C" __global__ void norms(float *into, const unsigned short *weight, i64 count, double offset) {
    for (i64 i = blockIdx.x * (i64)THREADS + threadIdx.x; i < count; i += (i64)BLOCKS * THREADS)
        into[i] = weight ? (float)offset + __uint_as_float((unsigned)weight[i] << 16) : 0.0f;
}
