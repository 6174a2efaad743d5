/* depthwise.h: convolutions whose groups have one channel each. */
#ifndef TG_DEPTHWISE_H
#define TG_DEPTHWISE_H

#include "conv.h"

/* A convolution of one channel in each group, over two axes at most (the first of the three is 1). */
void tg_depthwise(const conv *p);

#endif
