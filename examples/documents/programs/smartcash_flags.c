/*
 * smartcash_flags.c - the command line of smartcash; see smartcash.h.
 */
#include "smartcash.h"

#include "smartcash_model.h"

#include <string.h>

#define DEFAULT_BUDGET "110MiB"

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

int smartcash_flags(smartcash *f, ex_program *program, int argc, char **argv, int *out_status) {
    int64_t size = EX_SIZE_SMALL;
    ex_tier tier = EX_TIER_AUTO;
    program->budget = DEFAULT_BUDGET;
    program->data = "a folder with cards/STYLE_SUIT_RANK.png and patterns/*.png";
    program->own = (ex_table){own_flags, EX_ROWS(own_flags), f};
    for (int pass = 0; pass < 2; pass++) {
        set_defaults(f, size, tier);
        if (!ex_training_flags(program, "a detector of playing cards, in tiers of memory",
                               &f->flags, argc, argv, out_status))
            return 0;
        size = f->size;
        tier = (ex_tier)f->tier;
    }
    if (f->size == EX_SIZE_PUBLISHED) program->budget = NULL;
    program->model_name = backbone_name(f->backbone);
    *out_status = check_flags(program, f);
    return !*out_status;
}
