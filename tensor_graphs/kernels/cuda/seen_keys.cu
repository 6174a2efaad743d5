/* What a query sees. Given by the text before: CAUSAL, WINDOW (0: none). */
struct Range {
    int64_t low, high;
};
/* Keys that queries from one position on see, up to the last one's. */
TG_INLINE Range seen_by(int64_t first, int64_t last, int64_t keys) {
    Range r = {0, keys};
    if (CAUSAL && last + 1 < keys) r.high = last + 1;
    if (WINDOW && first - WINDOW + 1 > 0) r.low = first - WINDOW + 1;
    return r;
}
