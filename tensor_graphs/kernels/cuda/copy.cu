/* copy: a strided window (T, RANK axes) into another, four elements of a thread. sizes: the shape, then the strides of `out`, then of
 * `in`. Where elements are fewer than 2^31 they are counted in 32 bits, which divide in a third of the time. */
#include "numbers.cuh"

template <class I> TG_INLINE void copy_four(T *__restrict__ out, const T *in, const int64_t *sizes, I at, I count) {
    I index[RANK];
    int64_t to = 0, from = 0;
    I rest = at;
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; axis--) {
        const I size = (I)sizes[axis];
        index[axis] = axis ? rest % size : rest;
        rest = axis ? rest / size : 0;
        to += index[axis] * sizes[RANK + axis];
        from += index[axis] * sizes[2 * RANK + axis];
    }
    Pack<T, 4> found;
    int64_t places[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        places[e] = to;
        if (at + e < count) found.at[e] = in[from];
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
    const bool beside = at + 3 < count && places[1] == places[0] + 1 && places[2] == places[0] + 2 && places[3] == places[0] + 3;
    if (beside && (uint64_t)(out + places[0]) % sizeof(found) == 0) put_pack<4>(out + places[0], found);
    else
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (at + e < count) out[places[e]] = found.at[e];
}

extern "C" __global__ void __launch_bounds__(256) copy(T *__restrict__ out, const T *in, const int64_t *sizes) {
    const int64_t at = (blockIdx.x * 256LL + threadIdx.x) * 4;
    after_those_before();
    int64_t count = 1;
#pragma unroll
    for (int axis = 0; axis < RANK; axis++) count *= sizes[axis];
    if (at >= count) return;
    if (count < 1LL << 31) copy_four<uint32_t>(out, in, sizes, (uint32_t)at, (uint32_t)count);
    else copy_four<int64_t>(out, in, sizes, at, count);
}
