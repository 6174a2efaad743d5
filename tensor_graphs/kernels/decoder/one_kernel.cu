/* whole: all steps of a run of one token as one kernel (one_kernel.py, which gives the numbers before this text and the steps in it). A
 * block stays on each multiprocessor. WARPS of its warps compute; a thread of one more brings what the next steps read into a ring
 * in shared memory, by bulk copies, ahead of the steps themselves. What blocks hand to each other are words of f32 that were UNSET
 * before. A reader polls each word itself, so there are no barriers between blocks, no fences, and no order in which words have to
 * become visible. Arithmetic never gives UNSET: its NaN has another pattern. Whoever waits in vain ends the kernel by a trap.
 * For compute capability 9.0 or later; all blocks have to be resident at once. */
typedef unsigned int u32;
typedef unsigned long long u64;
#define IN static __device__ __forceinline__
#define UNSET 0xffffffffu
#define FULL 0xffffffffu
#define THREADS (32 * WARPS + 32)
#define SUMS 68                                                     /* floats of a warp in `part`: 32 rows twice, 4 sums */
#define SET_BYTES (SET * HIDDEN * 2)
#define NEGATIVE __int_as_float(0xff800000)

/* attends: whether it is attention. in, out: words of the exchange that it reads and writes. pack, aux: where its weights, and what
 * its blocks have in common of them, lie in the ring. full, phase: the barrier of their arrival. wait: how many steps must be done
 * before they are brought. loads: they are brought for this step, not for one before it. bytes: of a block. pack_at, aux_at: in the
 * memory they come from. layer: of the caches. first: 1 where there is no o yet, -1 where there is nothing to do. low: keys of a
 * window, 0: all. which: of the rotations. turn: of `part`. number: of the step. */
struct Step {
    int attends, in, out, pack, aux, full, phase, wait, bytes, aux_bytes, aux_at, layer, first, low, which, turn;
    long long pack_at;
    int number, loads;
};

/* exchange: two sets of words; a launch uses number `set` and clears the other. table: of the embedding and of the head. rotations:
 * [which][ROOM], cosines and sines. id: of the token that is fed; token, top: the likeliest next one, and its product. caches: keys
 * and values of each layer, [ROOM][DIM] of float or bf16. position: of the token that is fed. */
#if CACHED_BYTES == 2
typedef unsigned short Cached;
#else
typedef float Cached;
#endif
struct Model {
    const Step *steps;
    const unsigned char *packs, *auxes;
    float *exchange;
    const unsigned short *table;
    const float *rotations;
    const int *id;
    int *token;
    float *top;
    Cached *caches[2 * LAYERS];
    int position, set;
};

struct Shared {
    unsigned char ring[RING];
    float mixed[KEY_WARPS + 1][DIM];                        /* of attention; the head's stages reach into it */
    unsigned char more[MORE];                               /* room for those stages */
    float part[2][WARPS][SUMS];
    float rotation[2][DIM];
    float tops[20], totals[20];
    float query[DIM];
    float row[HIDDEN], x[HIDDEN], added[HIDDEN], factor[4]; /* the residual is x + factor added; a warp has its own columns */
    __align__(16) Step steps[STEPS];
    u64 full[SLOTS], stage[WARPS][STAGES];
    int done, position, set;
    float *exchange;
};
static_assert(sizeof(Shared) <= MOST_SHARED, "more steps than have room beside the ring");
extern __shared__ __align__(128) unsigned char memory[];
#define S (*(Shared *)memory)

IN u32 at_shared(const void *p) { return (u32)__cvta_generic_to_shared(p); }
IN float bits(u32 x) { return __uint_as_float(x); }
IN float low(u32 x) { return __uint_as_float(x << 16); }
IN float high(u32 x) { return __uint_as_float(x & 0xffff0000u); }
IN uint4 peek4(const float *p) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
IN uint2 peek2(const float *p) {
    uint2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
    return v;
}
IN bool there(uint4 v) { return v.x != UNSET && v.y != UNSET && v.z != UNSET && v.w != UNSET; }
IN bool there(uint2 v) { return v.x != UNSET && v.y != UNSET; }
IN float4 floats(uint4 v) { return make_float4(bits(v.x), bits(v.y), bits(v.z), bits(v.w)); }
IN void tell(float *p, float x) { asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" :: "l"(p), "f"(x) : "memory"); }
IN void tell2(float *p, float x, float y) {
    asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1,%2};" :: "l"(p), "f"(x), "f"(y) : "memory");
}
IN void count(int &turns) {
    if (++turns > (1 << 21)) asm volatile("trap;");
}
IN void barrier() { asm volatile("bar.sync 1, %0;" :: "n"(32 * WARPS) : "memory"); }
IN void arm(u64 *b, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at_shared(b)), "r"(bytes) : "memory");
}
IN void begin(u64 *b) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at_shared(b)) : "memory"); }
IN bool arrived(u64 *b, u32 phase) {
    u32 ok;
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(ok) : "r"(at_shared(b)), "r"(phase) : "memory");
    return ok;
}
IN void wait_for(u64 *b, u32 phase) { for (int turns = 0; !arrived(b, phase); count(turns)); }
IN void bring(u32 into, const void *from, u32 bytes, u64 *b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(into), "l"(from), "r"(bytes), "r"(at_shared(b)) : "memory");
}

/* v[N] of each of L lanes, N a power of two: the sum of v[i] over the L lanes is in lanes i * L / N .. of them. */
template <int N, int L> IN float summed(float (&v)[N], int lane) {
    int bit = L / 2;
#pragma unroll
    for (int n = N; n > 1; n /= 2, bit /= 2) {
        const bool upper = lane & bit;
#pragma unroll
        for (int i = 0; i < n / 2; i++) {
            const float sent = upper ? v[i] : v[i + n / 2], kept = upper ? v[i + n / 2] : v[i];
            v[i] = kept + __shfl_xor_sync(FULL, sent, bit);
        }
    }
#pragma unroll
    for (int b = L / N / 2; b > 0; b /= 2) v[0] += __shfl_xor_sync(FULL, v[0], b);
    return v[0];
}

/* Rows of a matrix: a warp has 8 * CL columns; CL lanes share them, the 32 / CL sets of lanes have a row each in turn. */
template <int TURNS, int N> IN void dots(float (&sum)[N], const unsigned char *pack, const float (&x)[8], int warp, int lane) {
    const uint4 *w = (const uint4 *)pack + warp * TURNS * 32 + lane;
#pragma unroll
    for (int i = 0; i < N; i++) {
        sum[i] = 0;
        if (i < TURNS) {
            const uint4 p = w[i * 32];
            const float a = fmaf(low(p.x), x[0], fmaf(high(p.x), x[1], fmaf(low(p.y), x[2], high(p.y) * x[3])));
            sum[i] = fmaf(low(p.z), x[4], fmaf(high(p.z), x[5], fmaf(low(p.w), x[6], fmaf(high(p.w), x[7], a))));
        }
    }
}
template <int CL, int N> IN void keep_sums(float (&sum)[N], float *into, int rows, int lane) {
    const float total = summed<N, CL>(sum, lane);
    const int inside = lane % CL, row = lane / CL + 32 / CL * (inside / (CL / N));
    if (inside % (CL / N) == 0 && row < rows) into[row] = total;
}
/* The sum over NW warps of a column: one of a lane. */
template <int NW> IN float over_warps(const float (*part)[SUMS], int column) {
    float a = 0, b = 0;
#pragma unroll
    for (int w = 0; w < NW; w += 2) a += part[w][column], b += part[w + 1][column];
    return a + b;
}
IN float4 four_over_warps(const float (*part)[SUMS]) {
    float4 a = *(const float4 *)(part[0] + 64);
#pragma unroll
    for (int w = 1; w < WARPS; w++) {
        const float4 b = *(const float4 *)(part[w] + 64);
        a.x += b.x, a.y += b.y, a.z += b.z, a.w += b.w;
    }
    return a;
}
IN float gelu(float g) {
    const float u = 0.7978845608028654f * (g + 0.044715f * g * g * g);
    return g - __fdividef(g, __expf(2.0f * u) + 1.0f);          /* of u beyond 44 too: __fdividef(g, inf) is 0 */
}
IN void load8(float (&v)[8], const float *p, int apart = 4) {
    const float4 a = *(const float4 *)p, b = *(const float4 *)(p + apart);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
IN void put8(float *p, const float (&v)[8], int apart = 4) {
    *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]), *(float4 *)(p + apart) = make_float4(v[4], v[5], v[6], v[7]);
}
/* 4 numbers of each half of a row of bf16. */
IN void load8(float (&v)[8], const unsigned short *p, int apart) {
    const uint2 a = *(const uint2 *)p, b = *(const uint2 *)(p + apart);
    v[0] = low(a.x), v[1] = high(a.x), v[2] = low(a.y), v[3] = high(a.y);
    v[4] = low(b.x), v[5] = high(b.x), v[6] = low(b.y), v[7] = high(b.y);
}
IN u32 rounded2(float x, float y) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
    return both;
}
IN void put8(unsigned short *p, const float (&v)[8], int apart) {
    *(uint2 *)p = make_uint2(rounded2(v[0], v[1]), rounded2(v[2], v[3]));
    *(uint2 *)(p + apart) = make_uint2(rounded2(v[4], v[5]), rounded2(v[6], v[7]));
}
IN void widen8(float (&v)[8], const unsigned char *p) {
    const uint4 w = *(const uint4 *)p;
    v[0] = low(w.x), v[1] = high(w.x), v[2] = low(w.y), v[3] = high(w.y);
    v[4] = low(w.z), v[5] = high(w.z), v[6] = low(w.w), v[7] = high(w.w);
}
IN void poll8(float (&v)[8], const float *p, int apart = 4) {
    uint4 a, b;
    int turns = 0;
    do a = peek4(p), b = peek4(p + apart), count(turns);
    while (!__all_sync(FULL, there(a) && there(b)));
    v[0] = bits(a.x), v[1] = bits(a.y), v[2] = bits(a.z), v[3] = bits(a.w);
    v[4] = bits(b.x), v[5] = bits(b.y), v[6] = bits(b.z), v[7] = bits(b.w);
}

/* What a block knows all the time. */
struct Mine { int warp, lane, block; float *exchange; };

IN void mark_done(Mine &me, const Step &s) {
    if (threadIdx.x == 0)
        asm volatile("st.relaxed.cta.shared.s32 [%0], %1;" :: "r"(at_shared(&S.done)), "r"(s.number + 1) : "memory");
}

/* y = W norm2(x + norm1(o)), x + norm1(o) being the next x. The norms' own factors are left to the end, as they come from four
 * sums: of o o, x o w1, o w1 o w1 and x x. So one pass over a row does, and one barrier. A lane has two columns; w1, w2: what the
 * norms multiply by. */
struct Row { float2 x, w2, ow; };
IN float2 two(const float *p) { return *(const float2 *)p; }
IN float2 operator*(float2 a, float2 b) { return make_float2(a.x * b.x, a.y * b.y); }

/* x with what the step before had to add to it. */
IN float2 old_x(int column) {
    float2 x = two(S.x + column);
    const float2 added = two(S.added + column);
    const float factor = S.factor[0];
    x = make_float2(fmaf(factor, added.x, x.x), fmaf(factor, added.y, x.y));
    *(float2 *)(S.x + column) = x;
    return x;
}
template <int PARTS> IN void new_row(Row &row, const Mine &me, const Step &s, float (*part)[SUMS], int column) {
    const float *weights = (const float *)(S.ring + s.aux) + column;
    const float2 w1 = two(weights);
    row.w2 = two(weights + HIDDEN);
    float2 o = make_float2(0, 0);
    if (!s.first) {
        const float *from = me.exchange + s.in + column;
        uint2 v[PARTS];
        bool ok;
        int turns = 0;
        do {
            ok = true;
#pragma unroll
            for (int p = 0; p < PARTS; p++) v[p] = peek2(from + p * HIDDEN);
#pragma unroll
            for (int p = 0; p < PARTS; p++) ok = ok && there(v[p]);
            count(turns);
        } while (!__all_sync(FULL, ok));
#pragma unroll
        for (int p = 0; p < PARTS; p++) o.x += bits(v[p].x), o.y += bits(v[p].y);
    }
    row.ow = o * w1;
    *(float2 *)(S.added + column) = row.ow;
    const float2 x = row.x, ow = row.ow;
    float four[4] = {fmaf(o.x, o.x, o.y * o.y), fmaf(x.x, ow.x, x.y * ow.y), fmaf(ow.x, ow.x, ow.y * ow.y),
                     fmaf(x.x, x.x, x.y * x.y)};
    const float total = summed<4, 32>(four, me.lane);
    if (me.lane % 8 == 0) part[me.warp][64 + me.lane / 8] = total;
}
IN float2 factors(const float (*part)[SUMS]) {
    const float4 of = four_over_warps(part);
    const float r1 = rsqrtf(of.x * (1.0f / HIDDEN) + EPS);
    return make_float2(r1, rsqrtf(fmaf(r1, fmaf(r1, of.z, 2.0f * of.y), of.w) * (1.0f / HIDDEN) + EPS));
}
/* Dot products of ROWS rows with what the lanes of a warp have two columns each of. */
template <int ROWS> IN void row_dots(float2 v, int pack, float *into, int warp, int lane) {
    constexpr int TURNS = (ROWS + 3) / 4, N = TURNS <= 4 ? 4 : 8;
    float *mine = S.row + warp * 64, sum[N], eight[8];
    __syncwarp();
    *(float2 *)(mine + lane * 2) = v;
    __syncwarp();
    load8(eight, mine + lane % 8 * 4, 32);
    dots<TURNS>(sum, S.ring + pack, eight, warp, lane);
    keep_sums<8>(sum, into, ROWS, lane);
}

/* The first half of it: dot products with the old x, while others still make o. */
template <int ROWS> IN void early_rows(const Model &m, Mine &me, const Step &s) {
    const int column = me.warp * 64 + me.lane * 2;
    if (s.first < 0) return;                                /* behind the last layer */
    wait_for(&S.full[s.full], s.phase);
    barrier();                                              /* S.factor is there */
    const float2 v = old_x(column) * two((const float *)(S.ring + s.aux) + HIDDEN + column);
    row_dots<ROWS>(v, s.pack, S.part[s.turn][me.warp], me.warp, me.lane);
}
/* The second half, and what x becomes. PARTS vectors o are added up. PAIRS: rows come in pairs gate, up. */
template <int ROWS, int PARTS, bool PAIRS> IN void norm_rows(const Model &m, Mine &me, const Step &s) {
    const int lane = me.lane, column = me.warp * 64 + lane * 2;
    float (*part)[SUMS] = S.part[s.turn];
    Row row;
    row.x = two(S.x + column);
    new_row<PARTS>(row, me, s, part, column);
    row_dots<ROWS>(row.ow * row.w2, s.pack, part[me.warp] + 32, me.warp, lane);
    barrier();
    mark_done(me, s);
    if (me.warp == FINAL) {
        const float2 r = factors(part);
        if (lane < ROWS && me.block < BLOCKS) {
            float y = r.y * fmaf(r.x, over_warps<WARPS>(part, 32 + lane), over_warps<WARPS>(part, lane));
            if (PAIRS) {
                const float up = __shfl_xor_sync(FULL, y, 1);
                if (lane % 2 == 0) tell(me.exchange + s.out + me.block * (ROWS / 2) + lane / 2, gelu(y) * up);
            } else tell(me.exchange + s.out + me.block * ROWS + lane, y);
        }
        if (lane == 0) S.factor[0] = r.x;
    }
}

/* y = W a; a warp has 8 * CL columns, 8 warps have all. */
template <int CL, int ROWS> IN void last_rows(const Model &m, Mine &me, const Step &s, const float (&a)[8]) {
    constexpr int TURNS = (ROWS * CL + 31) / 32, N = TURNS <= 4 ? 4 : 8;
    float (*part)[SUMS] = S.part[s.turn];
    if (me.warp < 8) {
        float sum[N];
        dots<TURNS>(sum, S.ring + s.pack, a, me.warp, me.lane);
        keep_sums<CL>(sum, part[me.warp], ROWS, me.lane);
    }
    barrier();
    mark_done(me, s);
    if (me.warp == WARPS - 1 && me.lane < ROWS)
        tell(me.exchange + s.out + me.block * ROWS + me.lane, over_warps<8>(part, me.lane));
}
template <int ROWS> IN void plain_rows(const Model &m, Mine &me, const Step &s) {
    if (me.block >= BLOCKS) { barrier(); mark_done(me, s); return; }
    float a[8];
    wait_for(&S.full[s.full], s.phase);
    if (me.warp < 8) poll8(a, me.exchange + s.in + me.warp * 256 + me.lane * 4, 128);
    last_rows<32, ROWS>(m, me, s, a);
}
/* y = W_h (attention of one head, whose SPLITS parts are put together): blocks of a head have its columns. */
template <int ROWS> IN void head_rows(const Model &m, Mine &me, const Step &s) {
    if (me.block >= BLOCKS) { barrier(); mark_done(me, s); return; }
    float a[8];
    wait_for(&S.full[s.full], s.phase);
    if (me.warp < 8) {
        constexpr int EACH = SPLITS / 8;
        const int head = me.block / (BLOCKS / HEADS), split = me.lane / 4;
        const float *of = me.exchange + s.in + (head * SPLITS + split) * DIM + me.warp * 32 + me.lane % 4 * 4;
        const float *tops = me.exchange + s.in + HEADS * SPLITS * DIM + ((me.warp * HEADS + head) * SPLITS + split) * 2;
        uint4 o[EACH][2];
        uint2 t[EACH];
        bool ok;
        int turns = 0;
        do {
            ok = true;
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                o[e][0] = peek4(of + e * 8 * DIM), o[e][1] = peek4(of + e * 8 * DIM + 16);
                t[e] = peek2(tops + e * 16);
            }
#pragma unroll
            for (int e = 0; e < EACH; e++) ok = ok && there(o[e][0]) && there(o[e][1]) && there(t[e]);
            count(turns);
        } while (!__all_sync(FULL, ok));
        float top = NEGATIVE, total = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) a[i] = 0;
#pragma unroll
        for (int e = 0; e < EACH; e++) top = fmaxf(top, bits(t[e].x));
#pragma unroll
        for (int b = 4; b < 32; b *= 2) top = fmaxf(top, __shfl_xor_sync(FULL, top, b));
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const float f = __expf(bits(t[e].x) - top);
            const float4 v = floats(o[e][0]), w = floats(o[e][1]);
            a[0] = fmaf(f, v.x, a[0]), a[1] = fmaf(f, v.y, a[1]), a[2] = fmaf(f, v.z, a[2]), a[3] = fmaf(f, v.w, a[3]);
            a[4] = fmaf(f, w.x, a[4]), a[5] = fmaf(f, w.y, a[5]), a[6] = fmaf(f, w.z, a[6]), a[7] = fmaf(f, w.w, a[7]);
            total = fmaf(f, bits(t[e].y), total);
        }
#pragma unroll
        for (int b = 4; b < 32; b *= 2) {
            total += __shfl_xor_sync(FULL, total, b);
#pragma unroll
            for (int i = 0; i < 8; i++) a[i] += __shfl_xor_sync(FULL, a[i], b);
        }
        const float f = __fdividef(1.0f, total);
#pragma unroll
        for (int i = 0; i < 8; i++) a[i] *= f;
    }
    last_rows<4, ROWS>(m, me, s, a);
}

/* Norm, weight and rotation of a row of DIM numbers: a lane has 4 of each half. */
#define HALF (DIM / 2)
IN void normed(float (&v)[8], const float *weights, const float *rotation, int lane, float scale) {
    float ss = 0, w[8], turn[8];
#pragma unroll
    for (int i = 0; i < 8; i++) ss = fmaf(v[i], v[i], ss);
    load8(w, weights + lane * 4, HALF), load8(turn, rotation + lane * 4, HALF);
#pragma unroll
    for (int b = 16; b > 0; b /= 2) ss += __shfl_xor_sync(FULL, ss, b);
    const float r = rsqrtf(ss * (1.0f / DIM) + EPS) * scale;
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] *= r * w[i];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float a = v[i], b = v[i + 4];
        v[i] = fmaf(a, turn[i], -b * turn[i + 4]), v[i + 4] = fmaf(b, turn[i], a * turn[i + 4]);
    }
}
IN float dot8(const float (&a)[8], const float (&b)[8]) {
    float d = 0, e = 0;
#pragma unroll
    for (int i = 0; i < 8; i += 2) d = fmaf(a[i], b[i], d), e = fmaf(a[i + 1], b[i + 1], e);
    return d + e;
}

/* A block has a head and every SPLITS-th set of KEY_WARPS keys, a key of each warp. The newest key is one of warp KEY_WARPS of the
 * last split; the last warp makes the query. Of the keys that were there before, up to TAKEN of a warp come by the ring. */
IN void attend(const Model &m, Mine &me, const Step &s) {
    constexpr int APART = KEY_WARPS * SPLITS;
    const int position = S.position;
    if (me.block >= HEADS * SPLITS) {
        mark_done(me, s);
        return;
    }
    const int lane = me.lane, warp = me.warp, head = me.block / SPLITS, split = me.block % SPLITS;
    const float *from = me.exchange + s.in + lane * 4;
    const bool newest = warp == KEY_WARPS && split == SPLITS - 1;
    float top = NEGATIVE, total = 0, mix[8];
    float k[TAKEN][8], v[TAKEN][8];
    const int begin = s.low && position + 1 > s.low ? position + 1 - s.low : 0;
    int left = warp < KEY_WARPS ? position - (begin + split * KEY_WARPS + warp) : 0;      /* of our keys and those behind them */
    wait_for(&S.full[s.full], s.phase);
    if (left > 0) {
        const Cached *here = (const Cached *)(S.ring + s.pack) + warp * DIM + lane * 4;
#pragma unroll
        for (int t = 0; t < TAKEN; t++) {
            const Cached *p = here + (t * APART < left ? t * KEY_WARPS * DIM : 0);
            load8(k[t], p, HALF), load8(v[t], p + TAKEN * KEY_WARPS * DIM, HALF);
        }
    } else if (newest || warp == WARPS - 1) {
        poll8(k[0], from + (newest ? HEADS : head) * DIM, HALF);
        normed(k[0], (const float *)(S.ring + s.aux) + (newest ? DIM : 0), S.rotation[s.which], lane, newest ? 1.0f : SCALE);
        if (newest) {
            poll8(v[0], from + (HEADS + 1) * DIM, HALF);
            if (head == 0) put8(m.caches[2 * s.layer + 1] + (long long)position * DIM + lane * 4, v[0], HALF);
            left = 1;
#pragma unroll
            for (int t = 1; t < TAKEN; t++)
#pragma unroll
                for (int i = 0; i < 8; i++) k[t][i] = v[t][i] = v[0][i];
        }
        if (!newest) put8(S.query + lane * 4, k[0], HALF);
        else if (head == 0) put8(m.caches[2 * s.layer] + (long long)position * DIM + lane * 4, k[0], HALF);
    }
    barrier();
#pragma unroll
    for (int i = 0; i < 8; i++) mix[i] = 0;
    for (int at = position - left; left > 0;) {
        float score[TAKEN], q[8];
        load8(q, S.query + lane * 4, HALF);
#pragma unroll
        for (int t = 0; t < TAKEN; t++) score[t] = dot8(q, k[t]);
        float of_key = summed<TAKEN, 32>(score, lane);      /* key lane / (32 / TAKEN) */
        if (lane / (32 / TAKEN) * APART >= left) of_key = NEGATIVE;
        float best = fmaxf(of_key, top);
#pragma unroll
        for (int b = 16; b >= 32 / TAKEN; b /= 2) best = fmaxf(best, __shfl_xor_sync(FULL, best, b));
        const float f = __expf(top - best), e = __expf(of_key - best);
        total *= f;
#pragma unroll
        for (int i = 0; i < 8; i++) mix[i] *= f;
#pragma unroll
        for (int t = 0; t < TAKEN; t++) {
            const float g = __shfl_sync(FULL, e, t * (32 / TAKEN));
            total += g;
#pragma unroll
            for (int i = 0; i < 8; i++) mix[i] = fmaf(g, v[t][i], mix[i]);
        }
        top = best;
        left -= TAKEN * APART, at += TAKEN * APART;
        if (left > 0) {                                     /* more keys than the ring has had room for */
            const Cached *of_k = m.caches[2 * s.layer] + (long long)at * DIM + lane * 4;
            const Cached *of_v = m.caches[2 * s.layer + 1] + (long long)at * DIM + lane * 4;
#pragma unroll
            for (int t = 0; t < TAKEN; t++) {
                const int away = t * APART < left ? t * APART * DIM : 0;
                load8(k[t], of_k + away, HALF), load8(v[t], of_v + away, HALF);
            }
        }
    }
    const int parts = split == SPLITS - 1 ? KEY_WARPS + 1 : KEY_WARPS;
    if (warp < parts) {
        put8(S.mixed[warp] + lane * 4, mix, HALF);
        if (lane == 0) S.tops[warp] = top, S.totals[warp] = total;
    }
    barrier();
    mark_done(me, s);
    if (warp < DIM / 32) {
        const float t = lane < parts ? S.tops[lane] : NEGATIVE;
        float best = t;
#pragma unroll
        for (int b = 8; b > 0; b /= 2) best = fmaxf(best, __shfl_xor_sync(FULL, best, b));
        const float f = t == NEGATIVE ? 0.0f : __expf(t - best);
        float sum = 0;
#pragma unroll
        for (int w = 0; w < KEY_WARPS; w++) sum = fmaf(__shfl_sync(FULL, f, w), S.mixed[w][threadIdx.x], sum);
        if (parts > KEY_WARPS) sum = fmaf(__shfl_sync(FULL, f, KEY_WARPS), S.mixed[KEY_WARPS][threadIdx.x], sum);
        tell(me.exchange + s.out + me.block * DIM + threadIdx.x, sum);
        if (warp == 0) {
            float all = lane < parts ? f * S.totals[lane] : 0.0f;
#pragma unroll
            for (int b = 8; b > 0; b /= 2) all += __shfl_xor_sync(FULL, all, b);
            if (lane < 8)                                   /* one for each warp that reads */
                tell2(me.exchange + s.out + HEADS * SPLITS * DIM + (lane * HEADS * SPLITS + me.block) * 2, best, all);
        }
    }
}

/* NaN before all, then the larger; of equal ones the first. */
IN bool better(float v, int at, float top, int place) {
    return v > top || (v != v && top == top) || ((v == top || (v != v && top != top)) && at < place);
}
IN int first_set(int warp, int block) { return (int)((long long)(block * WARPS + warp) * SETS / (GRID * WARPS)); }
/* A set of the table: it is read once in a launch, so it leaves the L2 cache first. */
IN void bring_set(const Model &m, int set, int slot, u64 *b) {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    arm(b, SET_BYTES);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 :: "r"(at_shared(S.ring + slot * SET_BYTES)), "l"(m.table + (long long)set * SET * HIDDEN), "r"(SET_BYTES),
                 "r"(at_shared(b)), "l"(policy) : "memory");
}

/* The largest of all rows' products with norm2(x + norm1(o)): a warp streams its own rows, SET of them at a time. */
IN void likeliest(const Model &m, Mine &me, const Step &s) {
    const int set_in_use = S.set;
    const int lane = me.lane, warp = me.warp, column = warp * 64 + lane * 2;
    float (*part)[SUMS] = S.part[s.turn];
    wait_for(&S.full[s.full], s.phase);
    Row of;
    of.x = old_x(column);
    new_row<1>(of, me, s, part, column);
    barrier();
    mark_done(me, s);
    const float2 r = factors(part);
    float *row = S.row;
    *(float2 *)(row + column) = make_float2(r.y * of.w2.x * fmaf(r.x, of.ow.x, of.x.x),
                                            r.y * of.w2.y * fmaf(r.x, of.ow.y, of.x.y));
    barrier();
    float4 h[HIDDEN / 128];
#pragma unroll
    for (int i = 0; i < HIDDEN / 128; i++) h[i] = *(const float4 *)(row + i * 128 + lane * 4);
    const int begin = first_set(warp, me.block);
    const int end = warp + 1 < WARPS ? first_set(warp + 1, me.block) : first_set(0, me.block + 1);
    float top = NEGATIVE;
    int place = 0x7fffffff;
    u32 phases = 0;
    int stage = 0;
    float4 *clear = (float4 *)(m.exchange + (long long)(1 - set_in_use) * EXCHANGE);
    int cleared = me.block * 32 * WARPS + threadIdx.x;
    const float4 unset = make_float4(bits(UNSET), bits(UNSET), bits(UNSET), bits(UNSET));
    for (int set = begin; set < end; set++) {
        u64 *b = &S.stage[warp][stage];
        const unsigned char *rows = S.ring + (stage * WARPS + warp) * SET_BYTES + lane * 8;
        wait_for(b, phases >> stage & 1);
        phases ^= 1u << stage;
        float sum[SET];
#pragma unroll
        for (int r = 0; r < SET; r++) {
            sum[r] = 0;
#pragma unroll
            for (int i = 0; i < HIDDEN / 128; i++) {
                const uint2 p = *(const uint2 *)(rows + r * HIDDEN * 2 + i * 256);
                sum[r] = fmaf(low(p.x), h[i].x, sum[r]), sum[r] = fmaf(high(p.x), h[i].y, sum[r]);
                sum[r] = fmaf(low(p.y), h[i].z, sum[r]), sum[r] = fmaf(high(p.y), h[i].w, sum[r]);
            }
        }
        __syncwarp();
        if (lane == 0 && set + STAGES < end) bring_set(m, set + STAGES, stage * WARPS + warp, b);
        if (cleared < EXCHANGE / 4) clear[cleared] = unset, cleared += GRID * 32 * WARPS;
        const float v = summed<SET, 32>(sum, lane);
        const int at = set * SET + lane / (32 / SET);
        if (better(v, at, top, place)) top = v, place = at;
        if (++stage == STAGES) stage = 0;
    }
    for (; cleared < EXCHANGE / 4; cleared += GRID * 32 * WARPS) clear[cleared] = unset;
#pragma unroll
    for (int b = 16; b > 0; b /= 2) {
        const float v = __shfl_xor_sync(FULL, top, b);
        const int at = __shfl_xor_sync(FULL, place, b);
        if (better(v, at, top, place)) top = v, place = at;
    }
    if (lane == 0) part[warp][0] = top, part[warp][1] = __int_as_float(place);
    barrier();
    if (warp == 0) {
        top = lane < WARPS ? part[lane][0] : NEGATIVE, place = lane < WARPS ? __float_as_int(part[lane][1]) : 0x7fffffff;
#pragma unroll
        for (int b = 16; b > 0; b /= 2) {
            const float v = __shfl_xor_sync(FULL, top, b);
            const int at = __shfl_xor_sync(FULL, place, b);
            if (better(v, at, top, place)) top = v, place = at;
        }
        if (lane == 0) tell2(me.exchange + s.out + me.block * 2, top + 0.0f, __int_as_float(place));
        if (me.block == 0) {
            top = NEGATIVE, place = 0x7fffffff;
            for (int i = 0; i < (GRID + 31) / 32; i++) {
                const int of = i * 32 + lane < GRID ? i * 32 + lane : GRID - 1;
                uint2 w = peek2(me.exchange + s.out + of * 2);
                for (int turns = 0; !__all_sync(FULL, there(w)); count(turns)) w = peek2(me.exchange + s.out + of * 2);
                if (better(bits(w.x), w.y, top, place)) top = bits(w.x), place = w.y;
            }
#pragma unroll
            for (int b = 16; b > 0; b /= 2) {
                const float v = __shfl_xor_sync(FULL, top, b);
                const int at = __shfl_xor_sync(FULL, place, b);
                if (better(v, at, top, place)) top = v, place = at;
            }
            if (lane == 0) m.token[0] = place, m.top[0] = top;
        }
    }
}

IN void wait_done(int steps) {
    int done;
    int turns = 0;
    do {
        asm volatile("ld.relaxed.cta.shared.s32 %0, [%1];" : "=r"(done) : "r"(at_shared(&S.done)) : "memory");
        if (done < steps) __nanosleep(40);
        count(turns);
    } while (done < steps);
}
/* What one thread of the last warp does: each step's weights into the ring, a piece at a time, no faster than one in PACE cycles,
 * as copies on their way slow the words that blocks wait for. */
IN void fetch(const Model &m, int block, int position) {
    long long next = clock64();
    for (int step = 0; step < STEPS; step++) {
        const Step &s = S.steps[step];
        if (!s.loads) continue;
        if (s.wait > 0) wait_done(s.wait);
        const int bytes = block < BLOCKS ? s.bytes : 0;
        if (s.attends) {
            const int begin = s.low && position + 1 > s.low ? position + 1 - s.low : 0, row = DIM * CACHED_BYTES, split = block % SPLITS;
            int rows[TAKEN], all = 0;                       /* of each piece of the keys */
#pragma unroll
            for (int t = 0; t < TAKEN; t++) {
                const int left = block < HEADS * SPLITS ? position - (begin + split * KEY_WARPS + t * KEY_WARPS * SPLITS) : 0;
                rows[t] = left < 0 ? 0 : left < KEY_WARPS ? left : KEY_WARPS, all += rows[t];
            }
            arm(&S.full[s.full], 2 * all * row + s.aux_bytes);
            bring(at_shared(S.ring + s.aux), m.auxes + s.aux_at, s.aux_bytes, &S.full[s.full]);
#pragma unroll
            for (int t = 0; t < TAKEN; t++)
                for (int which = 0; which < 2 && rows[t]; which++) {
                    while (clock64() < next);
                    const long long key = begin + split * KEY_WARPS + t * KEY_WARPS * SPLITS;
                    bring(at_shared(S.ring + s.pack + (which * TAKEN + t) * KEY_WARPS * row),
                          m.caches[2 * s.layer + which] + key * DIM, rows[t] * row, &S.full[s.full]);
                    next = clock64() + 2 * PACE;
                }
            continue;
        }
        arm(&S.full[s.full], bytes + s.aux_bytes);
        if (s.aux_bytes) bring(at_shared(S.ring + s.aux), m.auxes + s.aux_at, s.aux_bytes, &S.full[s.full]);
        for (int at = 0; at < bytes; at += PIECE) {
            while (clock64() < next);
            const int part = bytes - at < PIECE ? bytes - at : PIECE;
            bring(at_shared(S.ring + s.pack + at), m.packs + s.pack_at + (long long)block * bytes + at, part, &S.full[s.full]);
            const long long now = clock64();
            next = (now - next > 4 * PACE ? now : next) + (step < FIRST_STEPS ? 0 : PACE);
        }
    }
    for (int i = 0; i < WARPS * STAGES; i++) {
        const int slot = prefill_order[i], warp = slot % WARPS, stage = slot / WARPS;
        wait_done(prefill_waits[slot]);
        while (clock64() < next);
        bring_set(m, first_set(warp, block) + stage, slot, &S.stage[warp][stage]);
        next = clock64() + PACE;
    }
}

/* What a block is, read again in each step: no address that is made of it is kept over the steps. */
IN Mine mine() {
    int thread, block;
    asm volatile("mov.u32 %0, %%tid.x; mov.u32 %1, %%ctaid.x;" : "=r"(thread), "=r"(block));
    return {thread / 32, thread % 32, block, *(float *volatile *)&S.exchange};
}
#define STEP(n, call) { const Step &s = at[n]; Mine me = mine(); call(m, me, s); }

extern "C" __global__ void __launch_bounds__(THREADS, 1) whole(const __grid_constant__ Model m) {
    const int id = m.id[0], position = m.position;
    const bool known = id >= 0 && id < SETS * SET;          /* else it is embedded as zeros, as a gather says */
    if (threadIdx.x == 0) {
        S.position = position, S.set = m.set, S.exchange = m.exchange + (long long)m.set * EXCHANGE;
        for (int i = 0; i < SLOTS; i++) begin(&S.full[i]);
        for (int i = 0; i < WARPS * STAGES; i++) begin(&S.stage[0][0] + i);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        S.done = 0;
    }
    for (int i = threadIdx.x; i < (int)(sizeof(S.steps) / 16); i += THREADS) ((int4 *)S.steps)[i] = ((const int4 *)m.steps)[i];
    for (int i = threadIdx.x; i < 2 * DIM; i += THREADS)
        S.rotation[i / DIM][i % DIM] = m.rotations[((long long)(i / DIM) * ROOM + position) * DIM + i % DIM];
    __syncthreads();
    if (threadIdx.x / 32 == WARPS) {
        if (threadIdx.x % 32 == 0) fetch(m, blockIdx.x, position);
        return;
    }
    if (threadIdx.x % 32 < 8) {
        const int column = threadIdx.x / 32 * 64 + threadIdx.x % 32 * 8;
        float x[8];
        widen8(x, (const unsigned char *)(m.table + (long long)(known ? id : 0) * HIDDEN + column));
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] *= known ? EMBEDDED : 0.0f;
        put8(S.x + column, x);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = 0;
        put8(S.added + column, x);
        if (threadIdx.x == 0) S.factor[0] = 0;
    }
    barrier();
    const Step *at = S.steps;
STEPS_IN_ORDER
}
