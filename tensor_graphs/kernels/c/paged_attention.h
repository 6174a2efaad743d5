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

static void paged_part(void *ctx, int part, int parts) {
    const paged *p = ctx;
    for (int64_t task = part; task < p->count * p->t.hkv; task += parts) { /* in turn: few have long tasks, and they are neighbours */
        const panel *these = p->panels + task / p->t.hkv;
        if (these->count <= VR) many_task(&p->t, 1, task % p->t.hkv, these->lane0, these->count);
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
    paged p = {.t = {.out = ptr[0], .q = ptr[1], .k = ptr[2], .v = ptr[3], .pages = ptr[4], .positions = ptr[5], .n = ints[0],
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
