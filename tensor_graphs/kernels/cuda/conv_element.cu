/* Convolutions element by element: where operands lie off their alignment, and what tiles say nothing of. Given by the text before:
 * what one_element.cu is given of operands; CHANNELS, OUTPUTS, IN_H, IN_W, OUT_H, OUT_W, and KERNEL, STRIDE, PAD, DILATION, each with
 * _H and _W. */

/* One element of y[n, o, h, w], in the order of all, by multiplications of floats. */
static __device__ __noinline__ float one_element(TG_OPERANDS, int64_t images, int64_t at) {
    const int column = (int)(at % OUT_W), row = (int)(at / OUT_W % OUT_H), out = (int)(at / (OUT_W * OUT_H) % OUTPUTS);
    const X *const image = x + at / ((int64_t)OUT_W * OUT_H * OUTPUTS) * CHANNELS * IN_H * IN_W;
    float sum = 0;
    for (int c = 0; c < CHANNELS; c++) {
        float piece = 0;                                            /* most roundings are small ones */
        for (int i = 0; i < KERNEL_H; i++)
            for (int j = 0; j < KERNEL_W; j++) {
                const int h = row * STRIDE_H - PAD_H + i * DILATION_H, v = column * STRIDE_W - PAD_W + j * DILATION_W;
                const bool is = h >= 0 && h < IN_H && v >= 0 && v < IN_W;       /* around it are zeros, which are multiplied too */
                const float seen = is ? WIDE_X(image[((int64_t)c * IN_H + h) * IN_W + v]) : 0;
                piece = fmaf(seen, WIDE_W(w[(((int64_t)out * CHANNELS + c) * KERNEL_H + i) * KERNEL_W + j]), piece);
            }
        sum += piece;
    }
    return ended(Sums{{sum}}, 0, out, TG_GIVEN);
}
TG_INLINE int64_t elements_of(int64_t images) { return images * OUTPUTS * OUT_H * OUT_W; }
