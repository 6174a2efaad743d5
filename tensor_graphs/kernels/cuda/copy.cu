/* copy: a strided window (T, RANK axes) into another, element by element. sizes: the shape, then the strides of `out`, then of `in`. */
extern "C" __global__ void __launch_bounds__(256) copy(T *__restrict__ out, const T *in, const int64_t *sizes) {
    const int64_t at = (int64_t)blockIdx.x * 256 + threadIdx.x;
    int64_t rest = at, to = 0, from = 0;
    after_those_before();
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; axis--) {
        const int64_t size = sizes[axis], index = axis ? rest % size : rest;
        if (axis == 0 && index >= size) return;
        rest /= size;
        to += index * sizes[RANK + axis];
        from += index * sizes[2 * RANK + axis];
    }
    out[to] = in[from];
}
