/*
 * smartcash.c - trains a detector of playing cards that goes on with less when memory runs out.
 *
 *     build/examples/smartcash                             whatever there is, tier after tier
 *     build/examples/smartcash --tier 2 --backbone efficientnet_b4 --budget auto
 *     build/examples/smartcash --device sim:mps --budget 300MiB
 *
 * A tier is a device and what is done on it to need little memory: 1 an accelerator, 2 the CPU, 3 the CPU with
 * one thread and nothing beside the training. One that is named is a set of defaults for other flags.
 * With --tier auto a run begins in the first that there is, and when memory does not do it goes on in
 * the next one, from the same step, with the same batch and in the same phase: these are the rungs "cpu" and
 * "minimal" of the policy (memtrain/backend.h), taken inside mt_trainer_step.
 *
 * There are two phases. In the first the backbone is frozen and the head alone learns; in the second all do.
 */
#include "card_scenes.h"
#include "checkpoint.h"
#include "output.h"
#include "program_path.h"
#include "tiers.h"
#include "training.h"
#include "smartcash_model.h"

#include <memtrain/torch.h>
#include <stdio.h>
#include <string.h>

#define NAME "smartcash"
#define DEFAULT_BUDGET "110MiB"
#define DATA "examples/data"

typedef struct smartcash {
    ex_flags flags;
    int64_t size, tier, backbone,
        classes; /* --size, an ex_tier, a smartcash_backbone, an ex_card_classes */
    int64_t phase1_epochs, phase2_epochs; /* below 0: as the tier has them */
    int64_t scenes, validation_scenes;
    double backbone_lr;
    int force_cpu, disable_tqdm;
    size_t cpu_budget; /* bytes; 0: that of the host */
    const char *weights;
    ex_card_scenes *data;
    ex_tier now; /* of the last step; EX_TIER_AUTO: there was none */
    int is_frozen;
    mt_parameter_group groups[2];
} smartcash;

/* ---- flags ------------------------------------------------------------------------------------- */

static const ex_word backbones[] = {{"efficientnet_b4", SMARTCASH_EFFICIENTNET_B4},
                                    {"efficientnet_b0", SMARTCASH_EFFICIENTNET_B0},
                                    {"cspdarknet", SMARTCASH_CSPDARKNET},
                                    {"cspdarknet_small", SMARTCASH_CSPDARKNET_SMALL},
                                    {NULL, 0}};
static const ex_word class_words[] = {
    {"suits", EX_CARDS_BY_SUIT}, {"ranks", EX_CARDS_BY_RANK}, {NULL, 0}};

static const char *backbone_name(int64_t backbone) {
    const ex_word *word = backbones;
    while (word->value != backbone) word++;
    return word->name;
}

static int read_size(const char *text, void *target) {
    size_t bytes;
    if (mt_parse_size(text, 0, &bytes) != MT_OK || bytes < 1048576) return 0;
    *(size_t *)target = bytes;
    return 1;
}

static const ex_option own_flags[] = {
    {.section = "Card detection"},
    EX_FLAG("size", EX_WORD, smartcash, size, "small|published",
            "published: a neck and heads of three scales in the place of one head; and --backbone "
            "efficientnet_b4 --image-size 640 --budget auto, where these are not given",
            .words = ex_size_words, .decides = 1),
    EX_FLAG("tier", EX_WORD, smartcash, tier, "auto|1|2|3",
            "1: mps, 4 threads, 8 batches of 1 accumulated; 2: cpu, 2 threads, 16; 3: cpu, one "
            "thread, 32, no progress, no workers; flags beside it count more; auto: --batch as it "
            "is, from device to device with --fallback minimal",
            .words = ex_tier_words),
    EX_FLAG("force-cpu", EX_SWITCH, smartcash, force_cpu, NULL, "as --device cpu", .most = 1),
    EX_FLAG("disable-tqdm", EX_SWITCH, smartcash, disable_tqdm, NULL, "as --progress off",
            .most = 1),
    EX_FLAG("cpu-budget", EX_PARSED, smartcash, cpu_budget, "SIZE",
            "most that tensors may take on the CPU when the accelerator was left",
            .read = read_size, .accepts = "a size such as 600MiB or 8GB, at least 1MiB",
            .by_default = "auto"),
    EX_FLAG("backbone", EX_WORD, smartcash, backbone, "NAME",
            "efficientnet_b4, efficientnet_b0, cspdarknet or cspdarknet_small", .words = backbones,
            .decides = 1),
    EX_FLAG("classes", EX_WORD, smartcash, classes, "suits|ranks",
            "four suits, or seven ranks: ace, king, queen, jack, ten, nine, joker",
            .words = class_words, .decides = 1),
    EX_FLAG("phase1-epochs", EX_WHOLE, smartcash, phase1_epochs, "N",
            "epochs in which the backbone is frozen", .most = 100000, .decides = 1,
            .by_default = "1; in tier 1 2, in tiers 2 and 3 none"),
    EX_FLAG("phase2-epochs", EX_WHOLE, smartcash, phase2_epochs, "N",
            "epochs in which all is trained", .most = 100000, .by_default = "the rest of --epochs"),
    EX_FLAG("batch-size", EX_WHOLE, smartcash, flags.batch, "N", "as --batch", .least = 1,
            .most = 65536),
    EX_FLAG("gradient-accumulation", EX_WHOLE, smartcash, flags.accumulate, "N", "as --accumulate",
            .least = 1, .most = 65536),
    EX_FLAG("backbone-lr", EX_REAL, smartcash, backbone_lr, "X",
            "learning rate of the backbone, as a share of --lr; 0.01 suits one with --weights",
            .min = 1e-6, .max = 1, .decides = 1),
    EX_FLAG("scenes", EX_WHOLE, smartcash, scenes, "N", "pictures of an epoch", .least = 1,
            .most = 10000000, .decides = 1),
    EX_FLAG("validation-scenes", EX_WHOLE, smartcash, validation_scenes, "N",
            "pictures for validation, always the same", .most = 10000000),
    EX_FLAG("weights", EX_TEXT, smartcash, weights, "FILE",
            "begin with the backbone of a safetensors file, torchvision's or timm's of that name",
            .accepts = "a safetensors file of the network's weights", .decides = 1,
            .file = EX_FILE_READ),
};

static const smartcash at_first = {.flags = EX_FLAGS_INIT,
                                   .backbone = SMARTCASH_CSPDARKNET_SMALL,
                                   .classes = EX_CARDS_BY_SUIT,
                                   .phase1_epochs = -1,
                                   .phase2_epochs = -1,
                                   .scenes = 512,
                                   .validation_scenes = 128,
                                   .backbone_lr = 1};

/* By tier; the last ones have a single phase. */
static const struct { int64_t first, all; } epochs_of[] = {{1, 8}, {2, 4}, {0, 3}, {0, 3}};

/* Size and tier are sets of defaults, so the flags are read twice: once for these two, once for the rest. */
static void set_defaults(smartcash *f, int64_t size, ex_tier tier) {
    const int is_published = size == EX_SIZE_PUBLISHED;
    *f = at_first;
    f->size = size;
    f->tier = tier;
    if (is_published) f->backbone = SMARTCASH_EFFICIENTNET_B4;
    f->flags.image_size = is_published ? 640 : 128;
    f->flags.batch = 16;
    f->flags.lr_batch = 16;
    f->flags.epochs = epochs_of[tier].all;
    f->flags.lr = 4e-3;
    f->flags.schedule = MT_SCHEDULE_COSINE;
    f->flags.clip = 10;
    ex_tier_defaults(tier, &f->flags);
}

/* The phases by themselves, or as parts of --epochs. @return 0 where they contradict it */
static int share_epochs(smartcash *f) {
    int64_t given = f->flags.epochs, first = f->phase1_epochs, second = f->phase2_epochs;
    if (first < 0) first = epochs_of[f->tier].first;
    if (f->phase1_epochs < 0 && second < 0 && given < first) first = given;
    if (second < 0) second = given > first ? given - first : 0;
    f->phase1_epochs = first;
    f->phase2_epochs = second;
    f->flags.epochs = first + second;
    return given == epochs_of[f->tier].all || given == first + second;
}

/* Not the tier's own. */
static int given_device(const smartcash *f) {
    smartcash without;
    set_defaults(&without, f->size, (ex_tier)f->tier);
    return strcmp(f->flags.device, without.flags.device) != 0;
}

/* What only flags together, or the network, can tell is wrong. @return 0: all is well */
static int check_flags(const ex_program *program, smartcash *f) {
    int64_t given = f->flags.epochs;
    if (f->flags.image_size % SMARTCASH_STEP || f->flags.image_size < 2 * SMARTCASH_STEP)
        return ex_training_refuse(
            program, "--image-size: '%lld' is not accepted; accepted: multiples of %d from %d on",
            (long long)f->flags.image_size, SMARTCASH_STEP, 2 * SMARTCASH_STEP);
    if (f->flags.resume && f->weights)
        return ex_training_refuse(
            program, "--weights: not together with --resume, whose file has the weights");
    if (!share_epochs(f))
        return ex_training_refuse(program,
                                  "--epochs: '%lld' is not accepted; accepted: %lld, as many as "
                                  "--phase1-epochs and --phase2-epochs together",
                                  (long long)given, (long long)f->flags.epochs);
    if (f->force_cpu && given_device(f) && strcmp(f->flags.device, "cpu") != 0)
        return ex_training_refuse(program, "--force-cpu: not together with --device %s",
                                  f->flags.device);
    if (f->force_cpu) f->flags.device = "cpu";
    if (f->disable_tqdm) f->flags.progress = EX_PROGRESS_OFF;
    return 0;
}

/* ---- what the program adds to a run ------------------------------------------------------------ */

static mt_status open_data(void *self, const ex_training *run, ex_source *out) {
    smartcash *f = self;
    char found[4096];
    ex_error error;
    ex_card_scenes_options options = {
        .folder = f->flags.data,
        .classes = (ex_card_classes)f->classes,
        .side = (int)f->flags.image_size,
        .scenes = {(size_t)f->scenes, (size_t)f->validation_scenes},
        .seed = (uint64_t)f->flags.seed,
    };
    if (f->cpu_budget && strcmp(run->device.name, "cpu") == 0)
        return mt_set_error(MT_EINVAL,
                            "--cpu-budget: the run begins on the CPU, where it is --budget that "
                            "is accepted");
    if (!options.folder)
        options.folder = ex_find_in_tree(run->argv[0], DATA, found, sizeof found) ? found : DATA;
    ex_status status = ex_card_scenes_open(&options, &f->data, &error);
    if (status == EX_OK) *out = ex_card_scenes_source(f->data);
    if (status == EX_OK) return MT_OK;
    return mt_set_error(status == EX_ENOMEM ? MT_ENOMEM : MT_EINVAL, "--data: %s", error.text);
}

/* A tier that is named has batches of one; else BatchNorm shall have two pictures at least. */
static mt_status make_model(void *self, const ex_training *run, mt_model **out) {
    const smartcash *f = self;
    smartcash_model_options options = SMARTCASH_MODEL_OPTIONS_INIT;
    mt_weights_options weights = MT_WEIGHTS_OPTIONS_INIT;
    (void)run;
    options.backbone = (smartcash_backbone)f->backbone;
    options.classes = ex_card_scenes_class_count(f->data);
    options.side = (int)f->flags.image_size;
    options.least_chunk = f->tier == EX_TIER_AUTO ? 0 : 1;
    options.three_scales = f->size == EX_SIZE_PUBLISHED;
    ex_card_scenes_anchors(f->data,
                           (options.three_scales ? SMARTCASH_SCALES : 1) * SMARTCASH_ANCHORS,
                           options.anchors);
    mt_status status = smartcash_model_new(&options, out);
    weights.strict = 0; /* the file has a classifier, and the model a head */
    weights.other_name = smartcash_model_timm_name;
    return status == MT_OK ? ex_checkpoint_weights(*out, f->weights, &weights) : status;
}

/* A backbone that was trained before wants smaller steps than a head that was not. */
static void set_groups(void *self, mt_torch_options *options) {
    smartcash *f = self;
    const char *const *parts = smartcash_model_parts((smartcash_backbone)f->backbone);
    if (f->backbone_lr == 1) return;
    for (options->group_count = 0; parts[options->group_count]; options->group_count++) {
        mt_parameter_group *group = &f->groups[options->group_count];
        *group = (mt_parameter_group)MT_PARAMETER_GROUP_INIT;
        group->pattern = parts[options->group_count];
        group->lr_factor = f->backbone_lr;
    }
    options->groups = f->groups;
}

static void introduce(void *self, const ex_training *run) {
    const smartcash *f = self;
    size_t classes = ex_card_scenes_class_count(f->data);
    printf("%lld scenes an epoch of %zu cards on %zu patterns, %zu classes; validation on %lld of "
           "style '%s' on %zu other patterns\n",
           (long long)f->scenes, ex_card_scenes_cards(f->data, EX_TRAINING),
           ex_card_scenes_patterns(f->data, EX_TRAINING), classes, (long long)f->validation_scenes,
           ex_card_scenes_unseen(f->data), ex_card_scenes_patterns(f->data, EX_VALIDATION));
    if (f->tier == EX_TIER_AUTO)
        printf("begins in %s\n", ex_tier_name(ex_tier_of(run->device.name, 0)));
    else
        printf("as in %s, where flags do not say otherwise\n", ex_tier_name((ex_tier)f->tier));
}

static mt_status freeze_backbone(smartcash *f, mt_torch *torch, int on) {
    const char *const *part = smartcash_model_parts((smartcash_backbone)f->backbone);
    mt_status status = MT_OK;
    for (; *part && status == MT_OK; part++) status = mt_torch_freeze(torch, *part, on);
    f->is_frozen = on;
    return status;
}

/* Where a phase begins, or a run goes on in it. */
static mt_status begin_epoch(void *self, ex_training *run, uint64_t epoch) {
    smartcash *f = self;
    int is_first = f->now == EX_TIER_AUTO, freeze = epoch <= (uint64_t)f->phase1_epochs;
    if (is_first && f->cpu_budget) {
        mt_status status = mt_device_set_budget("cpu", f->cpu_budget);
        if (status != MT_OK) return status;
    }
    if (is_first) f->now = ex_tier_of(run->device.name, 0);
    if (freeze == f->is_frozen) return MT_OK;
    mt_log(MT_LOG_INFO, "phase %d from epoch %llu on: %s", freeze ? 1 : 2,
           (unsigned long long)epoch,
           freeze ? "the backbone is frozen, the head learns" : "all is trained");
    return freeze_backbone(f, run->torch, freeze);
}

static void after_step(void *self, ex_training *run, const mt_step_report *report) {
    smartcash *f = self;
    ex_tier now = ex_tier_of(run->device.name, report->rungs);
    char line[256];
    if (now == f->now) return;
    ex_tier_changed(f->now, now, report, line, sizeof line);
    mt_log(MT_LOG_INFO, "%s", line);
    f->now = now;
}

/* What the first metric is made of. A share of no boxes is no number, and is shown as 0. */
static double share(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

static mt_status print_details(void *self, ex_training *run, const mt_epoch_report *report) {
    const double *m = report->eval_metrics;
    double there = m[SMARTCASH_THERE], located = m[SMARTCASH_LOCATED];
    double reported = m[SMARTCASH_REPORTED], right = m[SMARTCASH_RECALL] * there;
    (void)self;
    (void)run;
    if (!report->eval_samples) return MT_OK;
    printf("    of the cards %.1f %% located, IoU %.2f, %.1f %% of these named right; recall %.1f "
           "%%, precision %.1f %%\n",
           100 * share(located, there), located > 0 ? m[SMARTCASH_IOU] : 0,
           100 * share(right, located), 100 * m[SMARTCASH_RECALL], 100 * share(right, reported));
    fflush(stdout);
    return MT_OK;
}

static void print_result(void *self, const ex_training *run) {
    const smartcash *f = self;
    if (!run->last.eval_samples) return;
    printf("validation F1 %.1f %% on cards of a style and patterns that were not trained on; every "
           "box right and its class guessed: %.1f %%\n",
           100 * run->last.eval_metrics[SMARTCASH_F1],
           100.0 / (double)ex_card_scenes_class_count(f->data));
}

static void print_remedies(void *self, const ex_training *run) {
    const smartcash *f = self;
    (void)run;
    if (f->tier == EX_TIER_ACCELERATOR) fprintf(stderr, "  --tier auto          falls by itself\n");
    if (f->backbone == SMARTCASH_EFFICIENTNET_B4 || f->backbone == SMARTCASH_CSPDARKNET)
        fprintf(stderr, "  --backbone cspdarknet_small\n"
                        "                       has a fraction of the parameters\n");
}

static void close_data(void *self) {
    smartcash *f = self;
    ex_card_scenes_free(f->data);
}

int main(int argc, char **argv) {
    smartcash f;
    ex_program program = {.name = NAME,
                          .budget = DEFAULT_BUDGET,
                          .data = "a folder with cards/STYLE_SUIT_RANK.png and patterns/*.png",
                          .own = {own_flags, EX_ROWS(own_flags), &f},
                          .self = &f,
                          .open = open_data,
                          .model = make_model,
                          .options = set_groups,
                          .introduce = introduce,
                          .begin_epoch = begin_epoch,
                          .after_step = after_step,
                          .after_epoch = print_details,
                          .result = print_result,
                          .remedies = print_remedies,
                          .close = close_data};
    int exit_status;
    int64_t size = EX_SIZE_SMALL;
    ex_tier tier = EX_TIER_AUTO;
    for (int pass = 0; pass < 2; pass++) {
        set_defaults(&f, size, tier);
        if (!ex_training_flags(&program, "a detector of playing cards, in tiers of memory",
                               &f.flags, argc, argv, &exit_status))
            return exit_status;
        size = f.size;
        tier = (ex_tier)f.tier;
    }
    if (f.size == EX_SIZE_PUBLISHED) program.budget = NULL;
    exit_status = check_flags(&program, &f);
    if (exit_status != 0) return exit_status;
    program.model_name = backbone_name(f.backbone);
    return ex_training_main(&program, &f.flags, argv);
}
