/* attend.h: the body of attention.c and wide_attention.c: softmax(scale q k^T) v with grouped heads, causal order, sliding window, mask
 * and soft cap. ROWS_PRODUCT: the register tile.
 *
 * All queries that share a key/value head are lanes: lane = (query, head of the group). Few lanes (decoding): every key is
 * read once, keys cut between threads, partial softmaxes merged. Many lanes (prefill): blocks of REAL_PANEL lanes side by side in
 * registers, blocks of keys one after another; memory is O(block). Both keep a running maximum and sum per lane
 * (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018). */
#include "loops.h"
#include "real.h"

/* SUM: terms that add up in a lane before they go into a larger sum. */
enum { FEW_LANES = 8, FEW_KEYS = 64, KEYS = 8 * TILE_ROWS, SUM = 16 };

typedef struct attention {
    real *out;
    const real *q, *k, *v;
    const uint8_t *mask;
    const float *sinks; /* of each head: a score without a value; NULL: none */
    int64_t n, s, hq, hkv, d, causal, window, start, k_stride, v_stride, q_stride, q_head, k_head, v_head;
    real scale, cap;
    int64_t group, lanes;  /* lanes = n * group, per key/value head */
    int64_t splits, lo, hi; /* few lanes: keys [lo, hi) in `splits` pieces */
    real *partial;          /* few lanes: [hkv][splits][lanes][2 + d]: maximum, sum, weighted values */
    const int32_t *positions, *pages; /* by pages: of each query, and [n][width] of its sequence; NULL: keys lie where strides say */
    int64_t width, page, rows, dtype; /* by pages: pages of a query, rows of a page and of the pool, dtype of k and v */
} attention;

static const real NONE = -__builtin_inff();

TG_INLINE int64_t position(const attention *t, int64_t lane) {
    return t->positions ? t->positions[lane / t->group] : t->start + lane / t->group;
}

TG_INLINE int64_t first_key(const attention *t, int64_t pos) {
    return t->window > 0 ? tg_min(tg_max_i(0, pos - t->window + 1), t->s) : 0;
}

TG_INLINE int64_t end_key(const attention *t, int64_t pos) {
    return t->causal ? tg_max_i(0, tg_min(t->s, pos + 1)) : t->s;
}

TG_INLINE int visible(const attention *t, int64_t lane, int64_t key) {
    int64_t pos = position(t, lane);
    return (!t->causal || key <= pos) && (t->window <= 0 || pos - key < t->window) &&
           (!t->mask || t->mask[lane / t->group * t->s + key]);
}

TG_INLINE const real *query_row(const attention *t, int64_t head, int64_t lane) {
    return t->q + lane / t->group * t->q_stride + (head * t->group + lane % t->group) * t->q_head;
}

TG_INLINE real *out_row(const attention *t, int64_t head, int64_t lane) {
    return t->out + ((lane / t->group) * t->hq + head * t->group + lane % t->group) * t->d;
}

/* What the sums of a lane begin with: a sink if there is one. */
TG_INLINE void begin_sum(const attention *t, int64_t head, int64_t lane, real *most, real *sum) {
    *most = t->sinks ? (real)t->sinks[head * t->group + lane % t->group] : NONE, *sum = t->sinks ? 1 : 0;
}

TG_INLINE real soft_cap(real x, real cap) { return cap * r_tanh(x / cap); }

/* 1 / sum, in f64: its rounding error would be the same for a whole row, and such errors do not average out. A sum of 0 is that of a
 * query that sees nothing, whose values are zeros, or of one all of whose scores are -inf, which has no answer. */
static double inverse_of(const attention *t, int64_t lane, real sum) {
    if (sum != 0) return 1.0 / sum;
    for (int64_t key = 0; key < t->s; key++)
        if (visible(t, lane, key)) return __builtin_nan("");
    return 0;
}

/* --- few lanes --- */

/* score[j][l] = q[l] . k[j] for `lanes` lanes over `keys` keys; q is scaled. In f64, since an error of a score is as large an
 * error, relatively, of its weight. */
TG_INLINE void few_scores(const int lanes, const real *q, const real *k, int64_t k_stride, int64_t keys, int64_t d,
                          double *score) {
    for (int64_t j = 0; j < keys; j++, k += k_stride) {
        vr acc[4][2];
        for (int l = 0; l < lanes; l++) acc[l][0] = acc[l][1] = (vr){0};
        int64_t i = 0;
        for (; i + 2 * VR <= d; i += 2 * VR) {
            __builtin_prefetch(k + 2 * k_stride + i, 0, 3);
            vr k0 = r_load(k + i), k1 = r_load(k + i + VR);
            for (int l = 0; l < lanes; l++) {
                acc[l][0] += k0 * r_load(q + l * d + i);
                acc[l][1] += k1 * r_load(q + l * d + i + VR);
            }
        }
        for (int l = 0; l < lanes; l++) {
            double dot = r_sum(acc[l][0] + acc[l][1]);
            for (int64_t t = i; t < d; t++) dot += (double)k[t] * q[l * d + t];
            score[j * FEW_LANES + l] = dot;
        }
    }
}

/* o[l] = o[l] * alpha[l] + sum over j of p[j][l] v[j]; o rows lie `apart`. */
TG_INLINE void few_values(const int lanes, const real *p, const real *v, int64_t v_stride, int64_t keys, int64_t d,
                          const real *alpha, real *o, int64_t apart) {
    int64_t i = 0;
    for (; i + 2 * VR <= d; i += 2 * VR) {
        vr sum[4][2], acc[4][2];
        for (int l = 0; l < lanes; l++) sum[l][0] = sum[l][1] = (vr){0};
        for (int64_t j0 = 0; j0 < keys; j0 += SUM) {
            for (int l = 0; l < lanes; l++) acc[l][0] = acc[l][1] = (vr){0};
            for (int64_t j = j0; j < tg_min(j0 + SUM, keys); j++) {
                vr v0 = r_load(v + j * v_stride + i), v1 = r_load(v + j * v_stride + i + VR);
                for (int l = 0; l < lanes; l++) {
                    vr weight = r_splat(p[j * FEW_LANES + l]);
                    acc[l][0] += weight * v0;
                    acc[l][1] += weight * v1;
                }
            }
            for (int l = 0; l < lanes; l++)
                for (int h = 0; h < 2; h++) sum[l][h] += acc[l][h];
        }
        for (int l = 0; l < lanes; l++)
            for (int h = 0; h < 2; h++) {
                real *to = o + l * apart + i + h * VR;
                r_store(to, r_load(to) * r_splat(alpha[l]) + sum[l][h]);
            }
    }
    for (int l = 0; l < lanes; l++)
        for (int64_t t = i; t < d; t++) {
            double sum = (double)o[l * apart + t] * alpha[l];
            for (int64_t j = 0; j < keys; j++) sum += (double)p[j * FEW_LANES + l] * v[j * v_stride + t];
            o[l * apart + t] = (real)sum;
        }
}

/* One (head, split): leaves its maximum, sum and weighted values in t->partial. */
static void few_task(const attention *t, int64_t head, int64_t split) {
    const int64_t d = t->d, lanes = t->lanes, apart = d + 2;
    real *mine = t->partial + (head * t->splits + split) * lanes * apart;
    real *q = tg_scratch(1, (size_t)(lanes * d) * sizeof(real) + sizeof(real));
    double score[FEW_KEYS * FEW_LANES];
    double top[FEW_LANES], base[FEW_LANES];
    real p[FEW_KEYS * FEW_LANES], alpha[FEW_LANES];
    for (int64_t l = 0; l < lanes; l++) {
        mine[l * apart] = NONE;
        top[l] = NONE, base[l] = 0;
        for (int64_t i = 1; i < apart; i++) mine[l * apart + i] = q ? 0 : __builtin_nan("");
        if (!q) continue;
        const real *from = query_row(t, head, l);
        for (int64_t i = 0; i < d; i++) q[l * d + i] = from[i] * t->scale;
    }
    if (!q) return;
    int64_t blocks = tg_ceil(t->hi - t->lo, FEW_KEYS);
    int64_t from = t->lo + blocks * split / t->splits * FEW_KEYS;
    int64_t to = tg_min(t->hi, t->lo + blocks * (split + 1) / t->splits * FEW_KEYS);
    for (int64_t j0 = from; j0 < to; j0 += FEW_KEYS) {
        const int64_t keys = tg_min(FEW_KEYS, to - j0);
        const real *k = t->k + j0 * t->k_stride + head * t->k_head, *v = t->v + j0 * t->v_stride + head * t->v_head;
        int64_t l = 0;
        for (; l + 4 <= lanes; l += 4) few_scores(4, q + l * d, k, t->k_stride, keys, d, score + l);
        for (; l < lanes; l++) few_scores(1, q + l * d, k, t->k_stride, keys, d, score + l);
        for (l = 0; l < lanes; l++) {
            double before = top[l], most = before;
            for (int64_t j = 0; j < keys; j++) {
                double *s = score + j * FEW_LANES + l;
                if (t->cap > 0) *s = soft_cap((real)*s, t->cap);
                if (!visible(t, l, j0 + j)) *s = NONE;
                most = *s > most ? *s : most;
            }
            /* as it is stored, unless the rounding is no small matter: exp(score - most) of huge scores would overflow */
            real stored = (real)most;
            if (most - stored < 0.5 && stored - most < 0.5) most = stored;
            base[l] = most == NONE ? 0 : most;
            alpha[l] = r_exp((real)(before - base[l]));
            top[l] = most;
            mine[l * apart] = stored;
        }
        for (int64_t j = 0; j < keys; j++) /* FEW_LANES wide, so that it is one vector */
            for (l = 0; l < lanes; l++) p[j * FEW_LANES + l] = r_exp((real)(score[j * FEW_LANES + l] - base[l]));
        for (l = 0; l < lanes; l++) {
            double sum = (double)mine[l * apart + 1] * alpha[l];
            for (int64_t j = 0; j < keys; j++) sum += p[j * FEW_LANES + l];
            mine[l * apart + 1] = (real)sum;
        }
        l = 0;
        for (; l + 4 <= lanes; l += 4)
            few_values(4, p + l, v, t->v_stride, keys, d, alpha + l, mine + l * apart + 2, apart);
        for (; l < lanes; l++)
            few_values(1, p + l, v, t->v_stride, keys, d, alpha + l, mine + l * apart + 2, apart);
    }
}

static void few_part(void *ctx, int part, int parts) {
    const attention *t = ctx;
    int64_t from, to;
    tg_range(t->hkv * t->splits, 1, part, parts, &from, &to);
    for (int64_t task = from; task < to; task++) few_task(t, task / t->splits, task % t->splits);
}

static void few_merge(const attention *t) {
    const int64_t apart = t->d + 2;
    for (int64_t head = 0; head < t->hkv; head++)
        for (int64_t lane = 0; lane < t->lanes; lane++) {
            const real *piece = t->partial + (head * t->splits * t->lanes + lane) * apart;
            const int64_t step = t->lanes * apart;
            real most = NONE, sum = 0, *out = out_row(t, head, lane);
            for (int64_t p = 0; p < t->splits; p++) most = piece[p * step] > most ? piece[p * step] : most;
            for (int64_t i = 0; i < t->d; i++) out[i] = 0;
            for (int64_t p = 0; p < t->splits; p++) {
                real weight = r_exp(piece[p * step] - (most == NONE ? 0 : most));
                sum += weight * piece[p * step + 1];
                for (int64_t i = 0; i < t->d; i++) out[i] += weight * piece[p * step + 2 + i];
            }
            const double by = inverse_of(t, lane, sum);
            for (int64_t i = 0; i < t->d; i++) out[i] = (real)(out[i] * by);
        }
}

/* --- many lanes --- */

/* score[j][l]: soft cap, hiding, running maximum, exponential, running sum; alpha[l] is the old sum's factor. */
TG_INLINE void softmax_block(const attention *t, const int width, real *score, int64_t keys, int64_t j0,
                             const int64_t *row, const lane_int *pos, int hide, real *most, real *sum, real *alpha) {
    real top[REAL_PANEL], base[REAL_PANEL], total[REAL_PANEL];
    for (int l = 0; l < width; l++) top[l] = most[l], total[l] = 0;
    for (int64_t j = 0; j < keys; j++) {
        real *s = score + j * width;
        if (t->cap > 0)
            for (int l = 0; l < width; l++) s[l] = soft_cap(s[l], t->cap);
        if (hide) {
            const lane_int key = (lane_int)(j0 + j), window = (lane_int)tg_min(t->window, INT32_MAX);
            if (t->causal)
                for (int l = 0; l < width; l++) s[l] = key <= pos[l] ? s[l] : NONE;
            if (window > 0)
                for (int l = 0; l < width; l++) s[l] = pos[l] - key < window ? s[l] : NONE;
            if (t->mask)
                for (int l = 0; l < width; l++) s[l] = t->mask[row[l] * t->s + key] ? s[l] : NONE;
        }
        for (int l = 0; l < width; l++) top[l] = s[l] > top[l] ? s[l] : top[l];
    }
    for (int l = 0; l < width; l++) {
        base[l] = top[l] == NONE ? 0 : top[l];
        alpha[l] = r_exp(most[l] - base[l]);
        most[l] = top[l];
    }
    for (int64_t j0 = 0; j0 < keys; j0 += SUM) {
        real part[REAL_PANEL] = {0};
        for (int64_t j = j0; j < tg_min(j0 + SUM, keys); j++) {
            real *s = score + j * width;
            for (int l = 0; l < width; l++) {
                s[l] = r_exp(s[l] - base[l]);
                part[l] += s[l];
            }
        }
        for (int l = 0; l < width; l++) total[l] += part[l];
    }
    for (int l = 0; l < width; l++) sum[l] = sum[l] * alpha[l] + total[l];
}

/* to[keys][d]: one head of the keys from j0 on of a sequence, from its pages; zeros where these are outside of the pool. */
TG_INLINE void from_pages(const attention *t, const int32_t *pages, const void *pool, int64_t head, int64_t j0, int64_t keys, real *to) {
    const int64_t d = t->d;
    for (int64_t j = j0; j < j0 + keys; j++, to += d) {
        const int64_t row = pages[j / t->page] * t->page + j % t->page, at = (row * t->hkv + head) * d;
        if (row < 0 || row >= t->rows) memset(to, 0, (size_t)d * sizeof(real));
        else if (t->dtype == TG_F32 && sizeof(real) == 4) memcpy(to, (const float *)pool + at, (size_t)d * 4);
        else
            for (int64_t i = 0; i < d; i++) to[i] = (real)bf16_to_f32(((const uint16_t *)pool)[at + i]);
    }
}

/* The lanes [lane0, lane0 + count) of one head, count <= width = nv * VR; by pages they are of one sequence. By pages, blocks of keys
 * begin at multiples of KEYS, and a block that is hidden from a lane leaves it as it is: no bit of a result depends on the other lanes. */
TG_INLINE void many_task(const attention *t, const int nv, int64_t head, int64_t lane0, int64_t count) {
    const int width = nv * VR;
    const int64_t d = t->d;
    real *memory = tg_scratch(1, (size_t)(2 * d * width + KEYS * width + (t->pages ? 2 * KEYS * d : 0)) * sizeof(real));
    if (!memory) {
        for (int64_t l = lane0; l < lane0 + count; l++)
            for (int64_t i = 0; i < d; i++) out_row(t, head, l)[i] = __builtin_nan("");
        return;
    }
    real *q = memory, *o = q + d * width, *score = o + d * width, *near_k = score + KEYS * width, *near_v = near_k + KEYS * d;
    real most[REAL_PANEL], sum[REAL_PANEL], alpha[REAL_PANEL];
    int64_t row[REAL_PANEL];
    lane_int pos[REAL_PANEL];
    for (int l = 0; l < width; l++) {
        int64_t lane = lane0 + (l < count ? l : count - 1);
        row[l] = lane / t->group;
        pos[l] = (lane_int)position(t, lane);
        begin_sum(t, head, lane, most + l, sum + l);
        const real *from = query_row(t, head, lane);
        for (int64_t i = 0; i < d; i++) q[i * width + l] = from[i] * t->scale;
    }
    memset(o, 0, (size_t)(d * width) * sizeof(real));
    const int64_t low = position(t, lane0), high = position(t, lane0 + count - 1);
    const int64_t first = first_key(t, low), begin = t->pages ? first / KEYS * KEYS : first, end = end_key(t, high);
    const int64_t k_stride = t->pages ? d : t->k_stride, v_stride = t->pages ? d : t->v_stride;
    for (int64_t j0 = begin; j0 < end; j0 += KEYS) {
        const int64_t keys = tg_min(KEYS, end - j0);
        const real *k = near_k, *v = near_v;
        if (t->pages) {
            const int32_t *pages = t->pages + lane0 / t->group * t->width;
            from_pages(t, pages, t->k, head, j0, keys, near_k), from_pages(t, pages, t->v, head, j0, keys, near_v);
        } else
            k = t->k + j0 * t->k_stride + head * t->k_head, v = t->v + j0 * t->v_stride + head * t->v_head;
        ROWS_PRODUCT(keys, nv, K_CONTIGUOUS, k, k_stride, q, d, score, NULL);
        int hide = t->mask || (t->causal && j0 + keys - 1 > low) || (t->window > 0 && high - j0 >= t->window);
        softmax_block(t, width, score, keys, j0, row, pos, hide, most, sum, alpha);
        ROWS_PRODUCT(d, nv, ROWS_CONTIGUOUS, v, v_stride, score, keys, o, alpha);
    }
    for (int l = 0; l < count; l++) {
        real *out = out_row(t, head, lane0 + l);
        const double by = inverse_of(t, lane0 + l, sum[l]);
        for (int64_t i = 0; i < d; i++) out[i] = (real)(o[i * width + l] * by);
    }
}

static void many_part(void *ctx, int part, int parts) {
    const attention *t = ctx;
    int64_t from, to, blocks = tg_ceil(t->lanes, REAL_PANEL);
    tg_range(t->hkv * blocks, 1, part, parts, &from, &to);
    for (int64_t task = from; task < to; task++) {
        /* the last lanes see most keys: begin with them, so that no thread is left with a long task */
        int64_t head = task % t->hkv, lane0 = (blocks - 1 - task / t->hkv) * REAL_PANEL, count = tg_min(REAL_PANEL, t->lanes - lane0);
        if (count <= VR) many_task(t, 1, head, lane0, count);
        else many_task(t, 2, head, lane0, count);
    }
}

static void run_attention(void *const *ptr, const int64_t *ints, const double *floats) {
    attention t = {.out = ptr[0], .q = ptr[1], .k = ptr[2], .v = ptr[3], .mask = ptr[4], .n = ints[0], .s = ints[1],
                   .hq = ints[2], .hkv = ints[3], .d = ints[4], .causal = ints[5], .window = ints[6], .start = ints[7],
                   .k_stride = ints[8], .v_stride = ints[9], .scale = (real)floats[0], .cap = (real)floats[1]};
    if (t.n <= 0 || t.hq <= 0 || t.hkv <= 0 || t.d <= 0) return;
    t.q_head = ints[11] ? ints[11] : t.d;
    t.k_head = ints[12] ? ints[12] : t.d;
    t.v_head = ints[13] ? ints[13] : t.d;
    t.q_stride = ints[11] ? ints[10] : t.hq * t.d;
    t.group = t.hq / t.hkv;
    t.lanes = t.n * t.group;
    if (t.lanes <= FEW_LANES) {
        t.lo = first_key(&t, t.start);
        t.hi = tg_max_i(t.lo, end_key(&t, t.start + t.n - 1));
        int64_t blocks = tg_ceil(t.hi - t.lo, FEW_KEYS), threads = tg_threads();
        int64_t work = (t.hi - t.lo) * t.d * t.hkv * (int64_t)(sizeof(real) / 2);
        t.splits = work < 2 * PART_ELEMENTS ? 1 : tg_max_i(1, tg_min(blocks, tg_ceil(4 * threads, t.hkv)));
        t.partial = tg_scratch(0, (size_t)(t.hkv * t.splits * t.lanes * (t.d + 2)) * sizeof(real));
        if (t.partial) {
            int64_t tasks = t.hkv * t.splits;
            tg_parallel(few_part, &t, tg_parts(tasks, tg_ceil(tasks * PART_ELEMENTS, tg_max_i(work, 1))));
            few_merge(&t);
            return;
        }
    }
    int64_t tasks = t.hkv * tg_ceil(t.lanes, REAL_PANEL);
    tg_parallel(many_part, &t, (int)tg_min(tasks, 4096));
}
