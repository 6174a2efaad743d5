/* cumsum: out[o, i, c] = x[o, 0, c] + … + x[o, i, c] of an array [outer][count][INNER]. The sums of a line are cut into PARTS: `totals`
 * adds up each part but the last, `cumsum` begins its part with those of the parts before it (Harris, Sengupta and Owens, Parallel
 * prefix sum (scan) with CUDA, 2007, with one level). Along rows (INNER 1) a part is LANES', which take as many packs at a time; else a
 * thread's, so that threads beside each other read beside each other. Floats are added in A within a turn of them and in C from turn to
 * turn; no later element is ever in a sum.
 * Given by the text before: T (as stored), A, C, WIDE_T (an A of a T), NARROW_T (a T of an A or C), INNER, PACK (elements of a lane), PARTS,
 * LANES (of a warp, for a line; 32 where a line has several parts), TURNS (that are added up together, while the packs of as many come). */
#define AHEAD 8

/* The first element of a part, a multiple of what is taken at a time. */
TG_INLINE int64_t begin_of(int64_t count, int64_t part) {
    const int64_t turn = INNER == 1 ? LANES * PACK : 1, turns = (count + turn - 1) / turn;
    return turns * part / PARTS * turn;
}
/* A line and a part of LANES, or of each thread. */
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
/* What comes before, to which many are added. A double as two floats: a step from f32 to f64 and back takes longer than an element's
 * way from memory. What is beyond their range stays finite, as those after it may be below 0, and infinite. */
template <class C, class A> struct Before {
    C sum;
    TG_INLINE explicit Before(C all) : sum(all) {}
    TG_INLINE C and_then(A x) const { return sum + (C)x; }
};
template <> struct Before<double, float> {
    float high, low;
    TG_INLINE explicit Before(double all) {
        const bool finite = all - all == 0;
        high = finite ? within(all) : (float)all;
        low = finite ? within(all - (double)high) : 0;
    }
    TG_INLINE static float within(double x) {
        const double most = 0x1.fffffep127;
        return (float)(x > most ? most : x < -most ? -most : x);
    }
    TG_INLINE float and_then(float x) const { return high + (x + low); }
};

TG_INLINE int64_t number() { return (blockIdx.x * 256LL + threadIdx.x) / LANES; }
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
    for (int k = 0; k < TURNS; k++, at += LANES * PACK) packs[k] = at < p.end ? some_of(p.from, at, p.end) : Pack<T, PACK>{};
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

extern "C" __global__ void __launch_bounds__(256, INNER == 1 && TURNS > 1 ? 3 : 1) cumsum(T *__restrict__ y, const T *x,
                                                                                         const int64_t *sizes TG_SUMS) {
    const int64_t lines = sizes[0] * INNER, count = sizes[1], all_parts = lines * PARTS;
    int64_t at = number();
    after_those_before();
#if INNER == 1
    const bool there = at < all_parts;                              /* lanes of one warp run as one: what is over does the last again */
    if (at - (threadIdx.x % 32) / LANES >= all_parts) return;
    if (!there) at = all_parts - 1;
#else
    if (at >= all_parts) return;
#endif
    const Place p = place_of(x, at, PARTS, lines, count);
    T *const to = y + (p.from - x);
    C sum = 0;
#if INNER == 1
    const int lane = threadIdx.x % LANES;
    const int64_t stored = there ? p.end : p.begin;
#if PARTS > 1
    for (int64_t q = lane; q < p.part; q += 32) sum += sums[q * lines + p.line];
    sum = reduced<32>(sum, Sum(), (C *)0);
#endif
    Pack<T, PACK> next[TURNS];
    some_turns(next, p, p.begin + lane * PACK);
    for (int64_t first = p.begin; first < p.end; first += TURNS * LANES * PACK) {
        Pack<T, PACK> now[TURNS];
#pragma unroll
        for (int k = 0; k < TURNS; k++) now[k] = next[k];
        some_turns(next, p, first + (TURNS * LANES + lane) * PACK);
        A all[TURNS], before[TURNS];                                /* of a pack, and of those before it in its turn */
#pragma unroll
        for (int k = 0; k < TURNS; k++) {
            all[k] = before[k] = 0;
#pragma unroll
            for (int e = 0; e < PACK; e++) all[k] += WIDE_T(now[k].at[e]);
        }
#pragma unroll
        for (int step = 1; step < LANES; step *= 2)                 /* of twice as many lanes at a time, those before this one */
#pragma unroll
            for (int k = 0; k < TURNS; k++) {                       /* turns beside each other: none waits for another's shuffle */
                const A other = __shfl_xor_sync(0xffffffffu, all[k], step);
                if (lane & step) before[k] = other + before[k];
                all[k] = lane & step ? other + all[k] : all[k] + other;
            }
#pragma unroll
        for (int k = 0; k < TURNS; k++) {
            const int64_t mine = first + (k * LANES + lane) * PACK;
            Pack<T, PACK> some = now[k];
            const Before<C, A> earlier(sum);
            A part = 0;
#pragma unroll
            for (int e = 0; e < PACK; e++) some.at[e] = NARROW_T(earlier.and_then(before[k] + (part += WIDE_T(some.at[e]))));
            if (mine + PACK <= stored) put_pack<PACK>(to + mine, some);
            else
#pragma unroll
                for (int e = 0; e < PACK; e++)
                    if (mine + e < stored) to[mine + e] = some.at[e];
            sum += all[k];
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
