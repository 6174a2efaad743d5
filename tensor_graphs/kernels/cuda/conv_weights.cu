/* conv_weights: a weight [output][channel][row][place of a window] as conv_tiles.cu reads it, [part][row and run][output][place of the
 * run][channel], with PACKED channels, those behind CHANNELS 0; made once when it is bound. Given by the text before: W, WIDE_W, PARTS_W,
 * CHANNELS, OUTPUTS, WINDOW (its places), TAPS (of a run), PACKED. */
#include "float_parts.cuh"
extern "C" __global__ void __launch_bounds__(256) conv_weights(uint16_t *__restrict__ to, const W *w) {
    constexpr int64_t COUNT = (int64_t)WINDOW * OUTPUTS * PACKED;
    const int64_t i = blockIdx.x * 256LL + threadIdx.x, channel = i % PACKED, row = i / (PACKED * TAPS) % OUTPUTS;
    const int64_t place = i / ((int64_t)PACKED * TAPS * OUTPUTS) * TAPS + i / PACKED % TAPS;
    after_those_before();
    if (i >= COUNT) return;
    const W found = channel < CHANNELS ? w[(row * CHANNELS + channel) * WINDOW + place] : W();
#if PARTS_W == 3
    uint16_t part[3];
    three_parts(found, part[0], part[1], part[2]);
    for (int p = 0; p < 3; p++) to[p * COUNT + i] = part[p];
#else
    to[i] = found;
#endif
}
