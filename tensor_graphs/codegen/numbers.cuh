/* numbers.cuh: scalar functions of generated CUDA kernels, by the names that those in C have (numbers.h, vec.h), packs of elements
 * that are loaded at once, and reductions over the threads that share a turn. Compiled by NVRTC: no header of the system is there. */
#ifndef TG_NUMBERS_CUH
#define TG_NUMBERS_CUH

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define INT8_MAX 127
#define INT16_MAX 32767
#define INT32_MAX 2147483647
#define INT64_MAX 9223372036854775807LL
#define INT8_MIN (-INT8_MAX - 1)
#define INT16_MIN (-INT16_MAX - 1)
#define INT32_MIN (-INT32_MAX - 1)
#define INT64_MIN (-INT64_MAX - 1)
#define UINT8_MAX 0xffu
#define UINT16_MAX 0xffffu
#define UINT32_MAX 0xffffffffu
#define UINT64_MAX 0xffffffffffffffffULL
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)
#define TG_INLINE __device__ __forceinline__

/* ---- launches ---- */

/* Where launches follow each other, lets the next be placed, then waits for all that those before have written. What a kernel only
 * reads, after this, is not `__restrict__`: such is read by a path whose cache this does not empty, and the memory may have held
 * other values when an earlier kernel read it on the same multiprocessor. */
TG_INLINE void after_those_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* Brings a line of memory near, whoever writes it: nothing is read. */
TG_INLINE void bring(const void *at) {
#ifdef __CUDA_ARCH__
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}

/* ---- copies to shared memory that a thread does not wait for ---- */

#ifdef __CUDA_ARCH__
/* BYTES (4, 8 or 16, and both addresses are multiples of it) from global memory. Who asked may read them after copies_wait, the others
 * of its block after a barrier behind that. */
template <int BYTES> TG_INLINE void copy_ahead(void *to, const void *from) {
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(to);
    if (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(from), "n"(BYTES) : "memory");
}
TG_INLINE void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }      /* of a group of copies */
template <int LEFT> TG_INLINE void copies_wait() {                  /* until LEFT groups of this thread are under way, at most */
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
#endif

/* ---- bits and narrow floats ---- */

TG_INLINE uint32_t bits_of(float x) { return __float_as_uint(x); }
TG_INLINE float float_of(uint32_t x) { return __uint_as_float(x); }
TG_INLINE uint64_t bits_of_f64(double x) { return (uint64_t)__double_as_longlong(x); }
TG_INLINE double f64_of(uint64_t x) { return __longlong_as_double((int64_t)x); }
TG_INLINE float bf16_to_f32(uint16_t x) { return __uint_as_float((uint32_t)x << 16); }
TG_INLINE uint16_t bf16_of_f32(float x) {
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
TG_INLINE float f32_of_f16(uint16_t x) {
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(x));
    return out;
}
TG_INLINE uint16_t f16_of_f32(float x) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#include "eight_bits.h"

/* ---- functions ---- */

TG_INLINE float exp2_fast(float x) {                                /* to 2^-22, also where it is not normal */
    float out;
    asm("ex2.approx.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}
TG_INLINE float exp2_flushed(float x) {                             /* the same in one instruction, what is not normal is 0 */
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}
TG_INLINE float reciprocal_fast(float x) {                          /* to 1 ulp, what is not normal is 0 */
    float out;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}
/* NARROW: every output is narrower than f32, so that |x| roundings of f32 are nothing to it. */
#ifdef NARROW
TG_INLINE float f32_exp(float x) {                                  /* the square of the root: that is normal, so nothing asks */
    const float root = exp2_flushed(x * 0.72134752f);
    return root * root;
}
#else
TG_INLINE float f32_exp(float x) { return expf(x); }
#endif
TG_INLINE float f32_exp_in_sum(float x) { return exp2_flushed(x * 1.44269504f); }   /* softmax_exp.py says where that is near enough */
TG_INLINE double f64_exp(double x) { return exp(x); }
TG_INLINE float f32_exp2(float x) { return exp2f(x); }
TG_INLINE float f32_log2(float x) { return log2f(x); }
TG_INLINE float f32_tanh(float x) { return tanhf(x); }
TG_INLINE double f64_tanh(double x) { return tanh(x); }
TG_INLINE float f32_erf(float x) { return erff(x); }
/* exp(-x²) · t · p(t), t = 1 / (1 + 0.44 |x|): p is the polynomial of degree 7 that has the least relative error, 1.9e-7, up to 12.
 * What rounding x² and its multiple of log2 e loses is put back to first order. Half the instructions of erfcf. */
#ifdef NARROW
TG_INLINE float f32_erfc(float x) {                                 /* the same of degree 5, 6.7e-6: a third of the instructions */
    const float a = fabsf(x), t = reciprocal_fast(fmaf(0.44f, a, 1.0f)), e = exp2_fast(a * a * -1.44269504f);
    float p = -0.14439460635f;
    p = fmaf(p, t, 0.34594544768f);
    p = fmaf(p, t, 0.04560010508f);
    p = fmaf(p, t, 0.26124274731f);
    p = fmaf(p, t, 0.24308884144f);
    p = fmaf(p, t, 0.24851904809f);
    const float y = p * t * e;
    return x < 0 ? 2.0f - y : y;
}
#else
TG_INLINE float f32_erfc(float x) {
    float a;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(a) : "f"(fabsf(x)), "f"(12.0f));
    const float t = reciprocal_fast(fmaf(0.44f, a, 1.0f)), s = a * a, u = s * -1.44269504f;
    float p = 0.07147987978f;
    p = fmaf(p, t, -0.27906745413f);
    p = fmaf(p, t, 0.29871558056f);
    p = fmaf(p, t, -0.02214981832f);
    p = fmaf(p, t, 0.21691421663f);
    p = fmaf(p, t, 0.21695971354f);
    p = fmaf(p, t, 0.24893125384f);
    p = fmaf(p, t, 0.24821681278f);
    const float lost = fmaf(fmaf(a, a, -s), -1.44269504f, fmaf(s, -1.44269504f, -u) + s * -1.92596303e-8f);
    const float e = exp2_fast(u), y = p * t * fmaf(e, lost * 0.693147181f, e);
    return x < 0 ? 2.0f - y : y;
}
#endif

TG_INLINE float f32_fmod(float x, float y) { return fmodf(x, y); }
TG_INLINE double f64_fmod(double x, double y) { return fmod(x, y); }
#include "functions.h"

/* The larger; NaN where one is, +0 above -0. */
TG_INLINE float f32_max(float a, float b) {
    float out;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
}
TG_INLINE double f64_max(double a, double b) {
    if (a != a || b != b) return a + b;
    if (a == b) return bits_of_f64(a) >> 63 ? b : a;
    return a > b ? a : b;
}

/* The same of two that lie in one word. */
TG_INLINE uint32_t bf16x2_max(uint32_t a, uint32_t b) {
    uint32_t out;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}
TG_INLINE uint32_t f16x2_max(uint32_t a, uint32_t b) {
    uint32_t out;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}

/* A number that many are divided by: its reciprocal, and one step of Newton where nothing leaves the range of normal numbers. What is
 * very small or large is scaled by a power of 2 first, so that its reciprocal is in range too. */
struct Divisor {
    float by, inverse, scale, most;
};
TG_INLINE Divisor divisor_of(float x) {
    const float size = fabsf(x), scale = size < 1e-30f ? 0x1p64f : size > 1e30f ? 0x1p-64f : 1.0f, by = x * scale;
    return {by, 1.0f / by, scale, by != 0 && fabsf(by) < INFINITY ? 1e30f : -1.0f};
}
TG_INLINE float divided(float a, const Divisor &d) {
    const float q = a * d.inverse;
#ifdef NARROW
    return q * d.scale;
#else
    return (fabsf(q) < d.most ? fmaf(fmaf(-q, d.by, a), d.inverse, q) : q) * d.scale;
#endif
}

#include "integers.h"

/* Indices: floor(a / b), b > 0; the smaller and the larger. */
template <class A, class B> TG_INLINE auto floor_div(A a, B b) -> decltype(a / b) {
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}
template <class A, class B> TG_INLINE auto tg_min(A a, B b) -> decltype(a + b) { return a < b ? a : b; }
template <class A, class B> TG_INLINE auto tg_max_i(A a, B b) -> decltype(a + b) { return a > b ? a : b; }

/* ---- N elements that lie beside each other, aligned to what they take, at most 16 bytes ---- */

template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
    T at[N];
};
template <int N, class T> TG_INLINE Pack<T, N> pack_at(const T *from) { return *reinterpret_cast<const Pack<T, N> *>(from); }
/* The same here and not later, of memory that nobody writes by then: also before what others write is waited for. */
template <int N, class T> TG_INLINE Pack<T, N> pack_now(const T *from) {
#ifdef __CUDA_ARCH__
    if (sizeof(T) * N == 16) {
        Pack<uint32_t, 4> x;
        asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.at[0]), "=r"(x.at[1]), "=r"(x.at[2]), "=r"(x.at[3]) : "l"(from));
        return *reinterpret_cast<Pack<T, N> *>(&x);
    }
#endif
    return pack_at<N>(from);
}
/* The same in its place, of memory that this kernel reads once: it takes no room in the first cache from what is on its way. */
template <int N, class T> TG_INLINE Pack<T, N> pack_once(const T *from) {
#ifdef __CUDA_ARCH__
    if (sizeof(T) * N == 16) {
        Pack<uint32_t, 4> x;
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.at[0]), "=r"(x.at[1]), "=r"(x.at[2]), "=r"(x.at[3]) : "l"(from) : "memory");
        return *reinterpret_cast<Pack<T, N> *>(&x);
    }
#endif
    return pack_at<N>(from);
}
template <int N, class T> TG_INLINE void put_pack(T *into, const Pack<T, N> &x) { *reinterpret_cast<Pack<T, N> *>(into) = x; }

template <int N> TG_INLINE void keep_larger_bf16(Pack<uint16_t, N> &most, const Pack<uint16_t, N> &x) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        uint32_t &both = *reinterpret_cast<uint32_t *>(most.at + i);
        both = bf16x2_max(both, *reinterpret_cast<const uint32_t *>(x.at + i));
    }
}
template <int N> TG_INLINE void keep_larger_f16(Pack<uint16_t, N> &most, const Pack<uint16_t, N> &x) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        uint32_t &both = *reinterpret_cast<uint32_t *>(most.at + i);
        both = f16x2_max(both, *reinterpret_cast<const uint32_t *>(x.at + i));
    }
}

/* ---- a block whose rows have 128 bytes, in shared memory: packs of 16 bytes of row o are moved with o / P, so that neither who
 * writes along columns nor who reads along rows meets another in one bank ---- */

template <class T> TG_INLINE int tile_place(int o, int i) {
    constexpr int P = 16 / sizeof(T);
    return o * 8 * P + ((i / P) ^ (o / P % 8)) * P + i % P;
}

/* ---- reductions: every thread of a group gets what all of them come to, in the same order ---- */

struct Sum {
    template <class T> TG_INLINE T operator()(T a, T b) const { return a + b; }
};
struct Product {
    template <class T> TG_INLINE T operator()(T a, T b) const { return a * b; }
};
struct Max {
    TG_INLINE float operator()(float a, float b) const { return f32_max(a, b); }
    TG_INLINE double operator()(double a, double b) const { return f64_max(a, b); }
    template <class T> TG_INLINE T operator()(T a, T b) const { return a > b ? a : b; }
};

/* GROUP threads (a power of 2); more than a warp are the whole block, and shared has room for a number of each warp. */
template <int GROUP, class T, class F> TG_INLINE T reduced(T x, F combine, T *shared) {
#pragma unroll
    for (int step = (GROUP < 32 ? GROUP : 32) / 2; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, step));
    if (GROUP > 32) {
        if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
        __syncthreads();
        x = shared[0];
#pragma unroll
        for (int warp = 1; warp < GROUP / 32; warp++) x = combine(x, shared[warp]);
    }
    return x;
}

/* What the threads of a GROUP with lower numbers have of x; x becomes that of all of them. none: the identity. */
template <int GROUP, class T, class F> TG_INLINE T before_of(T &x, F combine, T none, T *shared) {
    const int size = GROUP < 32 ? GROUP : 32, lane = threadIdx.x % size, first = threadIdx.x % 32 - lane;
    T all = x;                                                      /* of the threads up to this one */
#pragma unroll
    for (int step = 1; step < size; step *= 2) {
        const T other = __shfl_sync(0xffffffffu, all, (threadIdx.x - step) % 32);
        if (lane >= step) all = combine(other, all);
    }
    const T one_less = __shfl_sync(0xffffffffu, all, (threadIdx.x - 1) % 32);
    T before = lane == 0 ? none : one_less;
    x = __shfl_sync(0xffffffffu, all, first + size - 1);
    if (GROUP > 32) {
        if (lane == 0) shared[threadIdx.x / 32] = x;
        __syncthreads();
        T earlier = none;
#pragma unroll
        for (int warp = 0; warp < GROUP / 32; warp++) {
            if (warp == threadIdx.x / 32) before = combine(earlier, before);
            earlier = combine(earlier, shared[warp]);
        }
        x = earlier;
    }
    return before;
}

/* A double as two floats. What is beyond their range stays finite, as what is added may be below 0, and infinite. */
TG_INLINE float f32_within(double x) {
    const double most = 0x1.fffffep127;
    return (float)(x > most ? most : x < -most ? -most : x);
}
TG_INLINE float f32_high(double x) { return x - x == 0 ? f32_within(x) : (float)x; }
TG_INLINE float f32_low(double x) { return x - x == 0 ? f32_within(x - (double)f32_within(x)) : 0; }

/* ---- the K (a power of 2) greatest of all, the greatest first ---- */

TG_INLINE void in_order(int64_t &a, int64_t &b) {
    const int64_t greater = a > b ? a : b;
    b = a > b ? b : a;
    a = greater;
}
template <int K> TG_INLINE void top_with(int64_t (&top)[K], int64_t x) {
    if (x <= top[K - 1]) return;
#pragma unroll
    for (int i = 0; i < K; i++) in_order(top[i], x);
}
/* Of THREADS lanes beside each other: the greater ones of two lists are a list that falls and rises, which log K rounds sort. */
template <int THREADS, int K> TG_INLINE void top_of_lanes(int64_t (&top)[K]) {
#pragma unroll 1
    for (int step = THREADS / 2; step > 0; step /= 2) {
        int64_t other[K];
#pragma unroll
        for (int i = 0; i < K; i++) other[i] = __shfl_xor_sync(0xffffffffu, top[i], step);
#pragma unroll
        for (int i = 0; i < K; i++) top[i] = top[i] > other[K - 1 - i] ? top[i] : other[K - 1 - i];
#pragma unroll
        for (int half = K / 2; half > 0; half /= 2)
#pragma unroll
            for (int i = 0; i < K; i++)
                if (!(i & half)) in_order(top[i], top[i + half]);
    }
}
/* Of a GROUP, as in reduced; shared has room for a list of each warp. */
template <int GROUP, int K> TG_INLINE void top_of(int64_t (&top)[K], int64_t *shared) {
    top_of_lanes<(GROUP < 32 ? GROUP : 32)>(top);
    if (GROUP <= 32) return;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < K; i++)
        if (lane == 0) shared[warp * K + i] = top[i];
    __syncthreads();
    if (warp == 0) {
#pragma unroll
        for (int i = 0; i < K; i++) top[i] = lane < GROUP / 32 ? shared[lane * K + i] : INT64_MIN;
        top_of_lanes<32>(top);
#pragma unroll
        for (int i = 0; i < K; i++)
            if (lane == 0) shared[i] = top[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < K; i++) top[i] = shared[i];
}

#endif
