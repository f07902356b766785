/*
 * dataset.c - a folder of class folders as a data set: opening, batches; see dataset.h.
 *
 * Order of opening: list the class folders, list each one's files, decode round by round (one
 * picture of each class a round, so that a bound on the samples keeps the classes even), sort,
 * split. All randomness comes from ex_random(), a pure function; there is no hidden state.
 */
#include "dataset.h"
#include "dataset_split.h"
#include "names.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_KEEP_SIDE 256
#define DEFAULT_VALIDATION 0.2

static const char expected[] = "expected FOLDER/CLASS/picture.jpg or .png";

static ex_status no_memory(ex_error *error, const char *name) {
    ex_error_set(error, name, "out of host memory");
    return EX_ENOMEM;
}

/* ---- opening ------------------------------------------------------------------------------- */

/* One class while the data set is being opened. */
struct source {
    char *folder;
    ex_names files;
    size_t next;  /* file to try next */
    size_t taken; /* pictures the class has so far */
};

struct opening {
    const char *folder;
    ex_dataset_options options;
    ex_dataset *dataset;
    struct source *sources; /* one for each class */
    size_t capacity;        /* of dataset->samples */
    ex_error *error;
};

static ex_status list_classes(struct opening *job) {
    ex_names names = {NULL, 0, 0};
    ex_status status = ex_names_list(job->folder, true, expected, &names, job->error);

    if (status != EX_OK) {
        ex_names_free(&names);
        return status;
    }
    job->dataset->class_names = names.items;
    job->dataset->class_count = names.count;
    return EX_OK;
}

/* When empty folders have been left out. */
static ex_status check_classes(struct opening *job) {
    const size_t count = job->dataset->class_count;

    if (count < 2) {
        ex_error_set(job->error, job->folder, "%s%s; at least two classes are needed, %s",
                     count ? "only one class folder" : "no class folder",
                     job->dataset->empty ? " with files in it" : "", expected);
        return EX_EINPUT;
    }
    if (job->options.max_samples && job->options.max_samples < count) {
        ex_error_set(job->error, job->folder, "%zu samples are too few for %zu classes",
                     job->options.max_samples, count);
        return EX_EINPUT;
    }
    return EX_OK;
}

struct ranked {
    uint64_t hash;
    char *name;
};

static int compare_ranked(const void *a, const void *b) {
    const struct ranked *left = a, *right = b;

    if (left->hash != right->hash) {
        return left->hash < right->hash ? -1 : 1;
    }
    return strcmp(left->name, right->name);
}

/* With a bound on the samples the first names would be a biased choice; a hash is none. */
static ex_status scatter_files(ex_names *files, const char *class_name) {
    struct ranked *ranked = malloc((files->count + 1) * sizeof *ranked);

    if (!ranked) {
        return EX_ENOMEM;
    }
    for (size_t i = 0; i < files->count; i++) {
        ranked[i].name = files->items[i];
        ranked[i].hash = ex_name_hash(class_name, ranked[i].name, strlen(ranked[i].name));
    }
    qsort(ranked, files->count, sizeof *ranked, compare_ranked);
    for (size_t i = 0; i < files->count; i++) {
        files->items[i] = ranked[i].name;
    }
    free(ranked);
    return EX_OK;
}

/* A folder without a file is no class: whoever has emptied it, or not filled it yet, is told. */
static void leave_out_class(struct opening *job, size_t label) {
    ex_dataset *dataset = job->dataset;
    size_t behind = --dataset->class_count - label;
    ex_error reason;

    ex_error_set(&reason, job->sources[label].folder, "a class folder with no file in it");
    if (job->options.warn) {
        job->options.warn(job->options.user, reason.text);
    }
    dataset->empty++;
    free(dataset->class_names[label]);
    free(job->sources[label].folder);
    ex_names_free(&job->sources[label].files);
    memmove(&dataset->class_names[label], &dataset->class_names[label + 1],
            behind * sizeof *dataset->class_names);
    memmove(&job->sources[label], &job->sources[label + 1], behind * sizeof *job->sources);
    memset(&job->sources[dataset->class_count], 0, sizeof *job->sources);
}

static ex_status list_sources(struct opening *job) {
    const ex_dataset *dataset = job->dataset;

    job->sources = calloc(dataset->class_count + 1, sizeof *job->sources);
    if (!job->sources) {
        return no_memory(job->error, job->folder);
    }
    for (size_t i = 0; i < dataset->class_count;) {
        struct source *source = &job->sources[i];
        ex_status status;

        source->folder = ex_path_join(job->folder, dataset->class_names[i]);
        if (!source->folder) {
            return no_memory(job->error, job->folder);
        }
        status = ex_names_list(source->folder, false, expected, &source->files, job->error);
        if (status != EX_OK) {
            return status;
        }
        if (job->options.max_samples &&
            scatter_files(&source->files, dataset->class_names[i]) != EX_OK) {
            return no_memory(job->error, source->folder);
        }
        if (source->files.count) {
            i++;
        } else {
            leave_out_class(job, i);
        }
    }
    return EX_OK;
}

static ex_status reserve_sample(struct opening *job) {
    ex_dataset *dataset = job->dataset;

    if (dataset->sample_count == job->capacity) {
        size_t capacity = job->capacity ? 2 * job->capacity : 64;
        ex_sample *grown = realloc(dataset->samples, capacity * sizeof *grown);

        if (!grown) {
            return EX_ENOMEM;
        }
        dataset->samples = grown;
        job->capacity = capacity;
    }
    return EX_OK;
}

/* Takes over `image` on success; pixels for which there is no room are left to be decoded again. */
static ex_status keep_sample(struct opening *job, size_t label, const char *name, ex_image *image) {
    ex_dataset *dataset = job->dataset;
    size_t bytes = (size_t)image->width * (size_t)image->height * 3;
    ex_sample *sample;

    if (job->options.max_bytes && dataset->pixel_bytes + bytes > job->options.max_bytes) {
        ex_image_clear(image);
        dataset->not_kept++;
        bytes = 0;
    }
    if (reserve_sample(job) != EX_OK) {
        return no_memory(job->error, job->folder);
    }
    sample = &dataset->samples[dataset->sample_count];
    *sample = (ex_sample){*image, label, false, strdup(name)};
    if (!sample->name) {
        return no_memory(job->error, job->folder);
    }
    dataset->sample_count++;
    dataset->pixel_bytes += bytes;
    return EX_OK;
}

static void skip_file(struct opening *job, const ex_error *reason) {
    if (!job->dataset->skipped++) {
        job->dataset->skip = *reason;
    }
    if (job->options.warn) {
        job->options.warn(job->options.user, reason->text);
    }
}

/* Tries one file: a bad one is skipped, which is no failure; `taken` tells which it was. */
static ex_status try_file(struct opening *job, size_t label, const char *name, bool *taken) {
    char *path = ex_path_join(job->sources[label].folder, name);
    ex_image image;
    ex_error reason;
    ex_status status;

    *taken = false;
    if (!path) {
        return no_memory(job->error, job->folder);
    }
    status = ex_image_load(path, &image, &reason);
    if (status == EX_EINPUT) {
        skip_file(job, &reason);
        status = EX_OK;
    } else if (status != EX_OK || ex_view_shrink(&image, job->options.keep_side) != EX_OK) {
        status = no_memory(job->error, path);
    } else {
        status = keep_sample(job, label, name, &image);
        *taken = status == EX_OK;
    }
    if (!*taken) {
        ex_image_clear(&image);
    }
    free(path);
    return status;
}

/* Takes the next usable picture of one class, if it has any left. */
static ex_status take_one(struct opening *job, size_t label, bool *taken) {
    struct source *source = &job->sources[label];
    ex_status status = EX_OK;

    *taken = false;
    while (status == EX_OK && !*taken && source->next < source->files.count) {
        status = try_file(job, label, source->files.items[source->next++], taken);
    }
    source->taken += *taken;
    if (status == EX_OK && source->taken == 0) {
        ex_error_set(job->error, source->folder,
                     "a class with no usable picture (%zu files tried), %s", source->next,
                     expected);
        return EX_EINPUT;
    }
    return status;
}

static ex_status decode_all(struct opening *job) {
    size_t limit = job->options.max_samples ? job->options.max_samples : SIZE_MAX;
    bool more = true;

    while (more) {
        more = false;
        for (size_t i = 0; i < job->dataset->class_count; i++) {
            bool taken;
            ex_status status;

            if (job->dataset->sample_count >= limit) {
                return EX_OK;
            }
            status = take_one(job, i, &taken);
            if (status != EX_OK) {
                return status;
            }
            more = more || taken;
        }
    }
    return EX_OK;
}

static int compare_samples(const void *a, const void *b) {
    const ex_sample *left = a, *right = b;

    if (left->label != right->label) {
        return left->label < right->label ? -1 : 1;
    }
    return strcmp(left->name, right->name);
}

static ex_status list_members(ex_dataset *dataset) {
    for (int split = 0; split < 2; split++) {
        dataset->members[split] = malloc(dataset->sample_count * sizeof **dataset->members);
        if (!dataset->members[split]) {
            return EX_ENOMEM;
        }
    }
    for (size_t i = 0; i < dataset->sample_count; i++) {
        int split = dataset->samples[i].validation ? EX_VALIDATION : EX_TRAINING;

        dataset->members[split][dataset->member_count[split]++] = i;
    }
    return EX_OK;
}

static void write_training_order(const void *self, uint64_t epoch, size_t *order) {
    ex_dataset_order(self, EX_TRAINING, epoch, order);
}

static ex_status open_job(struct opening *job) {
    ex_dataset *dataset = job->dataset;
    ex_status status = list_classes(job);

    if (status == EX_OK) {
        status = list_sources(job);
    }
    if (status == EX_OK) {
        status = check_classes(job);
    }
    if (status == EX_OK) {
        status = decode_all(job);
    }
    if (status != EX_OK) {
        return status;
    }
    qsort(dataset->samples, dataset->sample_count, sizeof *dataset->samples, compare_samples);
    if ((job->options.validation > 0.0 &&
         ex_dataset_split(dataset, job->options.validation) != EX_OK) ||
        list_members(dataset) != EX_OK) {
        return no_memory(job->error, job->folder);
    }
    dataset->orders =
        ex_orders_new(dataset->member_count[EX_TRAINING], write_training_order, dataset);
    return dataset->orders ? EX_OK : no_memory(job->error, job->folder);
}

static void free_sources(struct opening *job) {
    for (size_t i = 0; job->sources && i < job->dataset->class_count; i++) {
        free(job->sources[i].folder);
        ex_names_free(&job->sources[i].files);
    }
    free(job->sources);
}

static ex_dataset_options with_defaults(const ex_dataset_options *given) {
    ex_dataset_options options = {0};

    if (given) {
        options = *given;
    }
    if (options.keep_side <= 0) {
        options.keep_side = DEFAULT_KEEP_SIDE;
    }
    if (options.validation == 0.0) {
        options.validation = DEFAULT_VALIDATION;
    }
    return options;
}

ex_status ex_dataset_open(const char *folder, const ex_dataset_options *options, ex_dataset **out,
                          ex_error *error) {
    struct opening job = {folder, with_defaults(options), NULL, NULL, 0, error};
    ex_status status;

    *out = NULL;
    job.dataset = calloc(1, sizeof *job.dataset);
    if (!job.dataset) {
        return no_memory(error, folder);
    }
    job.dataset->seed = job.options.seed;
    job.dataset->fit = job.options.fit;
    job.dataset->keep_side = job.options.keep_side;
    job.dataset->folder = strdup(folder);
    status = job.dataset->folder ? open_job(&job) : no_memory(error, folder);
    free_sources(&job);
    if (status != EX_OK) {
        ex_dataset_free(job.dataset);
        return status;
    }
    *out = job.dataset;
    return EX_OK;
}

void ex_dataset_free(ex_dataset *dataset) {
    if (!dataset) {
        return;
    }
    for (size_t i = 0; i < dataset->sample_count; i++) {
        ex_image_clear(&dataset->samples[i].image);
        free(dataset->samples[i].name);
    }
    for (size_t i = 0; i < dataset->class_count; i++) {
        free(dataset->class_names[i]);
    }
    ex_orders_free(dataset->orders);
    free(dataset->samples);
    free(dataset->folder);
    free(dataset->class_names);
    free(dataset->members[EX_TRAINING]);
    free(dataset->members[EX_VALIDATION]);
    free(dataset);
}

ex_listing ex_dataset_listing(const ex_dataset *dataset) {
    ex_listing listing = {NULL, 0, 0, EX_HASH_INIT, EX_HASH_INIT};

    if (!dataset) {
        return listing;
    }
    listing.labels = "classes";
    listing.label_count = dataset->class_count;
    listing.file_count = dataset->sample_count;
    for (size_t i = 0; i < dataset->class_count; i++) {
        listing.label_hash = ex_hash_text(listing.label_hash, dataset->class_names[i]);
    }
    for (size_t i = 0; i < dataset->sample_count; i++) {
        const ex_sample *sample = &dataset->samples[i];
        const uint64_t place = 2 * (uint64_t)sample->label + sample->validation;

        listing.file_hash = ex_hash(listing.file_hash, &place, sizeof place);
        listing.file_hash = ex_hash_text(listing.file_hash, sample->name);
    }
    return listing;
}

/* ---- batches ------------------------------------------------------------------------------- */

size_t ex_dataset_count(const ex_dataset *dataset, ex_split split) {
    return dataset->member_count[split];
}

void ex_dataset_order(const ex_dataset *dataset, ex_split split, uint64_t epoch, size_t *order) {
    size_t count = dataset->member_count[split];

    for (size_t i = 0; i < count; i++) {
        order[i] = dataset->members[split][i];
    }
    if (split == EX_VALIDATION) {
        return;
    }
    ex_shuffle(dataset->seed, epoch, order, count);
}

/* Decodes a picture that was not kept, as it was when the data set was opened. */
static ex_status load_again(const ex_dataset *dataset, const ex_sample *sample, ex_image *image,
                            ex_error *error) {
    char *folder = ex_path_join(dataset->folder, dataset->class_names[sample->label]);
    char *path = folder ? ex_path_join(folder, sample->name) : NULL;
    ex_status status = path ? ex_image_load(path, image, error) : EX_ENOMEM;

    if (status == EX_OK) {
        status = ex_view_shrink(image, dataset->keep_side);
    }
    free(path);
    free(folder);
    return status;
}

/* Where a picture goes: normalised, or as it is. */
struct target {
    float *floats;
    unsigned char *bytes;
};

static ex_status render(const ex_dataset *dataset, size_t index, uint64_t epoch, int image_size,
                        bool augment, struct target target, ex_error *error) {
    const ex_sample *sample = &dataset->samples[index];
    const ex_draw draw = {dataset->seed, epoch, index}, *drawn = augment ? &draw : NULL;
    const ex_image *image = &sample->image;
    ex_image again = {0};
    ex_status status = EX_OK;

    if (!image->pixels) {
        status = load_again(dataset, sample, &again, error);
        image = &again;
    }
    if (status == EX_OK) {
        status = target.bytes ? ex_view_pixels(image, dataset->fit, image_size, drawn, target.bytes)
                              : ex_view_fill(image, dataset->fit, image_size, drawn, target.floats);
    }
    ex_image_clear(&again);
    return status;
}

static ex_status fill(const ex_dataset *dataset, ex_split split, uint64_t epoch, size_t first,
                      size_t count, int image_size, bool augment, struct target target,
                      int64_t *labels, ex_error *error) {
    size_t total = dataset->member_count[split];
    size_t numbers = (size_t)image_size * (size_t)image_size * 3;
    ex_status status = EX_OK;
    const size_t *order;

    if (image_size <= 0 || first > total || count > total - first) {
        return EX_EINPUT;
    }
    order = split == EX_TRAINING ? ex_orders_hold(dataset->orders, epoch) : dataset->members[split];
    if (!order) {
        return EX_ENOMEM;
    }
    for (size_t i = 0; status == EX_OK && i < count; i++) {
        size_t index = order[first + i];

        labels[i] = (int64_t)dataset->samples[index].label;
        status = render(dataset, index, epoch, image_size, augment, target, error);
        if (target.bytes) {
            target.bytes += numbers;
        } else {
            target.floats += numbers;
        }
    }
    if (split == EX_TRAINING) {
        ex_orders_release(dataset->orders, order);
    }
    return status;
}

ex_status ex_dataset_picture(const ex_dataset *dataset, size_t index, uint64_t epoch,
                             int image_size, bool augment, float *pixels, ex_error *error) {
    return render(dataset, index, epoch, image_size, augment, (struct target){pixels, NULL}, error);
}

ex_status ex_dataset_fill(const ex_dataset *dataset, ex_split split, uint64_t epoch, size_t first,
                          size_t count, int image_size, bool augment, float *pixels,
                          int64_t *labels, ex_error *error) {
    return fill(dataset, split, epoch, first, count, image_size, augment,
                (struct target){pixels, NULL}, labels, error);
}

ex_status ex_dataset_fill_pixels(const ex_dataset *dataset, ex_split split, uint64_t epoch,
                                 size_t first, size_t count, int image_size, bool augment,
                                 unsigned char *pixels, int64_t *labels, ex_error *error) {
    return fill(dataset, split, epoch, first, count, image_size, augment,
                (struct target){NULL, pixels}, labels, error);
}
