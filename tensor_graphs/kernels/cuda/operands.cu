/* Operands of a product or a convolution, by name, and what becomes of a sum. Given by the text before: X, W, B, Y, WIDE_X, WIDE_W, WIDE_B,
 * NARROW_Y; PARTS_X (above 1: floats that tiles multiply by parts); where there are such, ROUNDED (floats rounded to TF32), X_SCALE and
 * WEIGHT_SCALE (0: one number, 1: one of each row of x, of each column of y), BIAS (one of each column) and W_PREPARED. What is read is
 * not `__restrict__` (numbers.cuh, after_those_before). A product with what codegen prints for it has a text of its own in place of this
 * file (epilogue_products.py). */
#ifdef W_PREPARED
#define TG_W_PARTS , const uint16_t * w_parts
#define TG_GIVEN_PARTS , w_parts
#else
#define TG_W_PARTS
#define TG_GIVEN_PARTS
#endif
#ifdef X_SCALE
#define TG_X_SCALE , const float * x_scale
#define TG_GIVEN_X_SCALE , x_scale
#else
#define TG_X_SCALE
#define TG_GIVEN_X_SCALE
#endif
#ifdef WEIGHT_SCALE
#define TG_WEIGHT_SCALE , const float * weight_scale
#define TG_GIVEN_WEIGHT_SCALE , weight_scale
#else
#define TG_WEIGHT_SCALE
#define TG_GIVEN_WEIGHT_SCALE
#endif
#ifdef BIAS
#define TG_BIAS , const B * bias
#define TG_GIVEN_BIAS , bias
#else
#define TG_BIAS
#define TG_GIVEN_BIAS
#endif
#define TG_OPERANDS const X * x, const W * w TG_X_SCALE TG_WEIGHT_SCALE TG_BIAS TG_W_PARTS
#define TG_GIVEN x, w TG_GIVEN_X_SCALE TG_GIVEN_WEIGHT_SCALE TG_GIVEN_BIAS TG_GIVEN_PARTS

#define TG_X x
#define TG_W(number) w
#define TG_W_PARTS_OF(number) w_parts

/* What becomes of the sum of a row of x and a column of y. */
TG_INLINE float ended(const Sums &sums, int64_t row, int64_t column, TG_OPERANDS) {
    float sum = sums.at[0];
#ifdef X_SCALE
    sum *= x_scale[X_SCALE ? row : 0];
#endif
#ifdef WEIGHT_SCALE
    sum *= weight_scale[WEIGHT_SCALE ? column : 0];
#endif
#ifdef BIAS
    sum += WIDE_B(bias[column]);
#endif
    return sum;
}
