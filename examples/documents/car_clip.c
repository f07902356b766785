/*
 * car_clip.c - trains pictures and captions to find each other, inside a memory budget.
 *
 *     build/examples/car_clip --batch 16 --accumulate 8
 *
 * A contrastive loss compares each pair with all others of its batch, so it is the batch that cannot be made
 * smaller without becoming another training. --contrastive cached has the exact gradient of the whole batch at
 * the memory of a chunk; --contrastive plain adds up the losses of chunks, as a loop with gradient accumulation
 * does, and says what that is. train() shows what is trained and how; programs/car_clip_flags.c has the
 * flags, run/training.h what all programs share.
 */
#include "car_clip.h"

#include "car_clip_model.h"
#include "tokens.h"

static mt_status open_data(car_clip *c, const ex_training *run, ex_source *out) {
    mt_status status = ex_captions_open(&c->flags, run->argv[0], (int)c->keywords,
                                        car_clip_is_published(c), &c->captions);
    if (status == MT_OK) *out = ex_captions_source(c->captions);
    return status;
}

static mt_status make_model(void *self, mt_model **out) {
    const car_clip *c = self;
    const car_clip_network *network = car_clip_network_of(c);
    car_clip_model_options options = CAR_CLIP_MODEL_OPTIONS_INIT;
    mt_weights_options weights = MT_WEIGHTS_OPTIONS_INIT;
    options.image_width = network->image_width;
    options.image_layers = network->image_layers;
    options.text_width = network->text_width;
    options.text_layers = network->text_layers;
    options.embedding = network->embedding;
    options.side = (int)c->flags.image_size;
    options.patch = (int)c->patch;
    options.resnet_width = network->resnet_width;
    options.vocabulary = car_clip_is_published(c) ? EX_CLIP_COUNT : EX_TOKEN_COUNT;
    options.context = car_clip_is_published(c) ? EX_CLIP_CONTEXT : EX_CAPTION_CONTEXT;
    options.contrastive = (int)c->contrastive;
    mt_status status = car_clip_model_new(&options, out);
    weights.strict = 0; /* files of old have the tower's sizes as tensors */
    weights.required = "";
    return status == MT_OK ? ex_checkpoint_weights(*out, c->weights, &weights) : status;
}

/* As CLIP was trained: gains, biases and the scale of the logits do not decay. */
static void set_optimizer(const car_clip *c, mt_torch_options *options) {
    static const mt_parameter_group groups[] = {
        {sizeof(mt_parameter_group), "*bias", 1, 0, 0},
        {sizeof(mt_parameter_group), "*ln_*", 1, 0, 0},
        {sizeof(mt_parameter_group), "logit_scale", 1, 0, 0},
        {sizeof(mt_parameter_group), "visual.class_embedding", 1, 0, 0}};
    static const mt_parameter_group resnet_groups[] = {
        {sizeof(mt_parameter_group), "*bias", 1, 0, 0},
        {sizeof(mt_parameter_group), "*ln_*", 1, 0, 0},
        {sizeof(mt_parameter_group), "logit_scale", 1, 0, 0},
        {sizeof(mt_parameter_group), "*bn*", 1, 0, 0},
        {sizeof(mt_parameter_group), "*downsample.1*", 1, 0, 0}};
    options->beta2 = 0.98;
    options->eps = 1e-6;
    options->groups = groups;
    options->group_count = EX_ROWS(groups);
    if (!car_clip_network_of(c)->resnet_width) return;
    options->groups = resnet_groups;
    options->group_count = EX_ROWS(resnet_groups);
}

/* Parameters as CLIP keeps them. */
static void after_step(void *self, ex_training *run, const mt_step_report *report) {
    if (car_clip_model_clamp(run->torch) != MT_OK) mt_log(MT_LOG_WARNING, "%s", mt_last_error());
    car_clip_memory(self, run, report);
}

static void close_data(void *self) {
    car_clip *c = self;
    ex_captions_free(c->captions);
}

static mt_status train(void *self, ex_training *run) {
    car_clip *c = self;
    ex_source pairs;
    mt_status s = open_data(c, run, &pairs);
    if (!s) s = ex_training_data(run, &pairs);
    set_optimizer(c, &run->torch_options);
    if (!s) s = ex_training_model(run, make_model);
    if (!s) s = mt_fit(run->trainer, &run->training, &run->fit, &run->calls, &run->at);
    if (!s && ex_training_is_done(run)) car_clip_result(c, run);
    return s;
}

int main(int argc, char **argv) {
    car_clip c;
    ex_program program = {.name = "car_clip",
                          .self = &c,
                          .train = train,
                          .introduce = car_clip_introduce,
                          .after_step = after_step,
                          .remedies = car_clip_remedies,
                          .close = close_data};
    int exit_status;
    if (!car_clip_flags(&c, &program, argc, argv, &exit_status)) return exit_status;
    return ex_training_main(&program, &c.flags, argv);
}
