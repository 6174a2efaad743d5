/* weight_parts: the PARTS of a weight of floats, made once when it is bound. Given by the text before: PARTS (2 or 3), ROWS, WIDTH
 * (elements of a row), PITCH (of one of a part). */
#include "float_parts.cuh"
extern "C" __global__ void __launch_bounds__(256) weight_parts(uint16_t *__restrict__ to, const float *w) {
    after_those_before();
    parts_of<WIDTH, PITCH, PARTS>(w, to, ROWS);
}
