/* paged_attention.h: attention over keys and values in pages of a pool, the body of the second kernel of attention.c. */
#ifndef TG_PAGED_ATTENTION_H
#define TG_PAGED_ATTENTION_H

/* Lanes of one sequence that are computed together. */
typedef struct panel {
    int64_t lane0, count;
} panel;

typedef struct paged {
    attention t;
    panel *panels;
    int64_t count;
} paged;

/* Whether query i continues the sequence of query i - 1: the next position, and the same pages as far as it sees them. */
TG_INLINE int continues(const attention *t, int64_t i) {
    const int32_t *before = t->pages + (i - 1) * t->width, *pages = t->pages + i * t->width, at = t->positions[i];
    if (at != t->positions[i - 1] + 1 || at <= 0) return 0;
    return !memcmp(before, pages, (size_t)tg_min(t->width, at / t->page + 1) * sizeof(int32_t));
}

/* --- a token that decodes: few lanes --- */

enum { FEW_PANEL = VR / 2, SUM_STEPS = 32 /* products that add up before they go into a sum: BLOCK of gemm.c */ };

/* score[l][j] = q[l] . k[j] for `lanes` lanes and VR keys, k turned; the sums of tile_product of gemm.c, bit by bit. */
TG_INLINE void turned_scores(const int lanes, const real *q, const real *turned, int64_t d, real *score) {
    vr sum[4];
    for (int64_t from = 0; from < d; from += SUM_STEPS) {
        vr acc[4];
        for (int l = 0; l < lanes; l++) acc[l] = (vr){0};
        for (int64_t i = from; i < tg_min(from + SUM_STEPS, d); i++)
            for (int l = 0; l < lanes; l++) acc[l] += r_splat(q[l * d + i]) * r_load(turned + i * VR);
        for (int l = 0; l < lanes; l++) sum[l] = from ? sum[l] + acc[l] : acc[l];
    }
    for (int l = 0; l < lanes; l++) r_store(score + l * KEYS, sum[l]);
}

/* o[l] = o[l] * alpha[l] + sum over j of p[l][j] v[j]; the sums of tile_product, bit by bit. */
TG_INLINE void turned_values(const int lanes, const real *p, const real *v, int64_t keys, int64_t d, const real *alpha, real *o) {
    for (int64_t i = 0; i < d; i += VR) {
        vr sum[4];
        for (int64_t from = 0; from < keys; from += SUM_STEPS) {
            vr acc[4];
            for (int l = 0; l < lanes; l++) acc[l] = (vr){0};
            for (int64_t j = from; j < tg_min(from + SUM_STEPS, keys); j++) {
                const vr value = r_load(v + j * d + i);
                for (int l = 0; l < lanes; l++) acc[l] += r_splat(p[l * KEYS + j]) * value;
            }
            for (int l = 0; l < lanes; l++) sum[l] = from ? sum[l] + acc[l] : acc[l];
        }
        for (int l = 0; l < lanes; l++) r_store(o + l * d + i, r_load(o + l * d + i) * r_splat(alpha[l]) + sum[l]);
    }
}

/* One lane's softmax_block. */
TG_INLINE real softmax_lane(const attention *t, real *score, int64_t keys, int64_t j0, int64_t pos, real *most, real *sum) {
    real top = *most, total = 0;
    if (t->cap > 0)
        for (int64_t j = 0; j < keys; j++) score[j] = soft_cap(score[j], t->cap);
    for (int64_t j = 0; j < keys && t->window > 0 && pos - (j0 + j) >= t->window; j++) score[j] = NONE;
    for (int64_t j = 0; j < keys; j++) top = score[j] > top ? score[j] : top;
    const real base = top == NONE ? 0 : top, alpha = r_exp(*most - base);
    for (int64_t j = 0; j < keys; j++) score[j] = r_exp(score[j] - base);
    for (int64_t at = 0; at < keys; at += SUM) {
        real part = 0;
        for (int64_t j = at; j < tg_min(at + SUM, keys); j++) part += score[j];
        total += part;
    }
    *most = top, *sum = *sum * alpha + total;
    return alpha;
}

/* many_task for the few lanes of one token, with the same bits: vectors are of keys and of channels instead of lanes. */
static void one_token(const attention *t, int64_t head, int64_t lane0, int64_t count) {
    const int64_t d = t->d, pos = position(t, lane0);
    const int32_t *pages = t->pages + lane0 / t->group * t->width;
    real *memory = tg_scratch(1, (size_t)(2 * count * d + count * KEYS + d * VR + 2 * KEYS * d) * sizeof(real));
    real *q = memory, *o = q + count * d, *score = o + count * d, *turned = score + count * KEYS, *k = turned + d * VR, *v = k + KEYS * d;
    real most[FEW_PANEL], sum[FEW_PANEL], alpha[FEW_PANEL];
    for (int64_t l = 0; l < count; l++) {
        begin_sum(t, head, lane0 + l, most + l, sum + l);
        if (!memory)
            for (int64_t i = 0; i < d; i++) out_row(t, head, lane0 + l)[i] = __builtin_nan("");
        else
            for (int64_t i = 0; i < d; i++) q[l * d + i] = query_row(t, head, lane0 + l)[i] * t->scale, o[l * d + i] = 0;
    }
    const int64_t end = memory ? end_key(t, pos) : 0;
    for (int64_t j0 = first_key(t, pos) / KEYS * KEYS; j0 < end; j0 += KEYS) {
        const int64_t keys = tg_min(KEYS, end - j0);
        from_pages(t, pages, t->k, head, j0, keys, k), from_pages(t, pages, t->v, head, j0, keys, v);
        for (int64_t j = 0, l; j < keys; j += VR) {
            turned_real(turned, VR, k + j * d, d, d, tg_min(VR, keys - j));
            for (l = 0; l + 4 <= count; l += 4) turned_scores(4, q + l * d, turned, d, score + l * KEYS + j);
            if (count - l == 3) turned_scores(3, q + l * d, turned, d, score + l * KEYS + j);
            else if (count - l == 2) turned_scores(2, q + l * d, turned, d, score + l * KEYS + j);
            else if (count - l == 1) turned_scores(1, q + l * d, turned, d, score + l * KEYS + j);
        }
        int64_t l = 0;
        for (; l < count; l++) alpha[l] = softmax_lane(t, score + l * KEYS, keys, j0, pos, most + l, sum + l);
        for (l = 0; l + 4 <= count; l += 4) turned_values(4, score + l * KEYS, v, keys, d, alpha + l, o + l * d);
        if (count - l == 3) turned_values(3, score + l * KEYS, v, keys, d, alpha + l, o + l * d);
        else if (count - l == 2) turned_values(2, score + l * KEYS, v, keys, d, alpha + l, o + l * d);
        else if (count - l == 1) turned_values(1, score + l * KEYS, v, keys, d, alpha + l, o + l * d);
    }
    for (int64_t l = 0; l < count && memory; l++) {
        const double by = inverse_of(t, lane0 + l, sum[l]);
        for (int64_t i = 0; i < d; i++) out_row(t, head, lane0 + l)[i] = (real)(o[l * d + i] * by);
    }
}

static void paged_part(void *ctx, int part, int parts) {
    const paged *p = ctx;
    for (int64_t task = part; task < p->count * p->t.hkv; task += parts) { /* in turn: few have long tasks, and they are neighbours */
        const panel *these = p->panels + task / p->t.hkv;
        if (these->count <= FEW_PANEL && these->count <= p->t.group && p->t.d % VR == 0 && p->t.d <= 256)
            one_token(&p->t, task % p->t.hkv, these->lane0, these->count);
        else if (these->count <= VR) many_task(&p->t, 1, task % p->t.hkv, these->lane0, these->count);
        else many_task(&p->t, 2, task % p->t.hkv, these->lane0, these->count);
    }
}

/* Cuts the lanes into panels, each of one sequence. */
static int64_t cut(const attention *t, panel *panels) {
    int64_t count = 0;
    for (int64_t i = 0, run = 1; i < t->n; i += run) {
        for (run = 1; i + run < t->n && continues(t, i + run);) run++;
        for (int64_t lane = i * t->group, end = lane + run * t->group; lane < end; lane += REAL_PANEL)
            panels[count++] = (panel){lane, tg_min(REAL_PANEL, end - lane)};
    }
    return count;
}

static void run_paged(void *const *ptr, const int64_t *ints, const double *floats) {
    paged p = {.t = {.out = ptr[0], .q = ptr[1], .k = ptr[2], .v = ptr[3], .pages = ptr[4], .positions = ptr[5], .sinks = ptr[6], .n = ints[0],
                     .hq = ints[1], .hkv = ints[2], .d = ints[3], .width = ints[4], .page = ints[5], .rows = ints[6], .causal = 1,
                     .window = ints[7], .dtype = ints[8], .s = ints[4] * ints[5], .scale = (real)floats[0], .cap = (real)floats[1]}};
    attention *t = &p.t;
    if (t->n <= 0 || t->hq <= 0 || t->hkv <= 0 || t->d <= 0) return;
    t->group = t->hq / t->hkv, t->lanes = t->n * t->group, t->q_head = t->d, t->q_stride = t->hq * t->d;
    const int64_t elements = t->n * t->hq * t->d, narrow = ints[9] == TG_BF16;
    uint16_t *out = ptr[0];
    p.panels = tg_scratch(0, (size_t)(t->n * (t->group / REAL_PANEL + 1)) * sizeof(panel));
    float *wide = narrow ? tg_scratch(2, (size_t)(2 * elements) * 4) : NULL;
    if (!p.panels || (narrow && !wide)) { /* no memory: numbers that no one takes for a result */
        for (int64_t i = 0; i < elements; i++)
            if (narrow) out[i] = 0x7fc0;
            else t->out[i] = __builtin_nanf("");
        return;
    }
    for (int64_t i = 0; narrow && i < elements; i++) wide[i] = bf16_to_f32(((const uint16_t *)ptr[1])[i]);
    if (narrow) t->q = wide, t->out = wide + elements;
    p.count = cut(t, p.panels);
    tg_parallel(paged_part, &p, (int)tg_min(p.count * t->hkv, 4096));
    for (int64_t i = 0; narrow && i < elements; i++) out[i] = bf16_of_f32(t->out[i]);
}

#endif
