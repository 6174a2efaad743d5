/* write_rows: rows of `value`, STEP apart, over those of `out` from `start` on, in units U of which a row has WIDTH; what would lie
 * outside is left out. */
extern "C" __global__ void __launch_bounds__(256) write_rows(U *__restrict__ out, const U *base, const U *value,
                                                             const int64_t *sizes) {
    const int64_t rows = sizes[0], room = sizes[1], start = sizes[2];
    const int64_t at = (int64_t)blockIdx.x * 256 + threadIdx.x, row = at / WIDTH + start;
    after_those_before();
    if (at < rows * WIDTH && row >= 0 && row < room) out[at + start * WIDTH] = value[at / WIDTH * STEP + at % WIDTH];
}
