/* Operands of a product or a convolution, by name. Given by the text before: X, W, B, Y, WIDE_X, WIDE_W, WIDE_B, NARROW_Y; PARTS_X (3:
 * floats that tiles multiply by parts), BIAS and W_PREPARED where there are such. What is read is not `__restrict__` (numbers.cuh,
 * after_those_before). */
#include "numbers.cuh"
#ifdef W_PREPARED
#define TG_W_PARTS , const uint16_t * w_parts
#define TG_GIVEN_PARTS , w_parts
#else
#define TG_W_PARTS
#define TG_GIVEN_PARTS
#endif
#ifdef BIAS
#define TG_OPERANDS const X * x, const W * w, const B * bias TG_W_PARTS
#define TG_GIVEN x, w, bias TG_GIVEN_PARTS
#else
#define TG_OPERANDS const X * x, const W * w TG_W_PARTS
#define TG_GIVEN x, w TG_GIVEN_PARTS
#endif

/* What comes of parts of numbers that are not finite says nothing: it is made again. */
TG_INLINE bool says_nothing(float sum) { return PARTS_X == 3 && !(fabsf(sum) < INFINITY); }
