/* The sums of a product's element: of PRODUCTS weights that are multiplied by the same x (1, where the text before says nothing else). */
#include "numbers.cuh"
#ifndef PRODUCTS
#define PRODUCTS 1
#endif
#define TG_OWN (COLUMNS / PRODUCTS)                                 /* columns of y of a tile; those of each weight lie one after the other */
struct Sums {
    float at[PRODUCTS];
};

/* What comes of parts of numbers that are not finite, or of the largest ones rounded, says nothing: it is made again. */
#ifdef ROUNDED
#define TG_SAYS_LESS 1
#else
#define TG_SAYS_LESS (PARTS_X > 1)
#endif
TG_INLINE bool says_nothing(float sum) { return TG_SAYS_LESS && !(fabsf(sum) < INFINITY); }
TG_INLINE bool says_nothing(const Sums &sums) {
    bool any = false;
#pragma unroll
    for (int p = 0; p < PRODUCTS; p++) any = any || says_nothing(sums.at[p]);
    return any;
}
