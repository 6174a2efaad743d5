/* scatter: out [OUTER][SIZE][INNER] is base, with each row i of updates [OUTER][COUNT][INNER] written over (SET: the last one stays),
 * added to, or compared with the row index[i]. An index out of range is left out; out may be base, and then only rows that an index
 * says are touched. The result never depends on the order in which threads run: no float is added by an atomic operation.
 *
 * SET: `cleared` and `chosen` find the largest i of each row, as an integer; `written` writes these over their rows, and copies the
 * rows that have none.
 * Else `cleared` and `slotted` count the updates of each row, note in its SLOTS which they are, in the order in which threads
 * come, and list the rows with several (where out is base, all that have some). `combined` writes each row once: as it is in base, or
 * combined with its updates in the order of i, a pack of elements by each thread. Where a row has more than SLOTS, the indices are
 * sorted by row, then by i, as words of 64 bits; elsewhere these launches end at once. So they are where nothing is counted: where
 * rows have more than AVERAGE updates on average, or fewer bytes than their slots. `sorted_tiles` sorts TILE of them in shared memory
 * (bitonic: Batcher, Sorting networks and their applications, 1968). Each `merged_` joins RUNS sorted runs; the place of a word is
 * how many words of all these runs are smaller, by binary search (Satish, Harris and Garland, Designing efficient sorting algorithms
 * for manycore GPUs, 2009, there for two runs). `chunked` combines of CHUNK neighbours that go to one row the updates, so that many
 * equal indices are no long walk.
 *
 * Given by the text before: T (as stored), Index, PACK (elements of a thread); OUTER, SIZE, COUNT, INNER (numbers, or what `sizes`
 * holds); SET. Where SET is 0 also A (what is combined), WIDE_T (an A of a T), NARROW_T (a T of an A), COMBINE (of two A). */
#define TILE 1024
#define RUNS 16
#define SHARES 4                                                    /* threads of a word that is merged */
#define JOINING 1024                                                /* threads of a block of the first merge */
#define CHUNK 64
#define CLEARED 4096                                                /* words that a block sets to 0 */
#define SLOTS 16                                                    /* updates of a row that are noted */
#define AVERAGE 2                                                   /* updates of a row on average, of more than which none are counted */
#define UPDATING 528                                                /* blocks that take listed rows, and sorted updates, at most */
#define AT_ONCE 3                                                   /* packs of a thread that are under way at once */
#define NOWHERE 0xffffffffu                                         /* the row of an index out of range: the last of all */

TG_INLINE int64_t at_least_1(int64_t x) { return x < 1 ? 1 : x; }

/* The row that an index says, negative out of range: as a u64 beyond i64 becomes here, too. */
TG_INLINE int64_t row_of(Index index, int64_t size) {
    const int64_t row = (int64_t)index;
    return row < size ? row : -1;
}
/* Of lines of INNER elements, `count` for each of OUTER, the pack of this thread. */
struct Place {
    int64_t outer, line, column;
};
TG_INLINE Place place_of(int64_t number, int64_t count, int64_t inner, int64_t outers) {
    const int64_t width = at_least_1(inner / PACK), line = number / width, outer = outers == 1 ? 0 : line / at_least_1(count);
    return {outer, line - outer * count, number % width * PACK};
}

/* A word of each row, by one of the blocks of so many threads that do so. Up to 3 words more than there are rows: the memory has room
 * for them. */
template <int OF_A_BLOCK> TG_INLINE void clear(uint32_t *words, int64_t block, int64_t rows) {
#pragma unroll
    for (int k = 0; k < CLEARED; k += OF_A_BLOCK * 4) {
        const int64_t at = block * CLEARED + k + threadIdx.x * 4;
        if (at < rows) put_pack<4>(words + at, Pack<uint32_t, 4>{});
    }
}

#if SET
#define PARAMETERS T *y, const T *base, const Index *index, const T *updates, const int64_t *sizes, uint32_t *last

extern "C" __global__ void __launch_bounds__(256) cleared(PARAMETERS) {
    after_those_before();
    clear<256>(last, blockIdx.x, SIZE);
}
/* One more than the number of the last update of each row; 0 without one. */
extern "C" __global__ void __launch_bounds__(256) chosen(PARAMETERS) {
    const int64_t i = blockIdx.x * 256LL + threadIdx.x;
    after_those_before();
    if (i >= COUNT) return;
    const int64_t row = row_of(index[i], SIZE);
    if (row >= 0) atomicMax(last + row, (uint32_t)i + 1);
}
/* Blocks behind those of updates copy. */
extern "C" __global__ void __launch_bounds__(256) written(PARAMETERS) {
    const int64_t here = OUTER * COUNT * (INNER / PACK), all = OUTER * SIZE * (INNER / PACK), blocks = (here + 255) / 256;
    const int64_t number = blockIdx.x * 256LL + threadIdx.x;
    after_those_before();
    if (blockIdx.x < blocks) {
        if (number >= here) return;
        const Place p = place_of(number, COUNT, INNER, OUTER);
        const int64_t row = row_of(index[p.line], SIZE);
        if (row >= 0 && last[row] == (uint32_t)p.line + 1)
            put_pack<PACK>(y + (p.outer * SIZE + row) * INNER + p.column, pack_at<PACK>(updates + number * PACK));
        return;
    }
    if (y == base) return;
    for (int64_t k = number - blocks * 256; k < all; k += (gridDim.x - blocks) * 256)
        if (last[place_of(k, SIZE, INNER, OUTER).line] == 0) put_pack<PACK>(y + k * PACK, pack_at<PACK>(base + k * PACK));
}

#else
#define PARAMETERS                                                                                                            \
    T *y, const T *base, const Index *index, const T *updates, const int64_t *sizes, uint64_t *words, uint64_t *others, A *chunks, \
        uint32_t *counts, uint32_t *slots, uint32_t *listed
#define THREADS (TILE / 2)

TG_INLINE uint32_t row_in(uint64_t word) { return (uint32_t)(word >> 32); }

/* Whether updates are counted. */
TG_INLINE bool has_few(const int64_t *sizes) {
    return COUNT <= AVERAGE * SIZE && INNER * (int64_t)sizeof(T) >= SLOTS * 4;
}
/* Whether something is left for the sorted order. Behind the counts lie whether a row has more than SLOTS, and how many rows are
 * listed. */
TG_INLINE bool is_sorted(const int64_t *sizes, const uint32_t *counts) { return !has_few(sizes) || counts[SIZE] != 0; }

extern "C" __global__ void __launch_bounds__(256) cleared(PARAMETERS) {
    after_those_before();
    clear<256>(counts, blockIdx.x, SIZE + 2);
}
/* Slots and the list are in any order: what comes of a row depends on neither. */
extern "C" __global__ void __launch_bounds__(256) slotted(PARAMETERS) {
    const int64_t i = blockIdx.x * 256LL + threadIdx.x;
    after_those_before();
    const int64_t row = i < COUNT ? row_of(index[i], SIZE) : -1;
    const uint32_t before = row < 0 ? SLOTS : atomicAdd(counts + row, 1u);
    if (before < SLOTS) slots[row * SLOTS + before] = (uint32_t)i;
    else if (row >= 0) counts[SIZE] = 1;
    const bool listing = before == (y == base ? 0 : 1);
    const uint32_t those = __ballot_sync(0xffffffffu, listing);     /* one atomic operation for the rows of a warp */
    uint32_t first = 0;
    if (threadIdx.x % 32 == 0 && those) first = atomicAdd(counts + SIZE + 1, (uint32_t)__popc(those));
    first = __shfl_sync(0xffffffffu, first, 0);
    if (listing) listed[first + __popc(those & ((1u << threadIdx.x % 32) - 1))] = (uint32_t)row;
}

extern "C" __global__ void __launch_bounds__(THREADS) sorted_tiles(PARAMETERS) {
    __shared__ uint64_t tile[TILE];
    const int64_t first = blockIdx.x * (int64_t)TILE;
    const int t = threadIdx.x;
    after_those_before();
    if (!is_sorted(sizes, counts)) return;
#pragma unroll
    for (int k = t; k < TILE; k += THREADS) {                       /* behind the end is what comes after all others */
        const int64_t i = first + k, row = i < COUNT ? row_of(index[i], SIZE) : -1;
        tile[k] = (uint64_t)(row < 0 ? NOWHERE : (uint32_t)row) << 32 | (i < COUNT ? (uint32_t)i : UINT32_MAX);
    }
    __syncthreads();
    for (int half = 1; half < TILE; half *= 2)
        for (int apart = half; apart > 0; apart /= 2) {
            if (apart >= 32) __syncthreads();                       /* else a warp orders the 64 words that are its own */
            else __syncwarp();
            const int a = t + (t & ~(apart - 1)), b = a + apart;
            const uint64_t low = tile[a], high = tile[b];
            if ((low > high) == ((a & 2 * half) == 0)) tile[a] = high, tile[b] = low;
        }
    __syncthreads();
#pragma unroll
    for (int k = t; k < TILE; k += THREADS)
        if (first + k < COUNT) words[first + k] = tile[k];
}

/* The first merge: the rows of all runs that are joined lie in shared memory, where searching them takes a fraction of the time. By
 * rows alone: of equal ones those of runs before come first. */
extern "C" __global__ void __launch_bounds__(JOINING) merged_0(PARAMETERS) {
    extern __shared__ __align__(16) char rows[];
    uint32_t *const found = (uint32_t *)rows;
    constexpr int WORDS = JOINING / SHARES, EACH = RUNS / SHARES;
    const int share = threadIdx.x % SHARES;
    const int64_t count = COUNT, own = blockIdx.x * (int64_t)WORDS + threadIdx.x / SHARES, at = own < count ? own : count - 1;
    const int64_t begin = blockIdx.x * (int64_t)WORDS / (TILE * RUNS) * (TILE * RUNS);
    const int here = (int)tg_min(count - begin, (int64_t)TILE * RUNS);
    after_those_before();
    if (!is_sorted(sizes, counts)) return;
    for (int k = threadIdx.x; k < here; k += JOINING) found[k] = row_in(words[begin + k]);
    const uint64_t word = words[at];
    const uint32_t row = row_in(word);
    const int of_own = (int)(at - begin) / TILE;
    __syncthreads();
    int place = 0;
#pragma unroll
    for (int r = share * EACH; r < share * EACH + EACH; r++) {
        const uint32_t most = r < of_own ? row : row - 1;           /* smaller words have rows up to this one: none below 0 */
        const int last = tg_min(TILE, tg_max_i(here - r * TILE, 0));
        int before = 0;
#pragma unroll
        for (int step = TILE; step > 0; step /= 2)
            if (before + step <= last && found[r * TILE + before + step - 1] <= most) before += step;
        place += r == of_own ? (int)(at - begin) % TILE : row == 0 && r > of_own ? 0 : before;
    }
#pragma unroll
    for (int other = 1; other < SHARES; other *= 2) place += __shfl_xor_sync(0xffffffffu, place, other);
    if (own < count && share == 0) others[begin + place] = word;
}

/* The others: SHARES threads have a word, and RUNS / SHARES of the runs each. */
template <int NUMBER> TG_INLINE void merge(const uint64_t *from, uint64_t *into, const int64_t *sizes) {
    constexpr int64_t RUN = (int64_t)TILE << 4 * NUMBER;
    constexpr int WORDS = 256 / SHARES, EACH = RUNS / SHARES;
    const int64_t count = COUNT;
    const int share = threadIdx.x % SHARES;
    const int64_t own = blockIdx.x * (int64_t)WORDS + threadIdx.x / SHARES, at = own < count ? own : count - 1;
    const int64_t begin = at / (RUN * RUNS) * (RUN * RUNS), first = begin + share * EACH * RUN;
    const uint64_t word = from[at];
    int64_t before[EACH] = {};                                      /* smaller words of each run; no two words are equal */
#pragma unroll 1
    for (int64_t step = RUN; step > 0; step /= 2)
#pragma unroll
        for (int r = 0; r < EACH; r++) {                            /* loads that do not wait for each other */
            const int64_t last = first + r * RUN + before[r] + step - 1;
            if (before[r] + step <= RUN && last < count && from[last] < word) before[r] += step;
        }
    int64_t place = 0;
#pragma unroll
    for (int r = 0; r < EACH; r++) place += before[r];
#pragma unroll
    for (int other = 1; other < SHARES; other *= 2) place += __shfl_xor_sync(0xffffffffu, place, other);
    if (own < count && share == 0) into[begin + place] = word;
}
#define MERGED(number)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256) merged_##number(PARAMETERS) {                         \
        after_those_before();                                                                               \
        if (is_sorted(sizes, counts))                                                                       \
            merge<number>(number % 2 ? others : words, number % 2 ? words : others, sizes);                 \
    }
MERGED(1)
MERGED(2)
MERGED(3)
MERGED(4)
MERGED(5)

/* Where the sorted words are: after as many of these as COUNT takes. */
TG_INLINE const uint64_t *sorted_of(const uint64_t *words, const uint64_t *others, int64_t count) {
    bool odd = false;
    for (int64_t run = TILE; run < count; run *= RUNS) odd = !odd;
    return odd ? others : words;
}

/* Updates by their places in the order, of some columns. */
struct Updates {
    typedef T Element;
    const T *from;
    const uint64_t *sorted;
    int64_t inner;
    TG_INLINE Pack<T, PACK> operator()(int64_t at) const { return pack_at<PACK>(from + (uint32_t)sorted[at] * inner); }
    TG_INLINE A wide(T x) const { return (A)WIDE_T(x); }
};
/* What chunks of them come to. */
struct Chunks {
    typedef A Element;
    const A *from;
    int64_t apart;
    TG_INLINE Pack<A, PACK> operator()(int64_t at) const { return pack_at<PACK>(from + at * apart); }
    TG_INLINE A wide(A x) const { return x; }
};
/* Those of [at, end) in order, with as many of them on their way at once as have BYTES, 8 at most. */
template <int BYTES, class From> TG_INLINE void take_in(Pack<A, PACK> &sum, int64_t at, int64_t end, const From &from) {
    typedef Pack<typename From::Element, PACK> Some;
    constexpr int AHEAD = BYTES / sizeof(Some) < 8 ? BYTES / sizeof(Some) : 8;
    for (; at < end; at += AHEAD) {
        Some some[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (at + k < end) some[k] = from(at + k);
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (at + k < end)
#pragma unroll
                for (int e = 0; e < PACK; e++) sum.at[e] = COMBINE()(sum.at[e], from.wide(some[k].at[e]));
    }
}
TG_INLINE Pack<A, PACK> widened(const Pack<T, PACK> &x) {
    Pack<A, PACK> out;
#pragma unroll
    for (int e = 0; e < PACK; e++) out.at[e] = (A)WIDE_T(x.at[e]);
    return out;
}

TG_INLINE Pack<T, PACK> narrowed(const Pack<A, PACK> &x) {
    Pack<T, PACK> out;
#pragma unroll
    for (int e = 0; e < PACK; e++) out.at[e] = NARROW_T(x.at[e]);
    return out;
}

/* `parts` blocks take the columns of a chunk. Those behind the blocks of all chunks say of each row with updates, where they were not
 * counted, that it has more than SLOTS. */
extern "C" __global__ void __launch_bounds__(256) chunked(PARAMETERS) {
    const int64_t all = COUNT / CHUNK, noting = (COUNT + 255) / 256, chunking = gridDim.x - noting, width = INNER / PACK;
    const uint64_t *const sorted = sorted_of(words, others, COUNT);
    after_those_before();
    if (!is_sorted(sizes, counts)) return;
    if (blockIdx.x >= chunking) {
        const int64_t at = (blockIdx.x - chunking) * 256 + threadIdx.x;
        if (has_few(sizes) || at >= COUNT || y == base) return;     /* in place nobody asks */
        const uint32_t row = row_in(sorted[at]);
        if (row != NOWHERE && (at == 0 || row_in(sorted[at - 1]) != row)) counts[row] = SLOTS + 1;
        return;
    }
    const int64_t chunk = blockIdx.x % all, part = blockIdx.x / all, parts = chunking / all, first = chunk * CHUNK;
    const uint32_t row = row_in(sorted[first]);
    if (row == NOWHERE || row_in(sorted[first + CHUNK - 1]) != row) return;
    for (int64_t k = part * 256 + threadIdx.x; k < OUTER * width; k += parts * 256) {
        const Updates those = {updates + k / width * COUNT * INNER + k % width * PACK, sorted, INNER};
        Pack<A, PACK> sum = widened(those(first));                  /* begun with one of them: 0 would lose the sign of -0 */
        take_in<128>(sum, first + 1, first + CHUNK, those);
        put_pack<PACK>(chunks + chunk * OUTER * INNER + k * PACK, sum);
    }
}

/* What `old` comes to with the updates of its row, several, from `begin` on in the order. */
TG_INLINE Pack<T, PACK> with_several(const Pack<T, PACK> &old, int64_t begin, uint32_t row, const Updates &those,
                                     const Chunks &chunked, int64_t count) {
    Pack<A, PACK> sum = widened(old);
    int64_t known = 2, step = 2;                                    /* updates of the row; most rows have few */
    for (; begin + step < count && row_in(those.sorted[begin + step]) == row; step *= 2) known = step + 1;
    while ((step /= 2) > 0)
        if (begin + known + step <= count && row_in(those.sorted[begin + known + step - 1]) == row) known += step;
    const int64_t end = begin + known, from = (begin + CHUNK - 1) / CHUNK, to = end / CHUNK;
    const int64_t head = tg_min(from * CHUNK, end), tail = tg_max_i(to * CHUNK, head);      /* chunks between are the row's alone */
    take_in<64>(sum, begin, head, those);
    take_in<64>(sum, from, to, chunked);
    take_in<64>(sum, tail, end, those);
    return narrowed(sum);
}
TG_INLINE Pack<T, PACK> with_one(const Pack<T, PACK> &old, const Pack<T, PACK> &own) {
    Pack<T, PACK> made;
#pragma unroll
    for (int e = 0; e < PACK; e++) made.at[e] = NARROW_T(COMBINE()((A)WIDE_T(old.at[e]), (A)WIDE_T(own.at[e])));
    return made;
}
/* What `old` comes to with as many updates as there are in slots, SLOTS at most: the next ones are looked for from the last one on. */
TG_INLINE Pack<T, PACK> with_few(const Pack<T, PACK> &old, const uint32_t *those, uint32_t count, const T *from, int64_t inner) {
    constexpr int AHEAD = 4;
    Pack<A, PACK> sum = widened(old);
    uint32_t least = 0;
    for (uint32_t k = 0; k < count; k += AHEAD) {
        Pack<T, PACK> some[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (k + j >= count) break;
            uint32_t next = UINT32_MAX;
            for (uint32_t s = 0; s < count; s++) {
                const uint32_t each = those[s];
                if (each >= least && each < next) next = each;
            }
            some[j] = pack_at<PACK>(from + next * inner);
            least = next + 1;
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (k + j < count)
#pragma unroll
                for (int e = 0; e < PACK; e++) sum.at[e] = COMBINE()(sum.at[e], (A)WIDE_T(some[j].at[e]));
    }
    return narrowed(sum);
}

/* The first blocks take the rows that are listed, and where indices are sorted the updates in their order: a thread at the first of
 * a row writes it, of rows that have more than SLOTS (of all, where none were counted). The blocks after them take the rows without
 * updates and with one in memory's order, AT_ONCE packs of a thread, and load the counts, base and updates of these together. */
extern "C" __global__ void __launch_bounds__(256, 4) combined(PARAMETERS) {
    const int64_t width = INNER / PACK, of_updates = OUTER * COUNT * width, all = OUTER * SIZE * width;
    const int64_t updating = tg_min((of_updates + 255) / 256, (int64_t)UPDATING), first = blockIdx.x * 256LL + threadIdx.x;
    const uint64_t *const sorted = sorted_of(words, others, COUNT);
    const bool few = has_few(sizes);
    after_those_before();
    if (blockIdx.x < updating) {
        const int64_t lines = few ? counts[SIZE + 1] : 0;
        for (int64_t number = first; number < OUTER * lines * width; number += updating * 256) {
            const Place p = place_of(number, lines, INNER, OUTER);
            const int64_t row = listed[p.line], at = (p.outer * SIZE + row) * INNER + p.column;
            const uint32_t count = counts[row];
            const T *const from = updates + p.outer * COUNT * INNER + p.column;
            if (count <= SLOTS)
                put_pack<PACK>(y + at, with_few(pack_at<PACK>(base + at), slots + row * SLOTS, count, from, INNER));
        }
        if (!is_sorted(sizes, counts)) return;
        for (int64_t number = first; number < of_updates; number += updating * 256) {
            const Place p = place_of(number, COUNT, INNER, OUTER);
            const uint64_t word = sorted[p.line];
            const uint32_t row = row_in(word), above = p.line > 0 ? row_in(sorted[p.line - 1]) : NOWHERE;
            const int64_t more = p.line + (few ? SLOTS : 1);
            const bool further = more < COUNT && row_in(sorted[more]) == row;
            if (row == NOWHERE || above == row || (few && !further)) continue;
            const int64_t at = (p.outer * SIZE + row) * INNER + p.column;
            const T *const from = updates + p.outer * COUNT * INNER + p.column;
            const Pack<T, PACK> old = pack_at<PACK>(base + at), own = pack_at<PACK>(from + (uint32_t)word * INNER);
            const Chunks parts = {chunks + p.outer * INNER + p.column, OUTER * INNER};
            put_pack<PACK>(y + at, further ? with_several(old, p.line, row, {from, sorted, INNER}, parts, COUNT)
                                           : with_one(old, own));
        }
        return;
    }
    if (y == base) return;
    for (int64_t k = (blockIdx.x - updating) * (256LL * AT_ONCE) + threadIdx.x; k < all;
         k += (gridDim.x - updating) * (256LL * AT_ONCE)) {
        Pack<T, PACK> old[AT_ONCE], own[AT_ONCE];
        uint32_t count[AT_ONCE], only[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int64_t at = k + j * 256, row = place_of(at, SIZE, INNER, OUTER).line;
            count[j] = at < all ? counts[row] : SLOTS + 1;
            if (at < all && few) only[j] = slots[row * SLOTS];      /* what is not counted is nowhere read */
            if (at < all) old[j] = pack_at<PACK>(base + at * PACK);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const Place p = place_of(k + j * 256, SIZE, INNER, OUTER);
            if (count[j] == 1) own[j] = pack_at<PACK>(updates + (p.outer * COUNT + only[j]) * INNER + p.column);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (count[j] <= 1) put_pack<PACK>(y + (k + j * 256) * PACK, count[j] ? with_one(old[j], own[j]) : old[j]);
    }
}
#endif
