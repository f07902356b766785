/*
 * pictures.c - from flags to a data set, and what guessing gives on it; see pictures.h.
 */
#include "pictures.h"
#include "program_path.h"

#include <stdlib.h>

/* A flip and a crop need a little more than what the network sees. */
#define KEPT_SIDE(side) ((side)*5 / 4)

void ex_pictures_warn(void *user, const char *line) {
    (void)user;
    mt_log(MT_LOG_WARNING, "skipped %s", line);
}

size_t ex_pictures_most_bytes(void) {
    mt_host_memory host = MT_HOST_MEMORY_INIT;
    if (mt_host_memory_read(NULL, &host) != MT_OK) return 0;
    return (host.budget_bytes + 1) / 2; /* not 0 where nothing is left */
}

mt_status ex_pictures_open(const ex_flags *flags, const char *argv0, const char *otherwise,
                           ex_fit fit, size_t samples, ex_dataset **out) {
    char found[4096];
    ex_error error;
    const ex_dataset_options options = {.seed = (uint64_t)flags->seed,
                                        .keep_side = (int)KEPT_SIDE(flags->image_size),
                                        .max_samples = samples,
                                        .max_bytes = ex_pictures_most_bytes(),
                                        .fit = fit,
                                        .warn = ex_pictures_warn};
    const char *folder = flags->data;
    *out = NULL;
    if (!folder && ex_find_in_tree(argv0, otherwise, found, sizeof found)) folder = found;
    if (!folder)
        return mt_set_error(MT_EINVAL,
                            "--data: there is no folder '%s' here; accepted: a folder "
                            "of class folders",
                            otherwise);
    ex_status status = ex_dataset_open(folder, &options, out, &error);
    if (status == EX_OK) return MT_OK;
    return mt_set_error(status == EX_ENOMEM ? MT_ENOMEM : MT_EINVAL, "--data: %s", error.text);
}

static size_t count(const void *self, ex_split split) {
    const ex_pictures *p = self;
    return ex_dataset_count(p->dataset, split);
}

static ex_status fill(const void *self, ex_split split, uint64_t epoch, size_t first, size_t number,
                      void *const *buffers, ex_error *error) {
    const ex_pictures *p = self;
    return ex_dataset_fill_pixels(p->dataset, split, epoch, first, number, p->side,
                                  split == EX_TRAINING, buffers[0], buffers[1], error);
}

ex_source ex_pictures_source(const ex_pictures *pictures) {
    return (ex_source){
        .self = pictures,
        .unit = "pictures",
        .names = ex_dataset_listing(pictures->dataset),
        .tensor_count = 2,
        .tensors = {{MT_UINT8, 3, {3, pictures->side, pictures->side}}, {MT_INT64, 0, {0}}},
        .count = count,
        .fill = fill};
}

/* Pictures of one class in a split. */
static size_t count_class(const ex_dataset *d, ex_split split, size_t label) {
    size_t count = 0;
    for (size_t i = 0; i < d->member_count[split]; i++)
        count += d->samples[d->members[split][i]].label == label;
    return count;
}

double ex_pictures_majority(const ex_dataset *pictures, size_t *out_label) {
    ex_split split = ex_dataset_count(pictures, EX_VALIDATION) ? EX_VALIDATION : EX_TRAINING;
    size_t best = 0, most = 0;
    for (size_t i = 0; i < pictures->class_count; i++) {
        size_t count = count_class(pictures, EX_TRAINING, i);
        if (count <= most) continue;
        most = count;
        best = i;
    }
    if (out_label) *out_label = best;
    return (double)count_class(pictures, split, best) / (double)ex_dataset_count(pictures, split);
}

float *ex_pictures_balance(const ex_dataset *pictures) {
    double all = (double)ex_dataset_count(pictures, EX_TRAINING);
    float *weights = calloc(pictures->class_count, sizeof *weights);
    for (size_t i = 0; weights && i < pictures->class_count; i++)
        weights[i] = (float)(all / ((double)pictures->class_count *
                                    (double)count_class(pictures, EX_TRAINING, i)));
    return weights;
}
