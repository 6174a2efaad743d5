/* weight_parts: the three parts of a weight of floats, made once when it is bound. Given by the text before: ROWS, WIDTH (elements of a
 * row), PITCH (of one of a part). */
#include "float_parts.cuh"
extern "C" __global__ void __launch_bounds__(256) weight_parts(uint16_t *__restrict__ to, const float *w) {
    after_those_before();
    parts_of<WIDTH, PITCH>(w, to, ROWS);
}
