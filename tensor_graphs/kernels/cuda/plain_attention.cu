/* One row of attention by a warp, key after key: where operands lie off their alignment, and what tiles say nothing of. Given by the text
 * before: Q, K, V, Y, WIDE_Q, WIDE_K, WIDE_V, NARROW_Y, D, GROUP (heads that share a head of keys), HEADS (of keys), SCALE, CAP (0: none). */
#define TG_ALL_HEADS (HEADS * GROUP)
static __device__ __noinline__ void one_row(Y *y, const Q *q, const K *k, const V *v, int64_t s, int64_t start, int64_t at,
                                            const Keys &keys = {}, float sink = -INFINITY) {
    const int lane = threadIdx.x % 32, head = (int)(at % TG_ALL_HEADS);
    const int64_t query = at / TG_ALL_HEADS;
    const Range seen = seen_by(start + query, start + query, s);
    float sum[(D + 31) / 32] = {}, top = sink, total = sink == -INFINITY ? 0.0f : 1.0f;
    for (int64_t key = seen.low; key < seen.high; key++) {
        const int64_t place = keys.from(key)(0), row = (place * HEADS + head / GROUP) * D;
        float score = 0;
        for (int e = lane; e < D && place >= 0; e += 32) score = fmaf(WIDE_Q(q[at * D + e]), WIDE_K(k[row + e]), score);
        score = reduced<32>(score, Sum(), (float *)0) * (float)(SCALE);
        if (CAP) score = (float)(CAP) * tanhf(score / (float)(CAP ? CAP : 1));
        const float best = f32_max(top, score), shift = best == -INFINITY ? 0.0f : best;
        const float kept = expf(top - shift), weight = expf(score - shift);
        total = total * kept + weight;
#pragma unroll
        for (int i = 0; i < (D + 31) / 32; i++)
            if (lane + 32 * i < D) sum[i] = sum[i] * kept + (place < 0 ? 0.0f : weight * WIDE_V(v[row + lane + 32 * i]));
        top = best;
    }
#pragma unroll
    for (int i = 0; i < (D + 31) / 32; i++)
        if (lane + 32 * i < D) y[at * D + lane + 32 * i] = NARROW_Y(seen.low < seen.high ? sum[i] / total : 0.0f);
}

extern "C" __global__ void __launch_bounds__(256) plain(Y *__restrict__ y, const Q *q, const K *k, const V *v, TG_TABLES const int64_t *sizes) {
    const int64_t at = (blockIdx.x * 256LL + threadIdx.x) / 32;
    after_those_before();
    if (at >= sizes[0] * TG_ALL_HEADS) return;
#if PAGED
    const int64_t query = at / TG_ALL_HEADS;
#if SINKS
    const float sink = sinks[at % TG_ALL_HEADS];
#else
    const float sink = -INFINITY;
#endif
    one_row(y, q, k, v, sizes[1] * PAGE, positions[query] - query, at, {pages + query * sizes[1], sizes[2]}, sink);
#else
    one_row(y, q, k, v, sizes[1], sizes[2], at);
#endif
}
