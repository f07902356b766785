/*
 * conv.c - a convolutional network in plain C: defined, trained and tested inside a memory budget.
 *
 *     build/examples/conv --budget 4MiB
 *
 * There is no C++ in it. What the network computes are operators of libtorch, which are called by name
 * (memtrain/call.h), and what trains it is mt_trainer, which cuts batches into chunks that fit. It learns to
 * read the digits that plain/digits.c draws. docs/call.md goes through it; the file is to be read from here
 * to its end.
 */
#include "options.h"
#include "output.h"
#include "plain/digits.h"

#include <memtrain/call.h>
#include <memtrain/trainer.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define NAME "conv"

enum { TRAINED = 2000, TESTED = 500, MOST_BATCH = 1024 }; /* pictures */

/* ---- the network: its tensors ------------------------------------------------------------------ */

enum {
    CONV1,             /* weight, then weight and bias of the norm behind it */
    CONV2 = CONV1 + 3, /* likewise */
    FC = CONV2 + 3,    /* weight and bias */
    PARAMETERS = FC + 2,
    STATISTICS1 = PARAMETERS, /* mean and variance, which training keeps beside the parameters */
    STATISTICS2 = STATISTICS1 + 2,
    TENSORS = STATISTICS2 + 2
};

/* What each is called, its shape, and how it begins: drawn from a range, or filled with a number. */
static const struct {
    const char *name;
    size_t dims;
    int64_t shape[4];
    double inputs; /* of an output, which the range depends on; 0: filled */
    double fill;
} described[TENSORS] = {
    {"conv1.weight", 4, {16, 1, 3, 3}, 9, 0},
    {"norm1.weight", 1, {16}, 0, 1},
    {"norm1.bias", 1, {16}, 0, 0},
    {"conv2.weight", 4, {32, 16, 3, 3}, 144, 0},
    {"norm2.weight", 1, {32}, 0, 1},
    {"norm2.bias", 1, {32}, 0, 0},
    {"fc.weight", 2, {DIGITS, 512}, 512, 0},
    {"fc.bias", 1, {DIGITS}, 0, 0},
    {"norm1.running_mean", 1, {16}, 0, 0},
    {"norm1.running_var", 1, {16}, 0, 1},
    {"norm2.running_mean", 1, {32}, 0, 0},
    {"norm2.running_var", 1, {32}, 0, 1},
};

typedef struct net {
    mt_tensor *tensors[TENSORS];
    int training; /* dropout is on, and statistics are those of the chunk */
} net;

/* The result of an operator takes the place of what out has had; so a chain of them needs one handle. */
#define CALL(out, name, ...) mt_call_into(name, MT_VALUES(__VA_ARGS__), MT_NO_KEYWORDS, out)
#define T(tensor) mt_value_tensor(tensor)

/* He et al. 2015, arXiv 1502.01852. A parameter is a tensor that needs a gradient. */
static mt_status make_tensor(mt_tensor **out, int i) {
    double range = described[i].inputs > 0 ? sqrt(6 / described[i].inputs) : 0;
    mt_status status = mt_tensor_new(out);
    mt_tensor *t = *out;
    if (status == MT_OK)
        status = CALL(t, "aten::full", mt_value_ints(described[i].shape, described[i].dims),
                      mt_value_double(described[i].fill));
    if (status == MT_OK && range > 0)
        status = CALL(t, "aten::uniform_", T(t), mt_value_double(-range), mt_value_double(range));
    if (status == MT_OK && i < PARAMETERS) status = CALL(t, "aten::requires_grad_", T(t));
    return status;
}

/* ---- the network: what it computes ------------------------------------------------------------- */

/* Convolution, norm, and of each 2 x 2 places the largest number above 0. x may be the input. */
static mt_status block(const net *n, int conv, int statistics, mt_tensor *input, mt_tensor *x) {
    mt_tensor *const *own = n->tensors + conv, *const *kept = n->tensors + statistics;
    mt_status status = mt_call_into("aten::conv2d", MT_VALUES(T(input), T(own[0])),
                                    MT_KEYWORDS({"padding", mt_value_int(1)}), x);
    if (status == MT_OK)
        status = CALL(x, "aten::batch_norm", T(x), T(own[1]), T(own[2]), T(kept[0]), T(kept[1]),
                      mt_value_bool(n->training), mt_value_double(0.1), mt_value_double(1e-5),
                      mt_value_bool(1));
    if (status == MT_OK) status = CALL(x, "aten::relu", T(x));
    if (status == MT_OK) status = CALL(x, "aten::max_pool2d", T(x), mt_value_int(2));
    return status;
}

/* pictures [B, 1, 16, 16] to x [B, DIGITS]: how much each picture looks like each digit. */
static mt_status forward(const net *n, mt_tensor *pictures, mt_tensor *x) {
    mt_tensor *const *fc = n->tensors + FC;
    mt_status status = block(n, CONV1, STATISTICS1, pictures, x);     /* [B, 16, 8, 8] */
    if (status == MT_OK) status = block(n, CONV2, STATISTICS2, x, x); /* [B, 32, 4, 4] */
    if (status == MT_OK) status = CALL(x, "aten::flatten", T(x), mt_value_int(1)); /* [B, 512] */
    if (status == MT_OK)
        status = CALL(x, "aten::dropout", T(x), mt_value_double(0.25), mt_value_bool(n->training));
    if (status == MT_OK) status = CALL(x, "aten::linear", T(x), T(fc[0]), T(fc[1]));
    return status;
}

/* Of one chunk: its mean loss, whose graph leads to the parameters, and how many pictures are told right. */
static mt_status loss(void *self, mt_tensor *const *batch, size_t count, mt_tensor *out_loss,
                      mt_tensor *out_metrics) {
    mt_tensor *x = NULL, *labels = batch[1];
    mt_status status = mt_tensor_new(&x);
    (void)count;
    if (status == MT_OK) status = forward(self, batch[0], x);
    if (status == MT_OK) status = CALL(out_loss, "aten::cross_entropy_loss", T(x), T(labels));
    if (status == MT_OK) status = CALL(x, "aten::argmax", T(x), mt_value_int(1));
    if (status == MT_OK) status = CALL(x, "aten::eq", T(x), T(labels));
    if (status == MT_OK) status = CALL(out_metrics, "aten::sum", T(x));
    mt_tensor_free(x); /* and with it what a forward pass that failed has left */
    return status;
}

/* ---- the network: what the trainer has to know of it ------------------------------------------- */

static mt_status visit(net *n, int from, int to, mt_visit_fn fn, void *user) {
    mt_status status = MT_OK;
    for (int i = from; status == MT_OK && i < to; i++)
        status = fn(user, described[i].name, n->tensors[i]);
    return status;
}

static mt_status visit_parameters(void *self, mt_visit_fn fn, void *user) {
    return visit(self, 0, PARAMETERS, fn, user);
}

static mt_status visit_buffers(void *self, mt_visit_fn fn, void *user) {
    return visit(self, PARAMETERS, TENSORS, fn, user);
}

static mt_status set_training(void *self, int on) {
    ((net *)self)->training = on;
    return MT_OK;
}

/* Each stays the tensor that it is, with its numbers somewhere else. */
static mt_status to_device(void *self, const char *device) {
    net *n = self;
    mt_tensor *moved = NULL;
    mt_status status = mt_tensor_new(&moved);
    for (int i = 0; status == MT_OK && i < TENSORS; i++) {
        status = mt_call_into("aten::to", MT_VALUES(T(n->tensors[i])),
                              MT_KEYWORDS({"device", mt_value_device(device)}), moved);
        if (status == MT_OK)
            status = mt_call("aten::set_data", MT_VALUES(T(n->tensors[i]), T(moved)),
                             MT_NO_KEYWORDS, NULL, 0, NULL);
    }
    mt_tensor_free(moved);
    return status;
}

static void destroy(void *self) {
    net *n = self;
    for (int i = 0; i < TENSORS; i++) mt_tensor_free(n->tensors[i]);
    free(n);
}

/* The model owns the network, also when it cannot be made. */
static mt_status make_model(mt_model **out) {
    static const char *const metrics[] = {"accuracy"};
    mt_model_ops ops = MT_MODEL_OPS_INIT;
    mt_model_traits traits = MT_MODEL_TRAITS_INIT;
    mt_status status = MT_OK;
    net *n = calloc(1, sizeof *n);
    if (!n) return mt_set_error(MT_ENOMEM, "out of host memory");
    for (int i = 0; status == MT_OK && i < TENSORS; i++) status = make_tensor(&n->tensors[i], i);
    if (status != MT_OK) {
        destroy(n);
        return status;
    }
    ops.visit_parameters = visit_parameters, ops.visit_buffers = visit_buffers;
    ops.set_training = set_training, ops.loss = loss;
    ops.to_device = to_device, ops.destroy = destroy;
    traits.normalises_over_batch = 1; /* so a chunk has two pictures at least */
    traits.min_micro_batch = 2;
    traits.metric_count = 1;
    traits.metric_names = metrics;
    return mt_model_new(&ops, n, &traits, out);
}

/* ---- flags ------------------------------------------------------------------------------------- */

typedef struct flags {
    const char *device;
    size_t budget_bytes;
    int64_t batch, micro_batch, epochs, seed;
    double lr;
    int help;
} flags;

static int read_budget(const char *text, void *target) {
    return mt_parse_size(text, 0, target) == MT_OK;
}

static const ex_word automatic[] = {{"auto", 0}, {NULL, 0}};

static const ex_option rows[] = {
    {.section = "Flags"},
    EX_FLAG("budget", EX_PARSED, flags, budget_bytes, "SIZE", "most memory of tensors",
            .read = read_budget, .by_default = "4MiB", .accepts = "a size such as 800KiB or 8MiB"),
    EX_FLAG("batch", EX_WHOLE, flags, batch, "N", "pictures of a step", .least = 2,
            .most = MOST_BATCH),
    EX_FLAG("micro-batch", EX_WHOLE, flags, micro_batch, "N|auto",
            "most pictures of a chunk; auto: chosen", .words = automatic, .least = 2,
            .most = MOST_BATCH),
    EX_FLAG("epochs", EX_WHOLE, flags, epochs, "N", "times through the 2000 pictures", .least = 1,
            .most = 1000),
    EX_FLAG("lr", EX_REAL, flags, lr, "X", "learning rate of AdamW", .min = 1e-9, .max = 1),
    EX_FLAG("seed", EX_WHOLE, flags, seed, "N", "of pictures, first weights and dropout",
            .most = 1000000000),
    EX_FLAG("device", EX_TEXT, flags, device, "NAME",
            "cpu, cuda, xpu, mps, or a simulated card of --budget: sim:cuda, sim:mps",
            .accepts = "the name of a device"),
    EX_FLAG("help", EX_SWITCH, flags, help, NULL, "this list", .most = 1),
};

static void print_help(const ex_table *tables) {
    printf(NAME ": teaches a convolutional network to read digits, in plain C, inside a memory "
                "budget\n\nUsage: " NAME " [--FLAG VALUE]...\n");
    ex_options_help(tables, stdout);
    printf("\nExit status: 0 done, 1 failure, 2 wrong flag, 3 does not fit into the budget.\n");
}

/* ---- training ---------------------------------------------------------------------------------- */

typedef struct run {
    flags flags;
    mt_model *model;
    mt_torch *torch; /* the model with its optimiser, on a device */
    mt_trainer *trainer;
    float pixels[MOST_BATCH * PIXELS]; /* of one batch */
    int64_t labels[MOST_BATCH];
} run;

static mt_status check_device(const char *name) {
    char why[256];
    if (mt_device_check(name) == MT_OK) return MT_OK;
    snprintf(why, sizeof why, "%s", mt_last_error());
    return mt_set_error(MT_EINVAL, "--device: '%.32s' is not accepted: %s", name, why);
}

static mt_status start(run *r) {
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options training = MT_TRAINER_OPTIONS_INIT;
    mt_backend backend = MT_BACKEND_INIT;
    options.device = r->flags.device;
    options.lr = r->flags.lr;
    policy.micro_batch = (size_t)r->flags.micro_batch;
    training.policy = &policy;
    mt_status status = check_device(r->flags.device);
    if (status == MT_OK) status = mt_device_set_budget(r->flags.device, r->flags.budget_bytes);
    if (status == MT_OK) status = mt_torch_seed((uint64_t)r->flags.seed);
    if (status == MT_OK) status = make_model(&r->model);
    if (status == MT_OK) status = mt_torch_new(r->model, &options, &r->torch);
    if (status == MT_OK) status = mt_torch_backend(r->torch, &backend);
    if (status == MT_OK) status = mt_trainer_new(&backend, &training, &r->trainer);
    return status;
}

/* Pictures as a batch, which is trained with, or looked at. */
static mt_status feed(run *r, const uint32_t *pictures, size_t count, int is_test) {
    const int64_t shape[] = {(int64_t)count, 1, SIDE, SIDE};
    mt_tensor *tensors[2] = {NULL, NULL};
    mt_torch_batch data = {sizeof data, tensors, 2};
    mt_batch batch = {sizeof batch, &data, count, 0};
    for (size_t i = 0; i < count; i++) {
        draw_picture((uint64_t)r->flags.seed, pictures[i], r->pixels + i * PIXELS);
        r->labels[i] = pictures[i] % DIGITS;
    }
    mt_status status = mt_tensor_from_memory(r->pixels, MT_FLOAT32, 4, shape, &tensors[0]);
    if (status == MT_OK) status = mt_tensor_from_memory(r->labels, MT_INT64, 1, shape, &tensors[1]);
    if (status == MT_OK)
        status = is_test ? mt_trainer_evaluate(r->trainer, &batch, NULL)
                         : mt_trainer_step(r->trainer, &batch, NULL);
    mt_tensor_free(tensors[0]);
    mt_tensor_free(tensors[1]);
    return status;
}

/* All pictures once, in an order that seed and epoch decide; then those that it has not seen. */
static mt_status run_epoch(run *r, uint64_t epoch) {
    uint32_t order[TRAINED], unseen[TESTED];
    uint64_t state = (epoch << 32) + (uint64_t)r->flags.seed;
    size_t batch = (size_t)r->flags.batch;
    mt_epoch_report e = MT_EPOCH_REPORT_INIT;
    mt_status status = MT_OK;
    for (uint32_t i = 0, j; i < TRAINED; order[j] = i++) {
        j = (uint32_t)(draw_number(&state) % (i + 1));
        order[i] = order[j];
    }
    for (uint32_t i = 0; i < TESTED; i++) unseen[i] = TRAINED + i;
    for (size_t i = 0; status == MT_OK && i < TRAINED; i += batch)
        status = feed(r, order + i, TRAINED - i < batch ? TRAINED - i : batch, 0);
    if (status == MT_OK) status = feed(r, unseen, TESTED, 1);
    if (status == MT_OK) status = mt_trainer_end_epoch(r->trainer, &e);
    if (status == MT_OK)
        printf("epoch %llu  loss %.4f  test loss %.4f  accuracy %.1f %%\n",
               (unsigned long long)epoch, e.loss, e.eval_loss, 100 * e.eval_metrics[0]);
    fflush(stdout);
    return status;
}

static mt_status finish(run *r) {
    mt_run_report f = MT_RUN_REPORT_INIT;
    char budget[32], peak[32];
    mt_status status = mt_trainer_finish(r->trainer, &f);
    if (status == MT_OK)
        printf("chunks of %zu to %zu for batch %lld, peak %s of %s, OOMs met: %llu; state %.16s\n",
               f.smallest_chunk, f.largest_chunk, (long long)r->flags.batch,
               mt_format_size(f.peak_bytes, peak, sizeof peak),
               mt_format_size(f.budget_bytes, budget, sizeof budget), (unsigned long long)f.ooms,
               f.state_sha256);
    return status;
}

/* The library itself prints nothing. */
static void print_line(void *user, mt_log_level level, const char *text) {
    (void)user;
    if (level != MT_LOG_DEBUG) fprintf(stderr, NAME ": %s\n", text);
}

int main(int argc, char **argv) {
    mt_reexec_passive(argv);
    mt_set_log(print_line, NULL);
    static run r = {.flags = {"cpu", (size_t)4 << 20, 128, 0, 6, 1, 2e-3, 0}};
    const ex_table tables[] = {{rows, EX_ROWS(rows), &r.flags}, {NULL, 0, NULL}};
    char why[4096] = "";
    ex_error error;
    if (ex_options_parse(NAME, tables, argc, argv, &error) != 0)
        return fprintf(stderr, "%s\n", error.text), 2;
    if (r.flags.help) return print_help(tables), ex_output_end(NAME) ? 0 : 1;
    mt_status status = start(&r);
    for (int64_t epoch = 1; status == MT_OK && epoch <= r.flags.epochs; epoch++)
        status = run_epoch(&r, (uint64_t)epoch);
    if (status == MT_OK) status = finish(&r);
    if (status == MT_EDEVMEM) mt_trainer_explain(r.trainer, why, sizeof why);
    if (status != MT_OK) fprintf(stderr, NAME ": %s\n%s", mt_last_error(), why);
    mt_trainer_free(r.trainer);
    mt_torch_free(r.torch);
    mt_model_free(r.model);
    if (status == MT_OK) return ex_output_end(NAME) ? 0 : 1;
    return status == MT_EINVAL ? 2 : status == MT_EDEVMEM ? 3 : 1;
}
