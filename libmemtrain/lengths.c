/*
 * lengths.c - a kind of a new length begins with what is known of others of its family.
 *
 * Sizes of allocations are polynomials of the length, of degree 2 where attention is. So a peak is the parabola through those
 * of three lengths, as long as the kernels are the same; a chunk that peaks elsewhere shows that they are not.
 */
#include "policy_state.h"
#include "tuned.h"

#include <math.h>

/* The lengths that one is told from, and the weights of their peaks. */
typedef struct basis {
    const mt__kind *of[MT__LENGTHS];
    double weight[MT__LENGTHS];
} basis;

/* How far a length is away: by the ratio, since the ratio is what times and peaks go with. */
static double distance(size_t length, size_t of) {
    return fabs(log((double)of / (double)length));
}

static int is_relative(const mt__kind *k, const mt__kind *of) {
    return of->length && (of->family == k->family) & (of->key.mode == k->key.mode) &
                             (of->key.rungs == k->key.rungs);
}

/* Whether recordings of two sizes at least have told of its peaks. */
static int is_learnt(const mt__kind *k) {
    for (size_t i = 0; i < k->ranges; i++)
        if (k->range[i].from == k->range[i].top) return 0;
    return k->ranges && !k->is_inherited; /* one that was cut short has one size */
}

/* Whether a length tells more than one that is nearer. */
static int is_apart(const mt__kind *of, const basis *b, int count) {
    for (int i = 0; i < count; i++)
        if (distance(of->length, b->of[i]->length) < LENGTHS_APART) return 0;
    return 1;
}

/* The nearest length that tells more than those of a basis; without one the nearest of which a time is known. NULL: none. */
static const mt__kind *find_nearest(const mt_policy *p, const mt__kind *k, const basis *b,
                                    int count) {
    const mt__kind *nearest = NULL;
    for (size_t i = 0; i < MT__BUCKETS; i++)
        for (const mt__kind *of = p->kinds[i]; of; of = of->next)
            if (is_relative(k, of) &&
                (b ? is_learnt(of) && is_apart(of, b, count) : of->times->sizes.count > 0) &&
                (!nearest ||
                 distance(k->length, of->length) < distance(k->length, nearest->length)))
                nearest = of;
    return nearest;
}

/* The nearest lengths that are apart. Returns 0 where there are too few. */
static int find_basis(const mt_policy *p, const mt__kind *k, basis *b) {
    for (int count = 0; count < MT__LENGTHS; count++)
        if (!(b->of[count] = find_nearest(p, k, b, count))) return 0;
    return 1;
}

/* Lagrange's weights; how much they come to without their signs, which is 1 between lengths and more beyond them. */
static double weigh(const mt__kind *k, basis *b) {
    double sum = 0;
    for (int i = 0; i < MT__LENGTHS; i++) {
        b->weight[i] = 1;
        for (int j = 0; j < MT__LENGTHS; j++)
            if (j != i)
                b->weight[i] *= ((double)k->length - (double)b->of[j]->length) /
                                ((double)b->of[i]->length - (double)b->of[j]->length);
        sum += fabs(b->weight[i]);
    }
    return sum;
}

static int are_alike(const basis *b) {
    for (int i = 1; i < MT__LENGTHS; i++)
        if (b->of[i]->ranges != b->of[0]->ranges) return 0;
    return 1;
}

static mt_status model_between(const basis *b, size_t range, mt__way way, mt_memory_model **out) {
    const mt_memory_model *of[MT__LENGTHS];
    for (int i = 0; i < MT__LENGTHS; i++)
        if (!(of[i] = b->of[i]->range[range].model[way])) return MT_OK;
    return mt__memory_model_between(of, b->weight, out);
}

static void inherit_peaks(mt__kind *k, const basis *b) {
    mt_status status = MT_OK;
    k->is_inherited = k->has_run = 1;
    for (size_t i = 0; status == MT_OK && i < b->of[0]->ranges; i++) {
        mt__range *r = &k->range[k->ranges++];
        *r = (mt__range){b->of[0]->range[i].from, b->of[0]->range[i].top, {NULL, NULL}};
        for (int way = 0; status == MT_OK && way < MT__WAYS; way++)
            status = model_between(b, i, (mt__way)way, &r->model[way]);
    }
    if (status == MT_OK) return;
    mt__kind_drop_ranges(k);
    k->has_run = 0;
}

/* Seconds a unit of length are taken to be alike for lengths that are near, and for others at first. */
static void inherit_times(mt__kind *k, const mt__kind *of) {
    k->too_small = of->too_small;
    if (distance(k->length, of->times->length) < LENGTHS_APART)
        mt__kind_share_times(k, of);
    else
        k->times->sizes = of->times->sizes;
}

void mt__lengths_inherit(const mt_policy *p, mt__kind *k) {
    basis b;
    if (!k->length || !find_basis(p, k, &b)) return;
    if (weigh(k, &b) > MOST_WEIGHT || !are_alike(&b)) return;
    inherit_peaks(k, &b);
    const mt__kind *timed = k->is_inherited ? find_nearest(p, k, NULL, 0) : NULL;
    if (timed) inherit_times(k, timed);
}
