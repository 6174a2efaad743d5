/* cumsum: out[o, i, c] = x[o, 0, c] + … + x[o, i, c] of an array [outer][count][INNER]. The sums of a line are cut into PARTS: `totals`
 * adds up each part but the last, `cumsum` begins its part with those of the parts before it (Harris, Sengupta and Owens, Parallel
 * prefix sum (scan) with CUDA, 2007, with one level). Along rows (INNER 1) a part is a warp's, which takes 32 packs at a time; else a
 * thread's, so that threads beside each other read beside each other. Floats are added in A within a turn of a warp and in C from turn to
 * turn; no later element is ever in a sum.
 * Given by the text before: T (as stored), A, C, WIDE_T (an A of a T), NARROW_T (a T of a C), INNER, PACK (elements of a lane), PARTS. */
#define AHEAD 8
#define TURNS 4                                                     /* of a warp, whose packs come while those before are added up */

/* The first element of a part, a multiple of what a warp takes at a time. */
TG_INLINE int64_t begin_of(int64_t count, int64_t part) {
    const int64_t turn = INNER == 1 ? 32 * PACK : 1, turns = (count + turn - 1) / turn;
    return turns * part / PARTS * turn;
}
/* A line and a part of each warp, or of each thread. */
struct Place {
    int64_t line, part, begin, end;
    const T *from;
};
TG_INLINE Place place_of(const T *x, int64_t at, int64_t parts, int64_t lines, int64_t count) {
    const int64_t line = at % lines, part = at / lines;
    const int64_t end = part + 1 < PARTS ? begin_of(count, part + 1) : count;
    return {line, part, begin_of(count, part), end < count ? end : count, x + line / INNER * count * INNER + line % INNER};
}

#if INNER == 1
TG_INLINE int64_t number() { return (blockIdx.x * 256LL + threadIdx.x) / 32; }
/* PACK elements from one on; what is behind the end is 0. */
TG_INLINE Pack<T, PACK> some_of(const T *from, int64_t at, int64_t end) {
    if (at + PACK <= end) return pack_at<PACK>(from + at);
    Pack<T, PACK> x = {};
#pragma unroll
    for (int e = 0; e < PACK; e++)
        if (at + e < end) x.at[e] = from[at + e];
    return x;
}
/* A lane's packs of so many turns; none behind the end of the part. */
TG_INLINE void some_turns(Pack<T, PACK> (&packs)[TURNS], const Place &p, int64_t at) {
#pragma unroll
    for (int k = 0; k < TURNS; k++, at += 32 * PACK) packs[k] = at < p.end ? some_of(p.from, at, p.end) : Pack<T, PACK>{};
}
#else
TG_INLINE int64_t number() { return blockIdx.x * 256LL + threadIdx.x; }
#endif

#if PARTS > 1
extern "C" __global__ void __launch_bounds__(256) totals(T *__restrict__ y, const T *x, const int64_t *sizes, C *__restrict__ sums) {
    const int64_t lines = sizes[0] * INNER, count = sizes[1], at = number();
    after_those_before();
    if (at >= lines * (PARTS - 1)) return;
    const Place p = place_of(x, at, PARTS - 1, lines, count);
    C sum = 0;
#if INNER == 1
    const int lane = threadIdx.x % 32;
    for (int64_t i = p.begin + lane * PACK; i < p.end; i += 32 * PACK) {
        const Pack<T, PACK> some = some_of(p.from, i, p.end);
        A all = 0;
#pragma unroll
        for (int e = 0; e < PACK; e++) all += WIDE_T(some.at[e]);
        sum += all;
    }
    sum = reduced<32>(sum, Sum(), (C *)0);
    if (lane == 0) sums[at] = sum;
#else
    for (int64_t i = p.begin; i < p.end; i += AHEAD) {
        T some[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k < p.end) some[k] = p.from[(i + k) * INNER];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k < p.end) sum += WIDE_T(some[k]);
    }
    sums[at] = sum;
#endif
}
#define TG_SUMS , const C *sums
#else
#define TG_SUMS
#endif

extern "C" __global__ void __launch_bounds__(256) cumsum(T *__restrict__ y, const T *x, const int64_t *sizes TG_SUMS) {
    const int64_t lines = sizes[0] * INNER, count = sizes[1], at = number();
    after_those_before();
    if (at >= lines * PARTS) return;
    const Place p = place_of(x, at, PARTS, lines, count);
    T *const to = y + (p.from - x);
    C sum = 0;
#if INNER == 1
    const int lane = threadIdx.x % 32;
#if PARTS > 1
    for (int64_t q = lane; q < p.part; q += 32) sum += sums[q * lines + p.line];
    sum = reduced<32>(sum, Sum(), (C *)0);
#endif
    Pack<T, PACK> next[TURNS];
    some_turns(next, p, p.begin + lane * PACK);
    for (int64_t first = p.begin; first < p.end; first += TURNS * 32 * PACK) {
        Pack<T, PACK> now[TURNS];
#pragma unroll
        for (int k = 0; k < TURNS; k++) now[k] = next[k];
        some_turns(next, p, first + (TURNS * 32 + lane) * PACK);
#pragma unroll
        for (int k = 0; k < TURNS; k++) {
            const int64_t i = first + k * 32 * PACK, mine = i + lane * PACK;
            if (i >= p.end) break;
            Pack<T, PACK> some = now[k];
            A part[PACK], all = 0, before = 0;
#pragma unroll
            for (int e = 0; e < PACK; e++) part[e] = all += mine + e < p.end ? WIDE_T(some.at[e]) : (A)0;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {              /* of twice as many lanes at a time, those before this one */
                const A other = __shfl_xor_sync(0xffffffffu, all, step);
                if (lane & step) before = other + before;
                all = lane & step ? other + all : all + other;
            }
#pragma unroll
            for (int e = 0; e < PACK; e++) some.at[e] = NARROW_T(sum + (C)(A)(before + part[e]));
            if (mine + PACK <= p.end) put_pack<PACK>(to + mine, some);
            else
#pragma unroll
                for (int e = 0; e < PACK; e++)
                    if (mine + e < p.end) to[mine + e] = some.at[e];
            sum += all;
        }
    }
#else
#if PARTS > 1
    for (int64_t q = 0; q < p.part; q++) sum += sums[q * lines + p.line];
#endif
    for (int64_t i = p.begin; i < p.end; i += AHEAD) {
        T some[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k < p.end) some[k] = p.from[(i + k) * INNER];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k < p.end) to[(i + k) * INNER] = NARROW_T(sum += WIDE_T(some[k]));
    }
#endif
}
