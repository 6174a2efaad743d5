/* tensor_cores.cuh: products of tiles, and the copies that feed them, by the instructions of each generation:
 * - compute capability 8.0: mma.sync of 16 x 8 x 16, ldmatrix, copies of 16 bytes that a thread does not wait for (cp.async);
 * - 9.0 (compiled for sm_90a): wgmma, whose operands are tiles in shared memory, tiles copied by the device as a map says (TMA),
 *   barriers in shared memory on which both meet (mbarrier), registers moved between warpgroups.
 * A number called `shared` is an address within shared memory (`shared_at`). What has a parity waits for the end of the phase of
 * that parity: a barrier begins in phase 0. */
#ifndef TG_TENSOR_CORES_CUH
#define TG_TENSOR_CORES_CUH
#include "float_parts.cuh"

struct Bf16 {};                                                     /* which 16 bits are meant */
struct F16 {};
struct E4m3 {};                                                     /* … and which eight */
struct E5m2 {};
template <class A, class B> struct Eight {};                        /* eight bits on the left and on the right */
struct Tf32 {};                                                     /* floats, of which a copied box has the upper 19 bits */

TG_INLINE uint32_t shared_at(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
TG_INLINE uint32_t two_of(Bf16, float low, float high) {             /* rounded, low in the lower half */
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
TG_INLINE uint32_t two_of(F16, float low, float high) {
    uint32_t out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

TG_INLINE float low_of(Bf16, uint32_t x) { return float_of(x << 16); }     /* of two, as floats */
TG_INLINE float high_of(Bf16, uint32_t x) { return float_of(x & 0xffff0000u); }
TG_INLINE float low_of(F16, uint32_t x) { return f32_of_f16((uint16_t)x); }
TG_INLINE float high_of(F16, uint32_t x) { return f32_of_f16((uint16_t)(x >> 16)); }

/* Words of four lanes that follow each other: lane t has word t of each of them then. */
TG_INLINE void turn_quad(uint32_t (&v)[4], int t) {
#pragma unroll
    for (int s = 1; s <= 2; s *= 2)
#pragma unroll
        for (int p = 0; p < 4; p++) {
            if (p & s) continue;
            const uint32_t got = __shfl_xor_sync(0xffffffffu, t & s ? v[p] : v[p | s], s);
            if (t & s) v[p] = got;
            else v[p | s] = got;
        }
}

/* ---- 8.0: copies that are not waited for ---- */

/* 16 bytes from global to shared memory; of them `there` bytes are read (0 to 16), the others are 0. */
TG_INLINE void copy_16(uint32_t shared, const void *from, int there = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(there) : "memory");
}

/* ---- 8.0: fragments and their products ---- */

/* Four blocks of 8 x 8 elements of 16 bits; lane l gives the address of row l % 8 of block l / 8. Of each block a lane has row
 * l / 4, columns 2 (l % 4) and the next; across: the block is turned. */
TG_INLINE void four_blocks(uint32_t (&out)[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(shared) : "memory");
}
TG_INLINE void four_blocks_across(uint32_t (&out)[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(shared) : "memory");
}
/* d += a b of 16 x 16 and 16 x 8. With g = lane / 4, t = lane % 4: a has (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), two
 * columns each; b (2t, g), (2t + 8, g), two rows each; d (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). */
TG_INLINE void add_product(Bf16, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
TG_INLINE void add_product(F16, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- 9.0 ---- */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Barriers of 8 bytes in shared memory: a phase ends when as many have arrived as were named, and all bytes that were announced. */
TG_INLINE void barrier_begin(uint32_t shared, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared), "r"(arrivals) : "memory");
}
TG_INLINE void barriers_begun() {                                   /* then a barrier of the block, or of the cluster */
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
TG_INLINE void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* All blocks of a cluster wait for each other, by threads that have not ended; what they wrote into shared memory is seen then. */
TG_INLINE void cluster_meets() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* Of shared memory of another block of the cluster, at this block's address. */
template <int N> TG_INLINE Pack<float, N> floats_of(uint32_t shared, uint32_t block) {
    static_assert(N == 1 || N == 4);
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(block));
    Pack<float, N> found;
    if (N == 1) asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(found.at[0]) : "r"(there) : "memory");
    else asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                      : "=f"(found.at[0]), "=f"(found.at[1 % N]), "=f"(found.at[2 % N]), "=f"(found.at[3 % N]) : "r"(there) : "memory");
    return found;
}
TG_INLINE void arrive_expecting(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
TG_INLINE bool has_ended(uint32_t barrier, uint32_t parity) {
    uint32_t ended;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(ended) : "r"(barrier), "r"(parity) : "memory");
    return ended;
}
TG_INLINE void wait_for(uint32_t barrier, uint32_t parity) {
    while (!has_ended(barrier, parity)) {}
}
/* Some warps of a block wait for each other; number: 1 to 15. */
TG_INLINE void meet(int number, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }
TG_INLINE void let_pass(int number, int threads) {                  /* those that wait there; it does not wait */
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
template <int COUNT> TG_INLINE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> TG_INLINE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }

/* Maps of arrays in global memory, boxes of which the device copies to shared memory: made by the host, and given to a kernel by value
 * (`__grid_constant__`). Of a box 128 bytes lie along the fastest axis, which are a row of shared memory; its packs of 16 bytes are moved
 * by the row (swizzle of 128 bytes). What is outside of the array is 0. */
template <int COUNT> struct __align__(64) TensorMaps {
    struct {
        char bytes[128];
    } at[COUNT];
};
/* A box, from these elements on; its bytes arrive at the barrier. */
TG_INLINE void copy_box(uint32_t shared, const void *map, uint32_t barrier, int at0, int at1, int at2) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
                 ::"r"(shared), "l"(map), "r"(barrier), "r"(at0), "r"(at1), "r"(at2) : "memory");
}
TG_INLINE void copy_box(uint32_t shared, const void *map, uint32_t barrier, int at0, int at1, int at2, int at3, int at4) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
                 ::"r"(shared), "l"(map), "r"(barrier), "r"(at0), "r"(at1), "r"(at2), "r"(at3), "r"(at4) : "memory");
}

/* ---- products of a warpgroup: 64 rows, N columns, 16 summed, or 32 of eight bits ---- */

/* A tile in rows of 128 bytes whose packs are moved as boxes are, from a multiple of 1024 bytes on.
 * Summed along its rows: its other axis goes from row to row (8 rows: 1024 bytes); what is summed next is 32 bytes on.
 * Summed across (`across`; of 16 bits): its other axis lies along the rows, 64 elements in each, of which the next 64 are `apart` bytes on; the
 * next 16 that are summed are 16 rows on, 2048 bytes. */
TG_INLINE uint64_t tile_along(uint32_t shared) {
    return (uint64_t)(shared >> 4 & 0x3fff) | 1ULL << 16 | 64ULL << 32 | 1ULL << 62;
}
TG_INLINE uint64_t tile_across(uint32_t shared, uint32_t apart) {
    return (uint64_t)(shared >> 4 & 0x3fff) | (uint64_t)(apart >> 4 & 0x3fff) << 16 | 64ULL << 32 | 1ULL << 62;
}
/* `begin` comes before the first product after registers of its accumulator, or of its left operand, were written; then products,
 * then the end of a group of them. A group is waited for before its accumulator is read, or its tiles are written over. */
TG_INLINE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TG_INLINE void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> TG_INLINE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
/* The compiler keeps what it knows of accumulators, and of left operands in registers, on this side. */
template <int COUNT> TG_INLINE void hold(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int COUNT> TG_INLINE void hold(uint32_t (&a)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(a[i])::"memory");
}

/* Warpgroup<T, N>::add: d = a b + (keep ? d : 0), of a and b tiles, or a in registers as `add_product` has it, 16 rows of each warp.
 * With warp w of the group and g, t as there, row 16 w + g + 8 h, column 8 j + 2 t + e is d[4 j + 2 h + e]. */
template <class T, int N> struct Warpgroup;
#define TG_WARPGROUP(T, TYPE, N, LIST, I0, I1, I2, I3, I4, I5, I6, ...) \
    template <> struct Warpgroup<T, N> { \
        template <int A_ACROSS, int B_ACROSS> static TG_INLINE void add(float (&d)[N / 2], uint64_t a, uint64_t b, int keep) { \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #I2 ", 0;\n" \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE \
                         " {" LIST "}, %" #I0 ", %" #I1 ", p, 1, 1, %" #I3 ", %" #I4 ";\n}" \
                         : __VA_ARGS__ : "l"(a), "l"(b), "r"(keep), "n"(A_ACROSS), "n"(B_ACROSS)); \
        } \
        template <int B_ACROSS> static TG_INLINE void add(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int keep) { \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #I5 ", 0;\n" \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE \
                         " {" LIST "}, {%" #I0 ", %" #I1 ", %" #I2 ", %" #I3 "}, %" #I4 ", p, 1, 1, %" #I6 ";\n}" \
                         : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(B_ACROSS)); \
        } \
    };
#define TG_NAMES0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TG_NAMES16 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TG_NAMES32 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TG_NAMES48 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TG_NAMES64 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define TG_NAMES80 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TG_NAMES96 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define TG_NAMES112 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TG_WORDS0 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
    "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
    "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define TG_WORDS16 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), \
    "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
    "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define TG_WORDS32 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), \
    "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), \
    "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define TG_WORDS48 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), \
    "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), \
    "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define TG_WORDS64 "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), \
    "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), \
    "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define TG_WORDS80 "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), \
    "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), \
    "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define TG_WORDS96 "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), \
    "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), \
    "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define TG_WORDS112 "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), \
    "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), \
    "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
#define TG_NAMES_4 "%0, %1, %2, %3"
#define TG_WORDS_4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define TG_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TG_WORDS_8 TG_WORDS_4, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define TG_NAMES_16 TG_NAMES0
#define TG_WORDS_16 TG_WORDS0
#define TG_NAMES_32 TG_NAMES_16 ", " TG_NAMES16
#define TG_WORDS_32 TG_WORDS_16, TG_WORDS16
#define TG_NAMES_40 TG_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TG_WORDS_40 TG_WORDS_32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define TG_NAMES_48 TG_NAMES_32 ", " TG_NAMES32
#define TG_WORDS_48 TG_WORDS_32, TG_WORDS32
#define TG_NAMES_64 TG_NAMES_48 ", " TG_NAMES48
#define TG_WORDS_64 TG_WORDS_48, TG_WORDS48
#define TG_NAMES_80 TG_NAMES_64 ", " TG_NAMES64
#define TG_WORDS_80 TG_WORDS_64, TG_WORDS64
#define TG_NAMES_96 TG_NAMES_80 ", " TG_NAMES80
#define TG_WORDS_96 TG_WORDS_80, TG_WORDS80
#define TG_NAMES_112 TG_NAMES_96 ", " TG_NAMES96
#define TG_WORDS_112 TG_WORDS_96, TG_WORDS96
#define TG_NAMES_128 TG_NAMES_112 ", " TG_NAMES112
#define TG_WORDS_128 TG_WORDS_112, TG_WORDS112
/* Of eight bits or of 32, both tiles summed along their rows. */
typedef Eight<E4m3, E4m3> E4m3s;
typedef Eight<E4m3, E5m2> E4m3ByE5m2;
typedef Eight<E5m2, E4m3> E5m2ByE4m3;
typedef Eight<E5m2, E5m2> E5m2s;
#define TG_WARPGROUP_ALONG(T, K, TYPES, N, LIST, I0, I1, I2, ...) \
    template <> struct Warpgroup<T, N> { \
        template <int A_ACROSS, int B_ACROSS> static TG_INLINE void add(float (&d)[N / 2], uint64_t a, uint64_t b, int keep) { \
            static_assert(A_ACROSS == 0 && B_ACROSS == 0); \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #I2 ", 0;\n" \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k" #K ".f32." TYPES \
                         " {" LIST "}, %" #I0 ", %" #I1 ", p, 1, 1;\n}" \
                         : __VA_ARGS__ : "l"(a), "l"(b), "r"(keep)); \
        } \
    };
#define TG_WARPGROUPS_ALONG(...) \
    TG_WARPGROUP_ALONG(E4m3s, 32, "e4m3.e4m3", __VA_ARGS__) \
    TG_WARPGROUP_ALONG(E4m3ByE5m2, 32, "e4m3.e5m2", __VA_ARGS__) \
    TG_WARPGROUP_ALONG(E5m2ByE4m3, 32, "e5m2.e4m3", __VA_ARGS__) \
    TG_WARPGROUP_ALONG(E5m2s, 32, "e5m2.e5m2", __VA_ARGS__) \
    TG_WARPGROUP_ALONG(Tf32, 8, "tf32.tf32", __VA_ARGS__)
TG_WARPGROUPS_ALONG(16, TG_NAMES_8, 8, 9, 10, TG_WORDS_8)
TG_WARPGROUPS_ALONG(32, TG_NAMES_16, 16, 17, 18, TG_WORDS_16)
TG_WARPGROUPS_ALONG(64, TG_NAMES_32, 32, 33, 34, TG_WORDS_32)
TG_WARPGROUPS_ALONG(128, TG_NAMES_64, 64, 65, 66, TG_WORDS_64)
TG_WARPGROUPS_ALONG(256, TG_NAMES_128, 128, 129, 130, TG_WORDS_128)
TG_WARPGROUP(Bf16, "bf16", 8, TG_NAMES_4, 4, 5, 6, 7, 8, 9, 10, TG_WORDS_4)
TG_WARPGROUP(F16, "f16", 8, TG_NAMES_4, 4, 5, 6, 7, 8, 9, 10, TG_WORDS_4)
TG_WARPGROUP(Bf16, "bf16", 16, TG_NAMES_8, 8, 9, 10, 11, 12, 13, 14, TG_WORDS_8)
TG_WARPGROUP(F16, "f16", 16, TG_NAMES_8, 8, 9, 10, 11, 12, 13, 14, TG_WORDS_8)
TG_WARPGROUP(Bf16, "bf16", 32, TG_NAMES_16, 16, 17, 18, 19, 20, 21, 22, TG_WORDS_16)
TG_WARPGROUP(F16, "f16", 32, TG_NAMES_16, 16, 17, 18, 19, 20, 21, 22, TG_WORDS_16)
TG_WARPGROUP(Bf16, "bf16", 64, TG_NAMES_32, 32, 33, 34, 35, 36, 37, 38, TG_WORDS_32)
TG_WARPGROUP(F16, "f16", 64, TG_NAMES_32, 32, 33, 34, 35, 36, 37, 38, TG_WORDS_32)
TG_WARPGROUP(Bf16, "bf16", 80, TG_NAMES_40, 40, 41, 42, 43, 44, 45, 46, TG_WORDS_40)
TG_WARPGROUP(F16, "f16", 80, TG_NAMES_40, 40, 41, 42, 43, 44, 45, 46, TG_WORDS_40)
TG_WARPGROUP(Bf16, "bf16", 96, TG_NAMES_48, 48, 49, 50, 51, 52, 53, 54, TG_WORDS_48)
TG_WARPGROUP(F16, "f16", 96, TG_NAMES_48, 48, 49, 50, 51, 52, 53, 54, TG_WORDS_48)
TG_WARPGROUP(Bf16, "bf16", 128, TG_NAMES_64, 64, 65, 66, 67, 68, 69, 70, TG_WORDS_64)
TG_WARPGROUP(F16, "f16", 128, TG_NAMES_64, 64, 65, 66, 67, 68, 69, 70, TG_WORDS_64)
TG_WARPGROUP(Bf16, "bf16", 192, TG_NAMES_96, 96, 97, 98, 99, 100, 101, 102, TG_WORDS_96)
TG_WARPGROUP(F16, "f16", 192, TG_NAMES_96, 96, 97, 98, 99, 100, 101, 102, TG_WORDS_96)
TG_WARPGROUP(Bf16, "bf16", 256, TG_NAMES_128, 128, 129, 130, 131, 132, 133, 134, TG_WORDS_128)
TG_WARPGROUP(F16, "f16", 256, TG_NAMES_128, 128, 129, 130, 131, 132, 133, 134, TG_WORDS_128)

#endif
#endif
