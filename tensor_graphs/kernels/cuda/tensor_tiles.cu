/* tensor_tiles: tiles of 128 rows by COLUMNS of a result, each the sum of products over TG_STEPS steps of 64, by tensor cores of compute
 * capability 9.0. A block has one warp that has boxes of both operands copied to shared memory, STAGES of them ahead, and two warpgroups
 * that multiply 64 rows by COLUMNS each; it goes from tile to tile.
 * A float is the sum of three bf16 numbers (float_parts.cuh), or nearly that of two: products by it are made of those of its parts, and
 * those below 2^-25 (2^-16) are left out. Tensor cores cut off what they add to a sum (Fasi, Higham, Mikaitis and Pranesh, Numerical behavior of NVIDIA tensor cores,
 * 2021), so that those of floats are made of pieces: of all small parts, and of four steps of the large ones each. Of few tiles the
 * sums are cut into SPLITS, each of a block of a cluster; these add up what they find in each other's shared memory.
 * Of eight bits they keep fewer bits of sums still, so that PIECE steps (of 128 numbers) are a piece.
 * Given by the text before: KIND (Bf16, F16, Tf32, or Eight<left, right>: what is multiplied), KIND_Y (Bf16 or F16, where y is of these), COLUMNS,
 * STAGES, SPLITS, PIECE (steps whose sums tensor cores keep; 0: all of them); PARTS_A, PARTS_B (3 of floats, 2 of those rounded to two, else 1) of the left and the
 * right operand; B_ACROSS (1: boxes of the right one have their columns along a row of shared memory); TG_STEPS;
 * TG_A_BYTES, TG_B_BYTES (of a box of each in shared memory), TG_A_COPIED (those of the left one that are copied); TG_APART (elements
 * of y from one column to the next), TG_LEFTS (weights whose rows are those of a tile, each with sums of its own; else 1), TG_PACKED
 * (1: rows of y begin at multiples of 16 bytes); TG_SCRATCH; TG_EARLY_A, TG_EARLY_B (1: no launch before makes this operand, and its
 * first boxes are copied while those before end); Maps (of the left operand, then the right ones);
 * and
 *   tiles_of(sizes), tile_of(number, sizes): how many, and where one lies;
 *   copy_left, copy_right(to, ready, maps, tile, step, sizes): the boxes of a step;
 *   place_of(tile, row, sizes): where an element of y lies, of this row of the tile and its first column, or -1; columns_of(tile,
 *   sizes): those that there are; row_of(tile, row, column), column_of(tile, row, column): which of x and of y they are; and what
 *   plain_elements.cu is given. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define TG_FLOATS (PARTS_A * PARTS_B > 1)
#define TG_ORDERS ((PARTS_A > PARTS_B ? PARTS_A : PARTS_B) - 1)
#define TG_WIDE (COLUMNS / TG_LEFTS)                                /* columns of one product of a warpgroup */
#define TG_CHUNK (PIECE ? PIECE : TG_STEPS)
#define TG_STAGE (PARTS_A * TG_A_BYTES + PARTS_B * TG_B_BYTES)

/* Stages of shared memory, and the barriers of each: `full` when its boxes have come, `empty` when they are read. */
struct Ring {
    uint32_t tiles, full, empty;
    int stage;
    uint32_t parity;
    TG_INLINE void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

/* By a warpgroup: its 64 rows. */
TG_INLINE void sums_of_tile(float (&d)[COLUMNS / 2], int steps, Ring &ring) {
    const uint32_t half = (threadIdx.x / 128 - 1) * (64 * 128);
#if PIECE
    float total[COLUMNS / 2];
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) total[i] = 0;
#endif
#if TG_FLOATS
    float small[COLUMNS / 2];
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) small[i] = 0;
#endif
    for (int chunk = 0; chunk < steps; chunk += TG_CHUNK) {
        const int end = min(steps, chunk + TG_CHUNK);
        uint32_t before = 0;
        int step = chunk;
        do {
            wait_for(ring.full + 8 * ring.stage, ring.parity);
            const uint32_t at = ring.tiles + ring.stage * TG_STAGE, left = at + half, right = at + PARTS_A * TG_A_BYTES;
            auto multiply = [&](float (&into)[COLUMNS / 2], int a, int b, int i, int keep) {
                const uint32_t from = left + a * TG_A_BYTES + 32 * i, by = right + b * TG_B_BYTES;
#pragma unroll
                for (int p = 0; p < TG_LEFTS; p++)
                    Warpgroup<KIND, TG_WIDE>::add<0, B_ACROSS>(
                        *reinterpret_cast<float (*)[TG_WIDE / 2]>(into + p * (TG_WIDE / 2)), tile_along(from + p * (128 * 128)),
                        B_ACROSS ? tile_across(by + 2048 * i, 64 * 128) : tile_along(by + 32 * i), keep);
            };
            hold(d);
#if TG_FLOATS
            hold(small);
#endif
            products_begin();
#pragma unroll
            for (int i = 0; i < 4; i++) {
#if TG_FLOATS
#pragma unroll
                for (int order = TG_ORDERS; order > 0; order--)     /* the smallest first */
#pragma unroll
                    for (int a = 0; a < PARTS_A; a++)
                        if (order - a >= 0 && order - a < PARTS_B)
                            multiply(small, a, order - a, i, 1);
#endif
                multiply(d, 0, 0, i, step > chunk || i > 0);
            }
            products_end();
            if (step > chunk) {
                products_wait<1>();
                if (threadIdx.x % 32 == 0) arrive(before);
            }
            before = ring.empty + 8 * ring.stage;
            ring.next();
        } while (++step < end);
        products_wait<0>();
        hold(d);
        if (threadIdx.x % 32 == 0) arrive(before);
#if TG_FLOATS
        hold(small);
#endif
#if PIECE
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++) total[i] += d[i];
#endif
    }
#if TG_FLOATS
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) total[i] += small[i];
#endif
#if PIECE
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) d[i] = total[i];
#endif
}

#if SPLITS == 1
/* By both warpgroups, straight from their registers: of d[4 j + 2 h + e] the row is row + 8 h, the column 8 j + 2 t + e. */
TG_INLINE void store_tile(Y *y, float (&d)[COLUMNS / 2], const Tile &tile, TG_OPERANDS, const int64_t *sizes) {
    const int t = threadIdx.x % 4, row = (threadIdx.x / 32 - 4) * 16 + threadIdx.x % 32 / 4;
    const int64_t columns = columns_of(tile, sizes), places[2] = {place_of(tile, row, sizes), place_of(tile, row + 8, sizes)};
    bool again = false;
    if (!__any_sync(0xffffffffu, places[0] >= 0 || places[1] >= 0)) return;
#pragma unroll
    for (int i = 0; i < TG_OWN / 2; i++) {
        const int h = i / 2 % 2, column = i / 4 * 8 + 2 * t + i % 2;
        const int at = row + 8 * h, there = columns > column ? column : 0;
        Sums sums;
#pragma unroll
        for (int p = 0; p < PRODUCTS; p++) sums.at[p] = d[p * (TG_OWN / 2) + i];
        const bool nothing = says_nothing(sums);
        again = again || nothing;
        /* Without a branch, so that elements are worked out beside each other; of places that y lacks, those of the first are taken. */
        const float value = ended(sums, places[h] < 0 ? row_of(tile, 0, there) : row_of(tile, at, there),
                                  places[h] < 0 ? column_of(tile, 0, there) : column_of(tile, at, there), TG_GIVEN);
        d[i] = nothing ? NAN : value;                               /* whatever would be made of it, so that it is found in y */
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const bool is = places[h] >= 0;                             /* or not for some lanes of a warp, which all turn theirs */
        Y *const out = y + places[h];
        if (sizeof(Y) == 2 && TG_PACKED && TG_OWN % 32 == 0) {
#pragma unroll
            for (int j = 0; j < TG_OWN / 8; j += 4) {
                uint32_t word[4];
#pragma unroll
                for (int i = 0; i < 4; i++) word[i] = two_of(KIND_Y(), d[4 * (j + i) + 2 * h], d[4 * (j + i) + 2 * h + 1]);
                turn_quad(word, t);
                if (is && 8 * (j + t) < columns)
                    put_pack<4>((uint32_t *)(out + 8 * (j + t)), Pack<uint32_t, 4>{{word[0], word[1], word[2], word[3]}});
            }
        } else
#pragma unroll
            for (int j = 0; j < TG_OWN / 8; j++) {
                const int column = 8 * j + 2 * t;
                const float one = d[4 * j + 2 * h], two = d[4 * j + 2 * h + 1];
                if (!is || column >= columns) continue;
                if (sizeof(Y) == 4 && TG_PACKED) put_pack<2>((float *)(out + column), Pack<float, 2>{{one, two}});
                else {
                    out[column * TG_APART] = NARROW_Y(one);
                    if (column + 1 < columns) out[(column + 1) * TG_APART] = NARROW_Y(two);
                }
            }
    }
    for (int i = 0; again && i < TG_OWN / 2; i++) {                /* each thread has stored what it has */
        const int64_t place = i / 2 % 2 ? places[1] : places[0], column = i / 4 * 8 + 2 * t + i % 2, at = place + column * TG_APART;
        if (place >= 0 && column < columns && says_nothing(y[at])) y[at] = NARROW_Y(one_element(TG_GIVEN, sizes[0], at));
    }
}
#else
/* By the blocks of a cluster, each of which stores its share of what all have summed; elements that lie beside each other in y are
 * those of threads beside each other. */
#define TG_LINE (TG_APART == 1 ? COLUMNS + 8 : 128 + 4)
TG_INLINE void store_tile(Y *y, float (&d)[COLUMNS / 2], const Tile &tile, float *mine, TG_OPERANDS, const int64_t *sizes) {
    const int me = threadIdx.x - 128, t = me % 4, first = me / 32 * 16 + me % 32 / 4, part = (int)(blockIdx.x % SPLITS);
    const int64_t columns = columns_of(tile, sizes);
    meet(1, 256);                                                   /* both have read what lay there */
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) {
        const int row = first + i / 2 % 2 * 8, column = i / 4 * 8 + 2 * t + i % 2;
        mine[TG_APART == 1 ? row * TG_LINE + column : column * TG_LINE + row] = d[i];
    }
    cluster_meets();
    constexpr int WIDE = TG_APART == 1 ? 4 : 1, ITEMS = 128 * TG_OWN / WIDE, BY = TG_APART == 1 ? TG_OWN : TG_OWN * TG_LINE;
    for (int i = ITEMS * part / SPLITS + me; i < ITEMS * (part + 1) / SPLITS; i += 256) {
        const int row = TG_APART == 1 ? i / (TG_OWN / WIDE) : i % 128, column = TG_APART == 1 ? i % (TG_OWN / WIDE) * WIDE : i / 128;
        const uint32_t at = shared_at(mine + (TG_APART == 1 ? row * TG_LINE + column : column * TG_LINE + row));
        const int64_t place = place_of(tile, row, sizes);
        if (place < 0 || column >= columns) continue;
        Pack<float, WIDE> sum[PRODUCTS];                            /* of the next weight they lie BY floats on */
#pragma unroll
        for (int p = 0; p < PRODUCTS; p++) {
            sum[p] = floats_of<WIDE>(at + 4 * BY * p, 0);
#pragma unroll
            for (int s = 1; s < SPLITS; s++) {
                const Pack<float, WIDE> more = floats_of<WIDE>(at + 4 * BY * p, s);
#pragma unroll
                for (int e = 0; e < WIDE; e++) sum[p].at[e] += more.at[e];
            }
        }
        Y *const out = y + place + column * TG_APART;
        Pack<Y, WIDE> stored;
#pragma unroll
        for (int e = 0; e < WIDE; e++)
            if (column + e < columns) {
                Sums sums;
#pragma unroll
                for (int p = 0; p < PRODUCTS; p++) sums.at[p] = sum[p].at[e];
                stored.at[e] = NARROW_Y(says_nothing(sums) ? one_element(TG_GIVEN, sizes[0], place + (column + e) * TG_APART) :
                                        ended(sums, row_of(tile, row, column + e), column_of(tile, row, column + e), TG_GIVEN));
            }
        if (TG_PACKED) put_pack<WIDE>(out, stored);
        else
#pragma unroll
            for (int e = 0; e < WIDE; e++)
                if (column + e < columns) out[e] = stored.at[e];
    }
    cluster_meets();                                                /* nobody reads this block's any more */
}
#endif

#if SPLITS > 1
#define TG_CLUSTERED __cluster_dims__(SPLITS, 1, 1)
#else
#define TG_CLUSTERED
#endif
extern "C" __global__ void TG_CLUSTERED __launch_bounds__(384, 1) tensor_tiles(
    Y *__restrict__ y, TG_OPERANDS, const int64_t *sizes TG_SCRATCH, const __grid_constant__ Maps maps) {
    extern __shared__ char shared[];
    __shared__ __align__(8) uint64_t barriers[2 * STAGES];
    const uint32_t begin = (shared_at(shared) + 1023) / 1024 * 1024;
    Ring ring = {begin, shared_at(barriers), shared_at(barriers) + 8 * STAGES, 0, 0};
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_begin(ring.full + 8 * s, 1);
            barrier_begin(ring.empty + 8 * s, 8);
        }
        barriers_begun();
    }
    __syncthreads();
    const int64_t count = tiles_of(sizes) * SPLITS;
    if (threadIdx.x < 128) {
        give_registers<40>();
        if (threadIdx.x == 0) {
            auto copy = [&](const Tile &tile, int step, bool left, bool right) {
                const uint32_t ready = ring.full + 8 * ring.stage, to = ring.tiles + ring.stage * TG_STAGE;
                if (left) copy_left(to, ready, maps, tile, step, sizes);
                if (right) copy_right(to + PARTS_A * TG_A_BYTES, ready, maps, tile, step, sizes);
            };
            auto expect = [&] { arrive_expecting(ring.full + 8 * ring.stage, PARTS_A * TG_A_COPIED + PARTS_B * TG_B_BYTES); };
            ring.parity = 1;
            int early = 0;                                          /* steps of the first tile of which one operand is under way */
            for (int64_t at = blockIdx.x; at < count; at += gridDim.x) {
                const Tile tile = tile_of(at / SPLITS, sizes);
                const int part = (int)(at % SPLITS), begin = TG_STEPS * part / SPLITS, end = TG_STEPS * (part + 1) / SPLITS;
                if (at == blockIdx.x) {
                    if (TG_EARLY_A || TG_EARLY_B)
                        for (; early < STAGES && begin + early < end; early++) {
                            expect();
                            copy(tile, begin + early, TG_EARLY_A, TG_EARLY_B);
                            ring.next();
                        }
                    after_those_before();
                    ring.stage = 0, ring.parity = 1;
                }
                for (int step = begin; step < end; step++, early--) {
                    if (early <= 0) {
                        wait_for(ring.empty + 8 * ring.stage, ring.parity);
                        expect();
                    }
                    copy(tile, step, early <= 0 || !TG_EARLY_A, early <= 0 || !TG_EARLY_B);
                    ring.next();
                }
            }
        }
    } else {
        take_registers<232>();
        after_those_before();
        for (int64_t at = blockIdx.x; at < count; at += gridDim.x) {
            const Tile tile = tile_of(at / SPLITS, sizes);
            const int part = (int)(at % SPLITS), steps = TG_STEPS * (part + 1) / SPLITS - TG_STEPS * part / SPLITS;
            float d[COLUMNS / 2];
            sums_of_tile(d, steps, ring);
#if SPLITS > 1
            store_tile(y, d, tile, (float *)(shared + (begin - shared_at(shared))), TG_GIVEN, sizes);
#else
            store_tile(y, d, tile, TG_GIVEN, sizes);
#endif
        }
    }
}
#endif
