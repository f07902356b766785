/*
 * dataset_split.c - which pictures are for validation, by their names alone; see dataset_split.h.
 */
#include "dataset_split.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Mixed once more because FNV's high bits are weak. */
uint64_t ex_name_hash(const char *class_name, const char *name, size_t length) {
    uint64_t hash = ex_hash(EX_HASH_INIT, class_name, strlen(class_name));
    return ex_random(ex_hash(ex_hash(hash, "/", 1), name, length), 0, 0, 0);
}

/* A sample on its way through the split. */
struct candidate {
    uint64_t group;
    ex_sample *sample;
};

/* The part of a file name that decides its group: up to "__", else without the extension. */
static size_t group_length(const char *name) {
    const char *end = strstr(name, "__");

    if (!end || end == name) {
        end = strrchr(name, '.');
    }
    return end && end != name ? (size_t)(end - name) : strlen(name);
}

static int compare_candidates(const void *a, const void *b) {
    const struct candidate *left = a, *right = b;

    if (left->group != right->group) {
        return left->group < right->group ? -1 : 1;
    }
    return strcmp(left->sample->name, right->sample->name);
}

static size_t run_length(const struct candidate *candidates, size_t count) {
    size_t length = 1;

    while (length < count && candidates[length].group == candidates[0].group) {
        length++;
    }
    return length;
}

static void mark_run(struct candidate *candidates, size_t length) {
    for (size_t i = 0; i < length; i++) {
        candidates[i].sample->validation = true;
    }
}

/* Takes whole groups in hash order while they fit under the target. */
static size_t mark_fitting(struct candidate *candidates, size_t count, size_t target) {
    size_t marked = 0;

    for (size_t i = 0; i < count;) {
        size_t length = run_length(candidates + i, count - i);

        if (marked + length <= target) {
            mark_run(candidates + i, length);
            marked += length;
        }
        i += length;
    }
    return marked;
}

/* When every group is larger than the target: the smallest one, unless it is all there is. */
static void mark_smallest(struct candidate *candidates, size_t count) {
    size_t best = 0, best_length = count;

    for (size_t i = 0; i < count;) {
        size_t length = run_length(candidates + i, count - i);

        if (length < best_length) {
            best = i;
            best_length = length;
        }
        i += length;
    }
    if (best_length < count) {
        mark_run(candidates + best, best_length);
    }
}

static void split_class(ex_sample *samples, size_t count, const char *class_name, double share,
                        struct candidate *scratch) {
    size_t target = (size_t)fmax(round(share * (double)count), 1.0);

    if (count < 2) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        scratch[i].sample = &samples[i];
        scratch[i].group = ex_name_hash(class_name, samples[i].name, group_length(samples[i].name));
    }
    qsort(scratch, count, sizeof *scratch, compare_candidates);
    if (mark_fitting(scratch, count, target < count ? target : count - 1) == 0) {
        mark_smallest(scratch, count);
    }
}

ex_status ex_dataset_split(ex_dataset *dataset, double share) {
    struct candidate *scratch = malloc(dataset->sample_count * sizeof *scratch);
    size_t first = 0;

    if (!scratch) {
        return EX_ENOMEM;
    }
    while (first < dataset->sample_count) {
        size_t label = dataset->samples[first].label;
        size_t count = 1;

        while (first + count < dataset->sample_count &&
               dataset->samples[first + count].label == label) {
            count++;
        }
        split_class(dataset->samples + first, count, dataset->class_names[label], share, scratch);
        first += count;
    }
    free(scratch);
    return EX_OK;
}
