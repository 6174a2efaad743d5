/* weight_parts: the three parts of a weight of floats, made once when it is bound. Given by the text before: COUNT (elements). */
#include "float_parts.cuh"
extern "C" __global__ void __launch_bounds__(256) weight_parts(uint16_t *__restrict__ to, const float *w) {
    after_those_before();
    parts_of(w, to, COUNT);
}
