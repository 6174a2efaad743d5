/* copy: a strided window (T, RANK axes) into another, EACH elements of a thread. sizes: the shape, then the strides of `out`, then of
 * `in`; where SIZES says what they are, the compiler knows what lies beside what, and divides in a few instructions. DENSE: `out`
 * has no gaps. Where elements are fewer than 2^31 they are counted in 32 bits, which divide in a third of the time. */
#include "numbers.cuh"

/* Whether these elements are neighbours, and aligned so that they can be moved as one pack. */
TG_INLINE bool beside(const T *from, const int64_t (&places)[EACH]) {
    bool is = true;
#pragma unroll
    for (int e = 1; e < EACH; e++) is = is && places[e] == places[0] + e;
    return is && (uint64_t)(from + places[0]) % sizeof(Pack<T, EACH>) == 0;
}

template <class I> TG_INLINE void copy_some(T *__restrict__ out, const T *in, const int64_t *sizes, I at, I count) {
    I index[RANK];
    int64_t to = 0, from = 0;
    I rest = at;
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; axis--) {
        const I size = (I)sizes[axis];
        index[axis] = axis ? rest % size : rest;
        rest = axis ? rest / size : 0;
        to += DENSE ? 0 : index[axis] * sizes[RANK + axis];
        from += index[axis] * sizes[2 * RANK + axis];
    }
    int64_t places[EACH], sources[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        places[e] = DENSE ? (int64_t)at + e : to;
        sources[e] = from;
        bool carried = true;
#pragma unroll
        for (int axis = RANK - 1; axis >= 0; axis--) {              /* to the next, as one counts */
            if (!carried) continue;
            const int64_t along = sizes[RANK + axis], by = sizes[2 * RANK + axis];
            carried = axis && index[axis] + 1 == (I)sizes[axis];
            to += carried ? -(int64_t)index[axis] * along : along;
            from += carried ? -(int64_t)index[axis] * by : by;
            index[axis] = carried ? 0 : index[axis] + 1;
        }
    }
    const bool whole = count % EACH == 0 || at + (EACH - 1) < count;
    Pack<T, EACH> found;
    if (whole && beside(in, sources)) found = pack_at<EACH>(in + sources[0]);
    else
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (whole || at + e < count) found.at[e] = in[sources[e]];
    if (whole && beside(out, places)) put_pack<EACH>(out + places[0], found);
    else
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (whole || at + e < count) out[places[e]] = found.at[e];
}

extern "C" __global__ void __launch_bounds__(256) copy(T *__restrict__ out, const T *in, const int64_t *given) {
    const int64_t at = (blockIdx.x * 256LL + threadIdx.x) * EACH;
#ifdef SIZES
    constexpr int64_t sizes[] = {SIZES};
#else
    const int64_t *const sizes = given;
#endif
    after_those_before();
    int64_t count = 1;
#pragma unroll
    for (int axis = 0; axis < RANK; axis++) count *= sizes[axis];
    if (at >= count) return;
    if (count < 1LL << 31) copy_some<uint32_t>(out, in, sizes, (uint32_t)at, (uint32_t)count);
    else copy_some<int64_t>(out, in, sizes, at, count);
}
