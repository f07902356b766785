/*
 * profoct.c - learns to tell classes from a few pictures of each, inside a memory budget.
 *
 *     build/examples/profoct --n_way 5 --k_shot 5 --n_query 8 --budget 400MiB
 *
 * A sample is an episode: five classes, of each five pictures that are known and eight to be told. The
 * network never sees the classes of the tests while it learns. Batch norm sees the pictures of one
 * episode, so an episode is never cut, and a batch of several is, exactly. train() shows what is
 * trained and how; programs/profoct_flags.c has the flags, run/training.h what all programs share.
 */
#include "profoct.h"

#include "few_shot_test.h"
#include "profoct_model.h"

#include <memtrain/safetensors.h>
#include <stdlib.h>
#include <string.h>

#define DATA "examples/data/clipart"
#define SEGMENTS "expandable_segments:True" /* for CUDA's allocator, before the device starts */

enum { FETI_KERNEL = 5 };

static ex_episodes episodes_of(const profoct *p, int first, int second) {
    return (ex_episodes){.classes = &p->classes,
                         .set = {first, second},
                         .counts = {p->episodes, p->val_episodes},
                         .shape = p->shape,
                         .side = (int)p->flags.image_size,
                         .variants = (int)p->variants,
                         .seed = (uint64_t)p->flags.seed};
}

static mt_status open_data(profoct *p, const ex_training *run, ex_source *out) {
    mt_status status = ex_class_sets_open(&p->flags, run->argv[0], DATA, &p->shape, &p->classes);
    p->learning = episodes_of(p, EX_TRAIN_CLASSES, EX_VAL_CLASSES);
    p->testing = episodes_of(p, EX_TEST_CLASSES, EX_TEST_CLASSES);
    p->testing.counts[EX_TRAINING] = 0;
    p->testing.counts[EX_VALIDATION] = p->test_episodes;
    p->testing.seed = 1; /* the same tests, whatever was learnt from */
    *out = ex_episodes_source(&p->learning);
    return status;
}

static profoct_model_options model_of(const profoct *p) {
    profoct_model_options options = PROFOCT_MODEL_OPTIONS_INIT;
    options.depth = (int)p->depth;
    options.feti = (int)p->feti;
    options.pool = (int)p->pool;
    options.ways = (int)p->shape.ways;
    options.shots = (int)p->shape.shots;
    options.queries = (int)p->shape.queries;
    options.vic = p->method == PROFOCT;
    options.vic_on_attention = (int)p->vic_on_attention;
    options.detach = (int)p->vic_detach;
    options.dynamic = (int)p->vic_dynamic;
    options.by_matrix = (int)p->by_matrix;
    options.running_statistics = (int)p->running;
    return options;
}

/* The backbone alone: the rest of the file's network is its classifier. */
static void backbone_name(void *user, const char *name, char *other, size_t capacity) {
    static const char feature[] = "feature.";
    (void)user;
    if (strncmp(name, feature, strlen(feature)) == 0)
        snprintf(other, capacity, "%s", name + strlen(feature));
}

/* No dimensions where the file has none. */
static mt_safetensors_tensor stem_of(const mt_safetensors *file) {
    mt_safetensors_tensor stem = {0};
    size_t index;
    if (mt_safetensors_find(file, "feature.conv1.weight", &index) == MT_OK ||
        mt_safetensors_find(file, "conv1.weight", &index) == MT_OK)
        if (mt_safetensors_get(file, index, &stem) != MT_OK) stem.dims = 0;
    return stem;
}

/* FETI's stem has kernels of 5x5, a ResNet's others. Its norm goes with it. */
static void look_at_stem(profoct *p) {
    mt_safetensors *file;
    if (!p->weights || !p->feti || mt_safetensors_open(p->weights, &file) != MT_OK) return;
    const mt_safetensors_tensor stem = stem_of(file);
    if (stem.dims == 4 && stem.shape[2] != FETI_KERNEL) {
        p->unread = "feature.conv1.,feature.bn1.";
        mt_log(MT_LOG_INFO,
               "--weights: the stem of '%s' has kernels of %lldx%lld and FETI's has %dx%d: it is "
               "not read and begins with random numbers, all other layers are read",
               p->weights, (long long)stem.shape[2], (long long)stem.shape[3], FETI_KERNEL,
               FETI_KERNEL);
    }
    mt_safetensors_free(file);
}

static mt_status make_model(void *self, mt_model **out) {
    const profoct *p = self;
    const profoct_model_options options = model_of(p);
    mt_weights_options weights = MT_WEIGHTS_OPTIONS_INIT;
    mt_status status = profoct_model_new(&options, out);
    weights.strict = 0;
    weights.required = "feature.";
    weights.skip = p->unread;
    weights.other_name = backbone_name;
    return status == MT_OK ? ex_checkpoint_weights(*out, p->weights, &weights) : status;
}

static void close_data(void *self) {
    profoct *p = self;
    ex_class_sets_close(&p->classes);
}

/* Episodes of the classes that were never seen. */
static mt_status test(profoct *p, ex_training *run) {
    const ex_source unseen = ex_episodes_source(&p->testing);
    return ex_training_test(run, &unseen, &p->tested);
}

static mt_status train(void *self, ex_training *run) {
    profoct *p = self;
    ex_source episodes;
    mt_status s = open_data(p, run, &episodes);
    if (!s) s = ex_training_data(run, &episodes);
    look_at_stem(p);
    if (!s) s = ex_training_model(run, make_model);
    if (!s) s = mt_fit(run->trainer, &run->training, &run->fit, &run->calls, &run->at);
    if (!s && ex_training_is_done(run)) s = test(p, run);
    if (!s && ex_training_is_done(run)) profoct_result(p);
    return s;
}

int main(int argc, char **argv) {
    profoct p;
    ex_program program = {.name = "profoct",
                          .self = &p,
                          .train = train,
                          .introduce = profoct_introduce,
                          .remedies = profoct_remedies,
                          .close = close_data};
    int exit_status;
    if (!profoct_flags(&p, &program, argc, argv, &exit_status)) return exit_status;
    setenv("PYTORCH_CUDA_ALLOC_CONF", SEGMENTS, 0);
    if (p.self_test) {
        const profoct_model_options model = model_of(&p);
        return ex_few_shot_test(&p.flags, argv[0], DATA, &p.shape, &model);
    }
    return ex_training_main(&program, &p.flags, argv);
}
