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
 * There are two phases. In the first the backbone is frozen and the head alone learns; in the second all do. train() shows
 * what is trained and how; programs/smartcash_flags.c has the flags, run/training.h what all programs share.
 */
#include "smartcash.h"

#include "program_path.h"
#include "smartcash_model.h"

#include <string.h>

#define DATA "examples/data"

static mt_status open_data(smartcash *f, const ex_training *run, ex_source *out) {
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
static mt_status make_model(void *self, mt_model **out) {
    const smartcash *f = self;
    smartcash_model_options options = SMARTCASH_MODEL_OPTIONS_INIT;
    mt_weights_options weights = MT_WEIGHTS_OPTIONS_INIT;
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
    weights.required = smartcash_model_required(options.backbone);
    weights.other_name = smartcash_model_timm_name;
    return status == MT_OK ? ex_checkpoint_weights(*out, f->weights, &weights) : status;
}

/* A backbone that was trained before wants smaller steps than a head that was not. */
static void set_groups(smartcash *f, mt_torch_options *options) {
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

static void close_data(void *self) {
    smartcash *f = self;
    ex_card_scenes_free(f->data);
}

static mt_status train(void *self, ex_training *run) {
    smartcash *f = self;
    ex_source scenes;
    mt_status s = open_data(f, run, &scenes);
    if (!s) s = ex_training_data(run, &scenes);
    set_groups(f, &run->torch_options);
    if (!s) s = ex_training_model(run, make_model);
    if (!s) s = mt_fit(run->trainer, &run->training, &run->fit, &run->calls, &run->at);
    if (!s && ex_training_is_done(run)) smartcash_result(f, run);
    return s;
}

int main(int argc, char **argv) {
    smartcash f;
    ex_program program = {.name = "smartcash",
                          .self = &f,
                          .train = train,
                          .introduce = smartcash_introduce,
                          .begin_epoch = begin_epoch,
                          .after_step = smartcash_tier,
                          .after_epoch = smartcash_details,
                          .remedies = smartcash_remedies,
                          .close = close_data};
    int exit_status;
    if (!smartcash_flags(&f, &program, argc, argv, &exit_status)) return exit_status;
    return ex_training_main(&program, &f.flags, argv);
}
