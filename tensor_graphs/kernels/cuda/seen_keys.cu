/* What a query sees, and where keys lie. Given by the text before: CAUSAL, WINDOW (0: none); for keys in pages PAGED, PAGE (keys of a page),
 * SINKS (0, 1: scores of heads without a value). */
#if PAGED
#if SINKS
#define TG_TABLES const int32_t *pages, const int32_t *positions, const float *sinks,
#else
#define TG_TABLES const int32_t *pages, const int32_t *positions,
#endif
/* Rows of up to 16 keys from a multiple of 16 on, of a sequence whose pages are in `table`; -1: outside of the pool, a key of zeros. */
struct Rows {
    const int32_t *table;
    int64_t rows, key, first;
    __device__ int64_t operator()(int i) const {
        const int64_t at = PAGE % 16 ? (int64_t)table[(key + i) / PAGE] * PAGE + (key + i) % PAGE : first + i;
        return at >= 0 && at < rows ? at : -1;
    }
};
struct Keys {
    const int32_t *table;
    int64_t rows;
    __device__ Rows from(int64_t key) const { return {table, rows, key, (int64_t)table[key / PAGE] * PAGE + key % PAGE}; }
};
#else
#define TG_TABLES
struct Rows {
    int64_t first;
    __device__ int64_t operator()(int i) const { return first + i; }
};
struct Keys {
    __device__ Rows from(int64_t key) const { return {key}; }
};
#endif
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
