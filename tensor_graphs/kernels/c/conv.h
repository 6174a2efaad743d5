/* conv.h: what a convolution is asked for, as the kernels that compute it see it. */
#ifndef TG_CONV_H
#define TG_CONV_H

#include "vec.h"

enum { AXES = 3 };

typedef struct conv {
    float *out;
    const float *x, *w, *bias;
    int64_t n, groups, channels, outputs; /* channels and outputs of one group */
    int64_t in[AXES], places[AXES], size[AXES], stride[AXES], before[AXES], dilation[AXES];
    int64_t inside, area, k, panels, chunks; /* elements of a channel of x, of out; products of a sum; of the places */
    int plain; /* windows of one element, one for each place: what is seen is x as it lies */
} conv;

/* The arguments of a convolution kernel, in the order that tg_conv_f32 states. */
conv tg_conv_of(void *const *ptr, const int64_t *ints);

/* The outputs of one group, `rows` of them, at the places first to first + cols - 1, one by one: slow, and without memory of its own.
 * out, x, w, bias: of this image and group. */
void tg_conv_one_by_one(const conv *p, float *out, const float *x, const float *w, const float *bias, int64_t rows, int64_t first,
                        int64_t cols);

#endif
