/* What numbers.cuh and generated kernels take from CUDA, for a C++ compiler of the host. */
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
/* in a section of its own, so that it can be filled */
#define __shared__ static __attribute__((section("tg_shared")))
#define __align__(bytes) __attribute__((aligned(bytes)))

extern "C" {
float expf(float), exp2f(float), log2f(float), sinf(float), cosf(float), tanf(float), tanhf(float), erff(float), erfcf(float), sqrtf(float),
    floorf(float), fmaf(float, float, float), fabsf(float), fmodf(float, float), copysignf(float, float);
double exp(double), exp2(double), log2(double), sin(double), cos(double), tan(double), tanh(double), erf(double), erfc(double), sqrt(double),
    floor(double), fabs(double), fma(double, double, double), fmod(double, double), copysign(double, double);
extern unsigned tg_thread, tg_block, tg_blocks, tg_warp_slots[64][32][2];
extern char *tg_rows;
void tg_syncthreads(), tg_syncwarp(), tg_waited(), tg_copy_ahead(void *, const void *, unsigned), tg_copies_end(), tg_copies_wait(unsigned);
}
#define copies_end tg_copies_end
template <int BYTES> inline void copy_ahead(void *to, const void *from) { tg_copy_ahead(to, from, BYTES); }
template <int LEFT> inline void copies_wait() { tg_copies_wait(LEFT); }
extern "C" {
extern char __start_tg_shared[] __attribute__((weak)), __stop_tg_shared[] __attribute__((weak));
void tg_fill_shared(int byte) { __builtin_memset(__start_tg_shared, byte, __stop_tg_shared - __start_tg_shared); }
float fmaxf(float, float);
}
inline unsigned atomicAdd(unsigned *at, unsigned more) { return (*at += more) - more; }
inline unsigned atomicMax(unsigned *at, unsigned other) {
    const unsigned old = *at;
    if (other > old) *at = other;
    return old;
}
inline void __threadfence() {}
inline void __nanosleep(unsigned) {}
inline long long clock64() {
    static long long ticks = 0;
    return ticks += 1000;
}
struct uint4 { unsigned x, y, z, w; };
inline uint4 __ldcg(const uint4 *at) { return *at; }

struct ThreadPlace { struct { operator unsigned() const { return tg_thread; } } x; };
struct BlockPlace { struct { operator unsigned() const { return tg_block; } } x; };
struct BlockCount { struct { operator unsigned() const { return tg_blocks; } } x; };
static const ThreadPlace threadIdx;
static const BlockPlace blockIdx;
static const BlockCount gridDim;
/* so that a text of which nothing is left is linked with what runs threads, too */
__attribute__((used)) static const unsigned *const tg_needed = &tg_thread;
#define __syncthreads tg_syncthreads
#define __syncwarp tg_syncwarp

template <class To, class From> inline To as_bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "");
    To out;
    __builtin_memcpy(&out, &x, sizeof out);
    return out;
}
#define __float_as_uint as_bits<unsigned, float>
#define __uint_as_float as_bits<float, unsigned>
#define __int_as_float as_bits<float, int>
#define __double_as_longlong as_bits<long long, double>
#define __longlong_as_double as_bits<double, long long>
inline float __fmul_rn(float a, float b) { return a * b; }

template <class T> T __shfl_sync(unsigned, T x, int lane) {
    const unsigned warp = tg_thread / 32;
    __builtin_memcpy(tg_warp_slots[warp][tg_thread % 32], &x, sizeof x);
    tg_syncwarp();
    T out;
    __builtin_memcpy(&out, tg_warp_slots[warp][lane], sizeof out);
    tg_syncwarp();
    return out;
}
template <class T> T __shfl_xor_sync(unsigned all, T x, int step) { return __shfl_sync(all, x, tg_thread % 32 ^ step); }
inline unsigned __ballot_sync(unsigned, bool mine) {
    const unsigned warp = tg_thread / 32;
    tg_warp_slots[warp][tg_thread % 32][0] = mine;
    tg_syncwarp();
    unsigned all = 0;
    for (int lane = 0; lane < 32; lane++) all |= tg_warp_slots[warp][lane][0] << lane;
    tg_syncwarp();
    return all;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }

/* instructions that numbers.cuh names */
inline unsigned short ptx_cvt_rn_bf16_f32(float x) {
    const unsigned bits = __float_as_uint(x);
    if (x != x) return 0x7fff;
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline unsigned short ptx_cvt_rn_f16_f32(float x) { return as_bits<unsigned short, _Float16>((_Float16)x); }
inline float ptx_cvt_f32_f16(unsigned short x) { return (float)as_bits<_Float16, unsigned short>(x); }
inline float ptx_max_NaN_f32(float a, float b) {
    if (a != a || b != b) return __uint_as_float(0x7fffffff);
    return a == b ? (__float_as_uint(a) >> 31 ? b : a) : a > b ? a : b;
}
inline unsigned ptx_max_NaN_bf16x2(unsigned a, unsigned b) {
    const float high = ptx_max_NaN_f32(as_bits<float, unsigned>(a & 0xffff0000u), as_bits<float, unsigned>(b & 0xffff0000u));
    const float low = ptx_max_NaN_f32(as_bits<float, unsigned>(a << 16), as_bits<float, unsigned>(b << 16));
    return (unsigned)ptx_cvt_rn_bf16_f32(high) << 16 | ptx_cvt_rn_bf16_f32(low);
}
inline unsigned ptx_max_NaN_f16x2(unsigned a, unsigned b) {
    const float high = ptx_max_NaN_f32(ptx_cvt_f32_f16((unsigned short)(a >> 16)), ptx_cvt_f32_f16((unsigned short)(b >> 16)));
    const float low = ptx_max_NaN_f32(ptx_cvt_f32_f16((unsigned short)a), ptx_cvt_f32_f16((unsigned short)b));
    return (unsigned)ptx_cvt_rn_f16_f32(high) << 16 | ptx_cvt_rn_f16_f32(low);
}
inline float ptx_min_NaN_f32(float a, float b) { return -ptx_max_NaN_f32(-a, -b); }
inline float normal(float x) { return fabsf(x) < 1.17549435e-38f ? 0 * x : x; }
inline float ptx_ex2_approx_f32(float x) { return exp2f(x); }
inline float ptx_ex2_approx_ftz_f32(float x) { return normal(exp2f(normal(x))); }
inline float ptx_rcp_approx_ftz_f32(float x) { return normal(1 / normal(x)); }

/* one word of what a kernel is given */
struct Word {
    unsigned long long word;
    template <class T> operator T *() const { return (T *)word; }
    operator long long() const { return (long long)word; }
};
