/*
 * episodes.c - classes from folders, and what an episode takes of them; see episodes.h.
 */
#include "episodes.h"
#include "content.h"
#include "program_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const set_names[EX_CLASS_SETS] = {"train", "val", "test"};

/* What the random numbers of an episode are used for; the classes that it has draw from PICTURES on. */
enum { AUGMENT = 101, VARIANT, CLASSES, PICTURES };

/* ---- classes ----------------------------------------------------------------------------------- */

static int is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* The folder that is meant; "" when it is not there. */
static void find_folder(const ex_flags *flags, const char *argv0, const char *otherwise, char *path,
                        size_t capacity) {
    if (flags->data)
        snprintf(path, capacity, "%s", flags->data);
    else if (!ex_find_in_tree(argv0, otherwise, path, capacity))
        path[0] = '\0';
}

/* A data set's folder in place of --data. */
static mt_status open_folder(const ex_flags *flags, const char *path, ex_dataset **out) {
    ex_flags own = *flags;
    own.data = path;
    return ex_pictures_open(&own, NULL, path, EX_FIT_PAD, 0, out);
}

/* Adds a class that has a picture to be told beside those that are known. */
static mt_status add_class(ex_class_sets *sets, int set, ex_class class, const ex_shape *shape) {
    sets->left_out += class.count <= (size_t)shape->shots;
    if (class.count <= (size_t)shape->shots) return MT_OK;
    ex_class *grown = realloc(sets->classes[set], (sets->counts[set] + 1) * sizeof *grown);
    if (!grown) return mt_set_error(MT_ENOMEM, "out of host memory");
    sets->classes[set] = grown;
    grown[sets->counts[set]++] = class;
    return MT_OK;
}

/* The classes of a data set, whose samples are sorted by them, each into the set that set_of says. */
static mt_status add_classes(ex_class_sets *sets, const ex_dataset *dataset, const int *set_of,
                             const ex_shape *shape) {
    mt_status status = MT_OK;
    size_t first = 0;
    for (size_t label = 0; label < dataset->class_count && status == MT_OK; label++) {
        size_t end = first;
        while (end < dataset->sample_count && dataset->samples[end].label == label) end++;
        status =
            add_class(sets, set_of[label], (ex_class){dataset, label, first, end - first}, shape);
        first = end;
    }
    return status;
}

/* ---- sharing out ------------------------------------------------------------------------------- */

typedef struct dealt {
    uint64_t hash;
    size_t label;
} dealt;

static int compare_dealt(const void *a, const void *b) {
    const dealt *left = a, *right = b;
    if (left->hash != right->hash) return left->hash < right->hash ? -1 : 1;
    return left->label < right->label ? -1 : left->label > right->label;
}

static uint64_t hash_of(const char *name) {
    uint64_t hash = 0;
    for (; *name; name++) hash = ex_random(hash, (unsigned char)*name, 0, 0);
    return hash;
}

/* Which set each class goes to: it depends on the names of the classes alone. */
static int *share_out(const ex_dataset *dataset) {
    size_t count = dataset->class_count;
    dealt *order = malloc((count + 1) * sizeof *order);
    int *set_of = malloc((count + 1) * sizeof *set_of);
    for (size_t i = 0; order && i < count; i++)
        order[i] = (dealt){hash_of(dataset->class_names[i]), i};
    if (order) qsort(order, count, sizeof *order, compare_dealt);
    for (size_t i = 0; order && set_of && i < count; i++)
        set_of[order[i].label] = i < count / 3               ? EX_TEST_CLASSES
                                 : i < count / 3 + count / 6 ? EX_VAL_CLASSES
                                                             : EX_TRAIN_CLASSES;
    if (!order) {
        free(set_of);
        set_of = NULL;
    }
    free(order);
    return set_of;
}

static mt_status open_shared(const ex_flags *flags, const char *folder, const ex_shape *shape,
                             ex_class_sets *out) {
    mt_status status = open_folder(flags, folder, &out->datasets[0]);
    if (status != MT_OK) return status;
    int *set_of = share_out(out->datasets[0]);
    if (!set_of) return mt_set_error(MT_ENOMEM, "out of host memory");
    status = add_classes(out, out->datasets[0], set_of, shape);
    free(set_of);
    return status;
}

/* ---- opening ----------------------------------------------------------------------------------- */

static mt_status open_set(const ex_flags *flags, const char *folder, int set, const ex_shape *shape,
                          ex_class_sets *out) {
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", folder, set_names[set]);
    mt_status status = open_folder(flags, path, &out->datasets[set]);
    if (status != MT_OK) return status;
    int *set_of = malloc(out->datasets[set]->class_count * sizeof *set_of);
    if (!set_of) return mt_set_error(MT_ENOMEM, "out of host memory");
    for (size_t i = 0; i < out->datasets[set]->class_count; i++) set_of[i] = set;
    status = add_classes(out, out->datasets[set], set_of, shape);
    free(set_of);
    return status;
}

/* is_shared: classes of one folder, a third for testing and a sixth for validation. */
static mt_status check_counts(const char *folder, const ex_shape *shape, const ex_class_sets *sets,
                              int is_shared) {
    for (int set = 0; set < EX_CLASS_SETS; set++)
        if (sets->counts[set] < (size_t)shape->ways)
            return mt_set_error(
                MT_EINVAL,
                "--n-way: %lld classes are more than the %zu for '%s' in '%s' that have "
                "more than the %lld pictures of --k-shot%s",
                (long long)shape->ways, sets->counts[set], set_names[set], folder,
                (long long)shape->shots,
                is_shared ? "; a folder without train, val and test needs six times --n-way of them"
                          : "");
    if (sets->left_out)
        mt_log(MT_LOG_WARNING,
               "%zu classes are left out, which have no more than the %lld pictures of --k-shot",
               sets->left_out, (long long)shape->shots);
    return MT_OK;
}

mt_status ex_class_sets_open(const ex_flags *flags, const char *argv0, const char *otherwise,
                             const ex_shape *shape, ex_class_sets *out) {
    char folder[4096], train[4200];
    find_folder(flags, argv0, otherwise, folder, sizeof folder);
    if (!*folder)
        return mt_set_error(MT_EINVAL,
                            "--data: there is no folder '%s' here; accepted: a folder with "
                            "train, val and test, or a folder of class folders",
                            otherwise);
    snprintf(train, sizeof train, "%s/train", folder);
    mt_status status = MT_OK;
    if (is_folder(train))
        for (int set = 0; set < EX_CLASS_SETS && status == MT_OK; set++)
            status = open_set(flags, folder, set, shape, out);
    else
        status = open_shared(flags, folder, shape, out);
    return status == MT_OK ? check_counts(folder, shape, out, !is_folder(train)) : status;
}

void ex_class_sets_close(ex_class_sets *sets) {
    for (int set = 0; set < EX_CLASS_SETS; set++) {
        ex_dataset_free(sets->datasets[set]);
        free(sets->classes[set]);
    }
    memset(sets, 0, sizeof *sets);
}

/* ---- episodes ---------------------------------------------------------------------------------- */

/* Which episode random numbers are for. */
typedef struct draw {
    uint64_t seed, epoch, index;
} draw;

/* Numbers below count in a random order, the first `wanted` of which are drawn. */
static void shuffle(const draw *d, uint64_t stream, size_t *numbers, size_t count, size_t wanted) {
    for (size_t i = 0; i < count; i++) numbers[i] = i;
    for (size_t i = 0; i < wanted && i + 1 < count; i++) {
        double unit = ex_random_unit(d->seed ^ (stream << 32), d->epoch, d->index, i);
        size_t other = i + (size_t)(unit * (double)(count - i)), kept = numbers[i];
        numbers[i] = numbers[other];
        numbers[other] = kept;
    }
}

/* Where the pixel of a picture that is turned by so many quarters comes from. */
static size_t source_of(size_t x, size_t y, size_t side, unsigned quarters) {
    const size_t last = side - 1;
    if (quarters == 1) return (last - x) * side + y;
    if (quarters == 2) return (last - y) * side + last - x;
    if (quarters == 3) return x * side + last - y;
    return y * side + x;
}

/* A picture's planes in another order, and turned; `kept` has room for one picture. */
static void change(float *pixels, size_t side, unsigned variant, float *kept) {
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    const int *order = orders[variant / 4];
    memcpy(kept, pixels, 3 * side * side * sizeof *kept);
    for (int c = 0; c < 3; c++)
        for (size_t y = 0; y < side; y++)
            for (size_t x = 0; x < side; x++)
                *pixels++ =
                    kept[(size_t)order[c] * side * side + source_of(x, y, side, variant % 4)];
}

/* All pictures of a class alike. */
static ex_status change_class(const ex_episodes *e, const draw *d, uint64_t place, float *pixels) {
    size_t side = (size_t)e->side, floats = 3 * side * side;
    unsigned variant =
        (unsigned)(ex_random(d->seed, d->epoch, d->index, VARIANT + (place << 16)) % 24);
    float *kept = malloc(floats * sizeof *kept);
    if (!kept) return EX_ENOMEM;
    for (int64_t i = 0; i < e->shape.shots + e->shape.queries; i++)
        change(pixels + (size_t)i * floats, side, variant, kept);
    free(kept);
    return EX_OK;
}

/* The i-th picture that is taken of a class; the known ones come first, and never again. */
static size_t turn_of(const ex_shape *shape, size_t count, size_t i) {
    size_t shots = (size_t)shape->shots;
    return i < shots ? i : shots + (i - shots) % (count - shots);
}

/* The pictures of one class of an episode. */
static ex_status fill_class(const ex_episodes *e, const ex_class *class, const draw *d,
                            uint64_t place, int augment, float *pixels, ex_error *error) {
    size_t taken = (size_t)(e->shape.shots + e->shape.queries);
    size_t floats = 3 * (size_t)e->side * (size_t)e->side;
    uint64_t variant = ex_random(d->seed, d->epoch, d->index, AUGMENT);
    size_t *numbers = malloc(class->count * sizeof *numbers);
    ex_status status = numbers ? EX_OK : EX_ENOMEM;
    if (numbers) shuffle(d, PICTURES + place, numbers, class->count, class->count);
    for (size_t i = 0; i < taken && status == EX_OK; i++)
        status = ex_dataset_picture(class->dataset,
                                    class->first + numbers[turn_of(&e->shape, class->count, i)],
                                    variant, e->side, augment, pixels + i * floats, error);
    free(numbers);
    return status;
}

static ex_status fill_episode(const ex_episodes *e, ex_split split, const draw *d, float *pixels,
                              ex_error *error) {
    const ex_class *classes = e->classes->classes[e->set[split]];
    size_t count = e->classes->counts[e->set[split]], ways = (size_t)e->shape.ways;
    size_t floats = (size_t)(e->shape.shots + e->shape.queries) * 3 * (size_t)(e->side * e->side);
    size_t *order = malloc(count * sizeof *order);
    ex_status status = order ? EX_OK : EX_ENOMEM;
    if (order) shuffle(d, CLASSES, order, count, ways);
    for (size_t i = 0; i < ways && status == EX_OK; i++)
        status = fill_class(e, &classes[order[i]], d, i, split == EX_TRAINING, pixels + i * floats,
                            error);
    for (size_t i = 0; e->variants && split == EX_TRAINING && i < ways && status == EX_OK; i++)
        status = change_class(e, d, i, pixels + i * floats);
    free(order);
    return status;
}

static size_t count(const void *self, ex_split split) {
    const ex_episodes *e = self;
    return (size_t)e->counts[split];
}

static ex_status fill(const void *self, ex_split split, uint64_t epoch, size_t first, size_t number,
                      void *const *buffers, ex_error *error) {
    const ex_episodes *e = self;
    size_t pictures = (size_t)(e->shape.ways * (e->shape.shots + e->shape.queries));
    size_t floats = pictures * 3 * (size_t)e->side * (size_t)e->side;
    ex_status status = EX_OK;
    for (size_t i = 0; i < number && status == EX_OK; i++) {
        const draw d = {e->seed + (uint64_t)e->set[split], epoch, first + i};
        status = fill_episode(e, split, &d, (float *)buffers[0] + i * floats, error);
    }
    return status;
}

/* A class of another set is another one, and a picture of another class is another one. */
static void list_class(const ex_class *class, uint64_t set, ex_listing *out) {
    out->label_hash = ex_hash(out->label_hash, &set, sizeof set);
    out->label_hash = ex_hash_text(out->label_hash, class->dataset->class_names[class->label]);
    out->file_hash = ex_hash(out->file_hash, &class->count, sizeof class->count);
    for (size_t i = 0; i < class->count; i++)
        out->file_hash =
            ex_hash_text(out->file_hash, class->dataset->samples[class->first + i].name);
    out->label_count++;
    out->file_count += class->count;
}

static ex_listing list_names(const ex_class_sets *sets) {
    ex_listing listing = {"classes", 0, 0, EX_HASH_INIT, EX_HASH_INIT};
    for (int set = 0; set < EX_CLASS_SETS; set++)
        for (size_t i = 0; i < sets->counts[set]; i++)
            list_class(&sets->classes[set][i], (uint64_t)set, &listing);
    return listing;
}

ex_source ex_episodes_source(const ex_episodes *episodes) {
    const ex_shape *shape = &episodes->shape;
    int64_t pictures = shape->ways * (shape->shots + shape->queries);
    return (ex_source){.self = episodes,
                       .unit = "episodes",
                       .names = list_names(episodes->classes),
                       .tensor_count = 1,
                       .tensors = {{MT_FLOAT32, 4, {pictures, 3, episodes->side, episodes->side}}},
                       .count = count,
                       .fill = fill};
}
