/* attention.c: softmax(scale q k^T) v with grouped heads, causal order, sliding window, mask and soft cap.
 *
 * All queries that share a key/value head are lanes: lane = (query, head of the group). Few lanes (decoding): every key is
 * read once, keys cut between threads, partial softmaxes merged. Many lanes (prefill): blocks of PANEL lanes side by side in
 * registers, blocks of keys one after another; memory is O(block). Both keep a running maximum and sum per lane
 * (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018). */
#include "gemm.h"
#include "loops.h"

/* SUM: terms that add up in f32 before they go into a larger sum. */
enum { FEW_LANES = 8, FEW_KEYS = 64, KEYS = 8 * TILE_ROWS, SUM = 16 };

typedef struct attention {
    float *out;
    const float *q, *k, *v;
    const uint8_t *mask;
    int64_t n, s, hq, hkv, d, causal, window, start, k_stride, v_stride, q_stride, q_head, k_head, v_head;
    float scale, cap;
    int64_t group, lanes;  /* lanes = n * group, per key/value head */
    int64_t splits, lo, hi; /* few lanes: keys [lo, hi) in `splits` pieces */
    float *partial;        /* few lanes: [hkv][splits][lanes][2 + d]: maximum, sum, weighted values */
} attention;

static const float NONE = -__builtin_inff();

TG_INLINE int64_t position(const attention *t, int64_t lane) { return t->start + lane / t->group; }

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

TG_INLINE const float *query_row(const attention *t, int64_t head, int64_t lane) {
    return t->q + lane / t->group * t->q_stride + (head * t->group + lane % t->group) * t->q_head;
}

TG_INLINE float *out_row(const attention *t, int64_t head, int64_t lane) {
    return t->out + ((lane / t->group) * t->hq + head * t->group + lane % t->group) * t->d;
}

TG_INLINE float soft_cap(float x, float cap) { return cap * f32_tanh(x / cap); }

/* 1 / sum in two floats: its rounding error would be the same for a whole row, and such errors do not average out. A sum of 0 is
 * that of a query that sees nothing, whose values are zeros, or of one all of whose scores are -inf, which has no answer. */
typedef struct inverse {
    float high, low;
} inverse;

static inverse inverse_of(const attention *t, int64_t lane, float sum) {
    double exact = sum == 0.0f ? 0.0 : 1.0 / sum;
    if (sum == 0.0f)
        for (int64_t key = 0; key < t->s && exact == 0.0; key++)
            if (visible(t, lane, key)) exact = __builtin_nan("");
    return (inverse){(float)exact, (float)(exact - (float)exact)};
}

/* --- few lanes --- */

/* score[j][l] = q[l] . k[j] for `lanes` lanes over `keys` keys; q is scaled. In f64, since an error of a score is as large an
 * error, relatively, of its weight. */
TG_INLINE void few_scores(const int lanes, const float *q, const float *k, int64_t k_stride, int64_t keys, int64_t d,
                          double *score) {
    for (int64_t j = 0; j < keys; j++, k += k_stride) {
        vf acc[4][2];
        for (int l = 0; l < lanes; l++) acc[l][0] = acc[l][1] = (vf){0};
        int64_t i = 0;
        for (; i + 2 * VW <= d; i += 2 * VW) {
            __builtin_prefetch(k + 2 * k_stride + i, 0, 3);
            vf k0 = v_load(k + i), k1 = v_load(k + i + VW);
            for (int l = 0; l < lanes; l++) {
                acc[l][0] += k0 * v_load(q + l * d + i);
                acc[l][1] += k1 * v_load(q + l * d + i + VW);
            }
        }
        for (int l = 0; l < lanes; l++) {
            double dot = v_sum_wide(acc[l][0] + acc[l][1]);
            for (int64_t t = i; t < d; t++) dot += (double)k[t] * q[l * d + t];
            score[j * FEW_LANES + l] = dot;
        }
    }
}

/* o[l] = o[l] * alpha[l] + sum over j of p[j][l] v[j]; o rows lie `apart`. */
TG_INLINE void few_values(const int lanes, const float *p, const float *v, int64_t v_stride, int64_t keys, int64_t d,
                          const float *alpha, float *o, int64_t apart) {
    int64_t i = 0;
    for (; i + 2 * VW <= d; i += 2 * VW) {
        vf sum[4][2], acc[4][2];
        for (int l = 0; l < lanes; l++) sum[l][0] = sum[l][1] = (vf){0};
        for (int64_t j0 = 0; j0 < keys; j0 += SUM) {
            for (int l = 0; l < lanes; l++) acc[l][0] = acc[l][1] = (vf){0};
            for (int64_t j = j0; j < tg_min(j0 + SUM, keys); j++) {
                vf v0 = v_load(v + j * v_stride + i), v1 = v_load(v + j * v_stride + i + VW);
                for (int l = 0; l < lanes; l++) {
                    vf weight = v_splat(p[j * FEW_LANES + l]);
                    acc[l][0] += weight * v0;
                    acc[l][1] += weight * v1;
                }
            }
            for (int l = 0; l < lanes; l++)
                for (int h = 0; h < 2; h++) sum[l][h] += acc[l][h];
        }
        for (int l = 0; l < lanes; l++)
            for (int h = 0; h < 2; h++) {
                float *to = o + l * apart + i + h * VW;
                v_store(to, v_load(to) * v_splat(alpha[l]) + sum[l][h]);
            }
    }
    for (int l = 0; l < lanes; l++)
        for (int64_t t = i; t < d; t++) {
            double sum = (double)o[l * apart + t] * alpha[l];
            for (int64_t j = 0; j < keys; j++) sum += (double)p[j * FEW_LANES + l] * v[j * v_stride + t];
            o[l * apart + t] = (float)sum;
        }
}

/* One (head, split): leaves its maximum, sum and weighted values in t->partial. */
static void few_task(const attention *t, int64_t head, int64_t split) {
    const int64_t d = t->d, lanes = t->lanes, apart = d + 2;
    float *mine = t->partial + (head * t->splits + split) * lanes * apart;
    float *q = tg_scratch(1, (size_t)(lanes * d) * 4 + 4);
    double score[FEW_KEYS * FEW_LANES];
    double top[FEW_LANES], base[FEW_LANES];
    float p[FEW_KEYS * FEW_LANES], alpha[FEW_LANES];
    for (int64_t l = 0; l < lanes; l++) {
        mine[l * apart] = NONE;
        top[l] = NONE, base[l] = 0;
        for (int64_t i = 1; i < apart; i++) mine[l * apart + i] = q ? 0.0f : __builtin_nanf("");
        if (!q) continue;
        const float *from = query_row(t, head, l);
        for (int64_t i = 0; i < d; i++) q[l * d + i] = from[i] * t->scale;
    }
    if (!q) return;
    int64_t blocks = tg_ceil(t->hi - t->lo, FEW_KEYS);
    int64_t from = t->lo + blocks * split / t->splits * FEW_KEYS;
    int64_t to = tg_min(t->hi, t->lo + blocks * (split + 1) / t->splits * FEW_KEYS);
    for (int64_t j0 = from; j0 < to; j0 += FEW_KEYS) {
        const int64_t keys = tg_min(FEW_KEYS, to - j0);
        const float *k = t->k + j0 * t->k_stride + head * t->k_head, *v = t->v + j0 * t->v_stride + head * t->v_head;
        int64_t l = 0;
        for (; l + 4 <= lanes; l += 4) few_scores(4, q + l * d, k, t->k_stride, keys, d, score + l);
        for (; l < lanes; l++) few_scores(1, q + l * d, k, t->k_stride, keys, d, score + l);
        for (l = 0; l < lanes; l++) {
            double before = top[l], most = before;
            for (int64_t j = 0; j < keys; j++) {
                double *s = score + j * FEW_LANES + l;
                if (t->cap > 0) *s = soft_cap((float)*s, t->cap);
                if (!visible(t, l, j0 + j)) *s = NONE;
                most = *s > most ? *s : most;
            }
            /* as it is stored, unless the rounding is no small matter: exp(score - most) of huge scores would overflow */
            float stored = (float)most;
            if (most - stored < 0.5 && stored - most < 0.5) most = stored;
            base[l] = most == NONE ? 0 : most;
            alpha[l] = f32_exp((float)(before - base[l]));
            top[l] = most;
            mine[l * apart] = stored;
        }
        for (int64_t j = 0; j < keys; j++) /* FEW_LANES wide, so that it is one vector */
            for (l = 0; l < lanes; l++) p[j * FEW_LANES + l] = f32_exp((float)(score[j * FEW_LANES + l] - base[l]));
        for (l = 0; l < lanes; l++) {
            double sum = (double)mine[l * apart + 1] * alpha[l];
            for (int64_t j = 0; j < keys; j++) sum += p[j * FEW_LANES + l];
            mine[l * apart + 1] = (float)sum;
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
            const float *piece = t->partial + (head * t->splits * t->lanes + lane) * apart;
            const int64_t step = t->lanes * apart;
            float most = NONE, sum = 0, *out = out_row(t, head, lane);
            for (int64_t p = 0; p < t->splits; p++) most = piece[p * step] > most ? piece[p * step] : most;
            for (int64_t i = 0; i < t->d; i++) out[i] = 0;
            for (int64_t p = 0; p < t->splits; p++) {
                float weight = f32_exp(piece[p * step] - (most == NONE ? 0.0f : most));
                sum += weight * piece[p * step + 1];
                for (int64_t i = 0; i < t->d; i++) out[i] += weight * piece[p * step + 2 + i];
            }
            const inverse by = inverse_of(t, lane, sum);
            for (int64_t i = 0; i < t->d; i++) out[i] = out[i] * by.high + out[i] * by.low;
        }
}

/* --- many lanes --- */

/* score[j][l]: soft cap, hiding, running maximum, exponential, running sum; alpha[l] is the old sum's factor. */
TG_INLINE void softmax_block(const attention *t, const int width, float *score, int64_t keys, int64_t j0,
                             const int64_t *row, const int32_t *pos, int hide, float *most, float *sum, float *alpha) {
    float top[PANEL], base[PANEL], total[PANEL];
    for (int l = 0; l < width; l++) top[l] = most[l], total[l] = 0;
    for (int64_t j = 0; j < keys; j++) {
        float *s = score + j * width;
        if (t->cap > 0)
            for (int l = 0; l < width; l++) s[l] = soft_cap(s[l], t->cap);
        if (hide) {
            const int32_t key = (int32_t)(j0 + j), window = (int32_t)tg_min(t->window, INT32_MAX);
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
        base[l] = top[l] == NONE ? 0.0f : top[l];
        alpha[l] = f32_exp(most[l] - base[l]);
        most[l] = top[l];
    }
    for (int64_t j0 = 0; j0 < keys; j0 += SUM) {
        float part[PANEL] = {0};
        for (int64_t j = j0; j < tg_min(j0 + SUM, keys); j++) {
            float *s = score + j * width;
            for (int l = 0; l < width; l++) {
                s[l] = f32_exp(s[l] - base[l]);
                part[l] += s[l];
            }
        }
        for (int l = 0; l < width; l++) total[l] += part[l];
    }
    for (int l = 0; l < width; l++) sum[l] = sum[l] * alpha[l] + total[l];
}

/* The lanes [lane0, lane0 + count) of one head, count <= width = nv * VW. */
TG_INLINE void many_task(const attention *t, const int nv, int64_t head, int64_t lane0, int64_t count) {
    const int width = nv * VW;
    const int64_t d = t->d, apart = (d + 15) / 16 * 16 + 16;
    const int copy_keys = t->k_stride % 512 == 0; /* rows 2048 bytes apart crowd few sets of the L1 cache */
    float *memory = tg_scratch(1, (size_t)(2 * d * width + KEYS * width + KEYS * apart) * 4);
    if (!memory) {
        for (int64_t l = lane0; l < lane0 + count; l++)
            for (int64_t i = 0; i < d; i++) out_row(t, head, l)[i] = __builtin_nanf("");
        return;
    }
    float *q = memory, *o = q + d * width, *score = o + d * width, *copied = score + KEYS * width;
    float most[PANEL], sum[PANEL], alpha[PANEL];
    int64_t row[PANEL];
    int32_t pos[PANEL];
    for (int l = 0; l < width; l++) {
        int64_t lane = lane0 + (l < count ? l : count - 1);
        row[l] = lane / t->group;
        pos[l] = (int32_t)position(t, lane);
        most[l] = NONE, sum[l] = 0;
        const float *from = query_row(t, head, lane);
        for (int64_t i = 0; i < d; i++) q[i * width + l] = from[i] * t->scale;
    }
    memset(o, 0, (size_t)(d * width) * 4);
    const int64_t low = position(t, lane0), high = position(t, lane0 + count - 1);
    const int64_t begin = first_key(t, low), end = end_key(t, high);
    for (int64_t j0 = begin; j0 < end; j0 += KEYS) {
        const int64_t keys = tg_min(KEYS, end - j0);
        const float *k = t->k + j0 * t->k_stride + head * t->k_head, *v = t->v + j0 * t->v_stride + head * t->v_head;
        int64_t k_stride = t->k_stride;
        if (copy_keys) {
            for (int64_t j = 0; j < keys; j++) memcpy(copied + j * apart, k + j * k_stride, (size_t)d * 4);
            k = copied, k_stride = apart;
        }
        tg_rows_product(keys, nv, K_CONTIGUOUS, k, k_stride, q, d, score, NULL, NULL);
        int hide = t->mask || (t->causal && j0 + keys - 1 > low) || (t->window > 0 && high - j0 >= t->window);
        softmax_block(t, width, score, keys, j0, row, pos, hide, most, sum, alpha);
        tg_rows_product(d, nv, ROWS_CONTIGUOUS, v, t->v_stride, score, keys, o, alpha, NULL);
    }
    for (int l = 0; l < count; l++) {
        float *out = out_row(t, head, lane0 + l);
        const inverse by = inverse_of(t, lane0 + l, sum[l]);
        for (int64_t i = 0; i < d; i++) out[i] = o[i * width + l] * by.high + o[i * width + l] * by.low;
    }
}

static void many_part(void *ctx, int part, int parts) {
    const attention *t = ctx;
    int64_t from, to, blocks = tg_ceil(t->lanes, PANEL);
    tg_range(t->hkv * blocks, 1, part, parts, &from, &to);
    for (int64_t task = from; task < to; task++) {
        /* the last lanes see most keys: begin with them, so that no thread is left with a long task */
        int64_t head = task % t->hkv, lane0 = (blocks - 1 - task / t->hkv) * PANEL, count = tg_min(PANEL, t->lanes - lane0);
        if (count <= VW) many_task(t, 1, head, lane0, count);
        else many_task(t, 2, head, lane0, count);
    }
}

/* out[n,hq,d] from q[n,hq,d], k[s,hkv,d], v[s,hkv,d]; head h reads key/value head h / (hq / hkv). Query i has position
 * start + i, key j position j. Key j is visible to position p if (not causal or j <= p) and (window = 0 or p - j < window)
 * and (no mask or mask[i,j]). softcap c > 0: scores become c tanh(score / c). A query that sees nothing gives zeros.
 * ptr: out, q, k, v, mask (u8 [n,s], 0 = hidden) or NULL.
 * ints: n, s, hq, hkv, d, causal, window, start, k_stride, v_stride (elements from one key to the next), q_stride, q_head (from
 * one query, and from one head of it, to the next; q_head 0: one behind the other), k_head, v_head (from one head of a key to the
 * next; 0: one behind the other).
 * floats: scale, softcap (0: none). */
TG_KERNEL(tg_attention) {
    attention t = {.out = ptr[0], .q = ptr[1], .k = ptr[2], .v = ptr[3], .mask = ptr[4], .n = ints[0], .s = ints[1],
                   .hq = ints[2], .hkv = ints[3], .d = ints[4], .causal = ints[5], .window = ints[6], .start = ints[7],
                   .k_stride = ints[8], .v_stride = ints[9], .scale = (float)floats[0], .cap = (float)floats[1]};
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
        int64_t work = (t.hi - t.lo) * t.d * t.hkv * 2;
        t.splits = work < 2 * PART_ELEMENTS ? 1 : tg_max_i(1, tg_min(blocks, tg_ceil(4 * threads, t.hkv)));
        t.partial = tg_scratch(0, (size_t)(t.hkv * t.splits * t.lanes * (t.d + 2)) * 4);
        if (t.partial) {
            int64_t tasks = t.hkv * t.splits;
            tg_parallel(few_part, &t, tg_parts(tasks, tg_ceil(tasks * PART_ELEMENTS, tg_max_i(work, 1))));
            few_merge(&t);
            return;
        }
    }
    int64_t tasks = t.hkv * tg_ceil(t.lanes, PANEL);
    tg_parallel(many_part, &t, (int)tg_min(tasks, 4096));
}
