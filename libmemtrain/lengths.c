/*
 * lengths.c - a kind of a new length begins with what is known of others of its family.
 *
 * Sizes of allocations are polynomials of the length, of degree 2 where attention is. So a peak is the parabola through those
 * of three lengths, as long as the kernels are the same; a chunk that peaks elsewhere shows that they are not.
 */
#include "policy_state.h"
#include "tuned.h"

#include <math.h>

/* How far a length is away: by the ratio, since the ratio is what times and peaks go with. */
static double distance(size_t length, size_t of) {
    return fabs(log((double)of / (double)length));
}

/* Whether recordings of two sizes at least have told of its peaks. */
static int is_learnt(const mt__kind *k) {
    for (size_t i = 0; i < k->ranges; i++)
        if (k->range[i].from == k->range[i].top) return 0;
    return k->ranges && !k->is_inherited; /* one that was cut short has one size */
}

/* Whether it tells of lengths more than those that are nearer, of which there are so many. */
static int tells_more(const mt__kind *of, const mt__kind *const *nearer, int count) {
    for (int i = 0; i < count; i++)
        if (distance(of->length, nearer[i]->length) < LENGTHS_APART) return 0;
    return is_learnt(of);
}

/* The nearest length that tells more than those; nearer NULL: of which a time is known. NULL: there is none. */
static const mt__kind *find_nearest(const mt_policy *p, const mt__kind *k,
                                    const mt__kind *const *nearer, int count) {
    const mt__kind *nearest = NULL;
    for (size_t i = 0; i < MT__BUCKETS; i++)
        for (const mt__kind *of = p->kinds[i]; of; of = of->next) {
            int is_relative = of->length && (of->family == k->family) &
                                                (of->key.mode == k->key.mode) &
                                                (of->key.rungs == k->key.rungs);
            if (is_relative &&
                (nearer ? tells_more(of, nearer, count) : of->times->sizes.count > 0) &&
                (!nearest ||
                 distance(k->length, of->length) < distance(k->length, nearest->length)))
                nearest = of;
        }
    return nearest;
}

/* One range of a kind, as the ranges of three others tell with these weights. Returns 0 when out of host memory. */
static int inherit_range(mt__kind *k, const mt__kind *const of[MT__LENGTHS],
                         const double weight[MT__LENGTHS]) {
    size_t i = k->ranges++;
    mt__range *range = &k->range[i];
    *range = (mt__range){of[0]->range[i].from, of[0]->range[i].top, {NULL, NULL}};
    for (int way = 0; way < MT__WAYS; way++) {
        const mt_memory_model *model[MT__LENGTHS];
        int known = 0;
        while (known < MT__LENGTHS && (model[known] = of[known]->range[i].model[way])) known++;
        if (known < MT__LENGTHS) continue;
        if (!(range->model[way] = mt__memory_model_between(model, weight))) return 0;
    }
    return 1;
}

void mt__lengths_inherit(const mt_policy *p, mt__kind *k) {
    const mt__kind *of[MT__LENGTHS] = {NULL};
    double weight[MT__LENGTHS], sum = 0;
    for (int i = 0; i < MT__LENGTHS; i++) {
        of[i] = k->length ? find_nearest(p, k, of, i) : NULL;
        if (!of[i] || of[i]->ranges != of[0]->ranges) return;
    }
    /* Lagrange's weights. Without their signs they come to 1 between the lengths, and to more beyond them. */
    for (int i = 0; i < MT__LENGTHS; i++) {
        weight[i] = 1;
        for (int j = 0; j < MT__LENGTHS; j++)
            if (j != i)
                weight[i] *= ((double)k->length - (double)of[j]->length) /
                             ((double)of[i]->length - (double)of[j]->length);
        sum += fabs(weight[i]);
    }
    if (sum > MOST_WEIGHT) return;
    while (k->ranges < of[0]->ranges) {
        if (inherit_range(k, of, weight)) continue;
        mt__kind_drop_ranges(k);
        return;
    }
    k->is_inherited = k->has_run = 1;
    /* Seconds a unit of length are taken to be alike for lengths that are near, and for others at first. */
    const mt__kind *timed = find_nearest(p, k, NULL, 0);
    if (!timed) return;
    k->too_small = timed->too_small;
    if (distance(k->length, timed->times->length) < LENGTHS_APART)
        mt__kind_share_times(k, timed);
    else
        k->times->sizes = timed->times->sizes;
}
