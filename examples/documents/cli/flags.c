/*
 * flags.c - the table of the shared flags; see flags.h.
 */
#include "flags.h"
#include "files.h"
#include "flag_values.h"
#include "output.h"
#include "processes.h"

#include <memtrain/call.h>
#include <memtrain/tensor.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(ex_flags, field)

#define MANY 1000000000 /* more than any run has: a bound that catches typing errors */

const ex_word ex_size_words[] = {
    {"small", EX_SIZE_SMALL}, {"published", EX_SIZE_PUBLISHED}, {NULL, 0}};

static const ex_word automatic[] = {{"auto", 0}, {NULL, 0}};
static const ex_word optimizers[] = {
    {"sgd", MT_SGD}, {"adam", MT_ADAM}, {"adamw", MT_ADAMW}, {NULL, 0}};
static const ex_word precisions[] = {{"auto", EX_AMP_AUTO},
                                     {"off", MT_DTYPE_NONE},
                                     {"bf16", MT_BFLOAT16},
                                     {"fp16", MT_FLOAT16},
                                     {NULL, 0}};
static const ex_word orders[] = {{"off", 0}, {"on", 1}, {"auto", EX_CHANNELS_LAST_AUTO}, {NULL, 0}};
static const ex_word scalings[] = {
    {"none", EX_LR_AS_IT_IS}, {"linear", EX_LR_LINEAR}, {"sqrt", EX_LR_SQRT}, {NULL, 0}};
static const ex_word arenas[] = {{"auto", MT_ARENA_AUTO}, {"never", MT_ARENA_NEVER}, {NULL, 0}};
static const ex_word checkpointing[] = {{"auto", MT_CHECKPOINTING_AUTO},
                                        {"on", MT_CHECKPOINTING_ON},
                                        {"off", EX_CHECKPOINTING_OFF},
                                        {NULL, 0}};
static const ex_word offloads[] = {{"auto", MT_OFFLOAD_AUTO}, {"on", EX_OFFLOAD_ON},
                                   {"host", MT_OFFLOAD_HOST}, {"file", MT_OFFLOAD_FILE},
                                   {"pack", MT_OFFLOAD_PACK}, {"never", MT_OFFLOAD_NEVER},
                                   {"off", MT_OFFLOAD_NEVER}, {NULL, 0}};
static const ex_word schedules[] = {{"constant", MT_SCHEDULE_CONSTANT},
                                    {"cosine", MT_SCHEDULE_COSINE},
                                    {"linear", MT_SCHEDULE_LINEAR},
                                    {"step", MT_SCHEDULE_STEP},
                                    {NULL, 0}};
static const ex_word clearing[] = {
    {"auto", MT_CLEAR_AUTO}, {"never", MT_CLEAR_NEVER}, {"epoch", MT_CLEAR_EPOCHS}, {NULL, 0}};
static const ex_word val_clearing[] = {
    {"auto", MT_CLEAR_AUTO}, {"never", MT_CLEAR_NEVER}, {NULL, 0}};
static const ex_word rehearsing[] = {
    {"auto", 0}, {"on", 1}, {"off", 2}, {NULL, 0}}; /* rehearse.h */
static const ex_word progress_modes[] = {{"auto", EX_PROGRESS_AUTO},
                                         {"bar", EX_PROGRESS_BAR},
                                         {"plain", EX_PROGRESS_PLAIN},
                                         {"off", EX_PROGRESS_OFF},
                                         {NULL, 0}};

/* ---- the table --------------------------------------------------------------------------------- */

#define FLAG(name, kind, field, ...) EX_FLAG(name, kind, ex_flags, field, __VA_ARGS__)
#define SWITCH(name, field, help) FLAG(name, EX_SWITCH, field, NULL, help, .most = 1)

static const ex_option rows[] = {
    {.section = "Data"},
    FLAG("data", EX_TEXT, data, "DIR", "a folder of class folders with JPEG and PNG pictures",
         .accepts = "a folder of class folders, DIR/CLASS/picture.jpg or .png",
         .by_default = "the pictures that come with the programs"),
    FLAG("image-size", EX_WHOLE, image_size, "N",
         "side of the pictures in pixels; memory grows with its square", .least = 32, .most = 2048),

    {.section = "Training"},
    FLAG("batch", EX_WHOLE, batch, "N", "samples of one optimiser step, however they are cut",
         .least = 1, .most = 65536, .decides = 1),
    FLAG("accumulate", EX_WHOLE, accumulate, "N",
         "an optimiser step takes N times --batch, in chunks of at most --batch", .least = 1,
         .most = 65536),
    FLAG("processes", EX_WHOLE, processes, "N",
         "train by N processes of this machine, each on its share of the samples, with batches of "
         "--batch and a budget of its own; also as torchrun starts them",
         .least = 1, .most = EX_PROCESSES_MAX, .decides = 1),
    FLAG("epochs", EX_WHOLE, epochs, "N", "times to go through the data; 0 trains nothing",
         .most = MANY, .decides = 1),
    FLAG("steps", EX_WHOLE, steps, "N", "stop after N optimiser steps; 0: no such bound",
         .most = MANY),
    FLAG("patience", EX_WHOLE, patience, "N",
         "stop when the validation's first metric has not risen for N epochs; 0: never",
         .most = MANY),
    SWITCH("no-validation", no_validation, "leave out the validation after each epoch"),
    FLAG("optimizer", EX_WORD, optimizer, "NAME", "sgd, adam or adamw", .words = optimizers,
         .decides = 1),
    FLAG("lr", EX_REAL, lr, "X", "learning rate", .min = DBL_MIN, .max = DBL_MAX,
         .accepts = "a number above 0", .decides = 1),
    FLAG("lr-scaling", EX_WORD, lr_scaling, "HOW",
         "the learning rate with the batch: none, linear, or sqrt; --lr is that of the default "
         "batch then",
         .words = scalings, .decides = 1),
    FLAG("schedule", EX_WORD, schedule, "NAME",
         "of the learning rate: constant; cosine or linear, down to 0 over all epochs; step, to a "
         "tenth at each third of them",
         .words = schedules, .decides = 1),
    FLAG("warmup", EX_WHOLE, warmup, "N", "first steps, in which the learning rate rises to --lr",
         .most = MANY, .decides = 1),
    FLAG("momentum", EX_REAL, momentum, "X", "momentum of sgd", .max = 1.0 - DBL_EPSILON,
         .accepts = "a number from 0 to below 1", .decides = 1),
    FLAG("weight-decay", EX_REAL, weight_decay, "X", "L2 in sgd and adam, decoupled in adamw",
         .max = DBL_MAX, .accepts = "a number of at least 0", .decides = 1),
    FLAG("clip", EX_REAL, clip, "X", "scale the gradient down to this norm; 0 leaves it",
         .max = DBL_MAX, .accepts = "a number of at least 0; 0 leaves the gradient as it is",
         .decides = 1),
    FLAG("apply-not-finite", EX_SWITCH, apply_not_finite, NULL,
         "make the update of a step whose loss is infinite or not a number, which spoils the "
         "weights; without it such a step is taken back",
         .most = 1, .decides = 1),
    FLAG("amp", EX_WORD, amp, "auto|off|bf16|fp16",
         "mixed precision in the forward pass; fp16 has a loss scaler; auto: fp16 on a card that "
         "computes in it, else off",
         .words = precisions, .decides = 1),
    FLAG("channels-last", EX_WORD, channels_last, "auto|on|off",
         "pictures and weights with their channels side by side in memory, as tensor cores want "
         "it; the results have other roundings; auto: where a chunk is then faster by a twentieth",
         .words = orders, .decides = 1),
    FLAG("seed", EX_WHOLE, seed, "N", "of weights, order and augmentation", .most = INT64_MAX),

    {.section = "Memory"},
    FLAG(
        "device", EX_PARSED, device, "NAME",
        "auto, cpu, cuda, cuda:N, xpu, xpu:N, mps, another card that libtorch has a name for, or a "
        "simulated card of --budget: sim:cuda or sim, sim:mps; auto takes cuda, else xpu, else "
        "mps, "
        "else another card, else cpu",
        .read = ex_read_device,
        .accepts =
            "auto, cpu, cuda, cuda:N, xpu, xpu:N, mps, another card's name, sim, sim:cuda or "
            "sim:mps",
        .by_default = "auto"),
    FLAG("budget", EX_PARSED, budget, "SIZE|auto",
         "most that tensors may take: 600MiB, 8GB, 0.95 or 80% (of what is there), or auto",
         .read = ex_read_budget,
         .accepts = "a size such as 600MiB, 8GB, 0.95 or 80% (of what is there), or auto; without "
                    "a unit at least 1048576 bytes",
         .by_default = "auto"),
    FLAG("budget-resident", EX_PARSED, budget_resident, "SIZE",
         "most that the whole process may hold, on the CPU: code, libraries and heap included",
         .read = ex_read_resident,
         .accepts = "a size such as 900MiB or 2GB; without a unit at least 1048576 bytes",
         .by_default = "no such limit"),
    FLAG("arena", EX_WORD, arena, "auto|never",
         "serve the tensors of chunks on the CPU from planned memory, or from the heap",
         .words = arenas),
    FLAG("checkpointing", EX_WORD, checkpointing, "auto|on|off",
         "compute activations again in the backward pass, where the network has segments; auto: "
         "where not even the smallest chunk fits without",
         .words = checkpointing),
    FLAG("offload", EX_WORD, offload, "auto|on|host|file|pack|never|off",
         "where activations wait for the backward pass: beside the budget in the host's memory, in "
         "a "
         "file, or as bf16, which changes the numbers; auto: on the host, or on the CPU in a file "
         "of "
         "--offload-dir, where not even the smallest chunk fits without; on: there from the start",
         .words = offloads, .decides = 1),
    FLAG("offload-dir", EX_TEXT, offload_dir, "DIR",
         "folder of the file of --offload file, which is as large as the activations of a chunk",
         .accepts = "a folder to write to",
         .by_default = "TMPDIR, or /tmp; with --offload auto on the CPU: no file"),
    FLAG("micro-batch", EX_WHOLE, micro_batch, "N|auto", "samples sent through the network at once",
         .least = 1, .most = 65536, .words = automatic),
    FLAG("min-micro-batch", EX_WHOLE, min_micro_batch, "N|auto",
         "never fewer, where it is chosen; auto: what the network needs", .least = 1, .most = 65536,
         .words = automatic),
    FLAG("max-micro-batch", EX_WHOLE, max_micro_batch, "N|auto",
         "never more, where it is chosen; auto: no bound", .least = 1, .most = 65536,
         .words = automatic),
    FLAG("clear-every", EX_WHOLE, clear_every, "N|auto|never|epoch",
         "empty the device's cache each N training steps and after each epoch; epoch: only then; "
         "auto: on evidence",
         .least = 1, .most = MANY, .words = clearing),
    FLAG("val-clear-every", EX_WHOLE, val_clear_every, "N|auto|never",
         "the same for validation batches", .least = 1, .most = MANY, .words = val_clearing),
    FLAG("fallback", EX_PARSED, fallback, "NAMES",
         "where not even the smallest chunk fits the device: none gives up; else a list, taken in "
         "this order: amp goes on in bf16, smaller-batch with fewer samples a step, "
         "cpu there, minimal then with one thread (and cpu)",
         .read = ex_read_fallback, .by_default = "none",
         .accepts = "none, or some of amp, smaller-batch, cpu and minimal with commas between, "
                    "each once"),
    SWITCH("deterministic", deterministic,
           "choose sizes by memory alone, not by time: equal on equal budgets"),
    FLAG("threads", EX_WHOLE, threads, "N|auto",
         "threads that compute; auto: one per core that the process may use, as its affinity and "
         "its control group say, and at most OMP_NUM_THREADS where that is set. Results depend on "
         "their number",
         .least = 1, .most = 1024, .words = automatic),
    FLAG("workers", EX_WHOLE, workers, "N",
         "threads that render batches ahead; 0: each when it is needed", .most = EX_WORKERS_MAX),
    FLAG("prefetch", EX_WHOLE, prefetch, "N",
         "batches that workers render ahead; their bytes count against the CPU's budget",
         .least = 1, .most = 64),

    {.section = "Watching"},
    SWITCH("explain", explain,
           "say before training what will take memory and how a batch will be cut; with --epochs 0 "
           "that is all"),
    FLAG("rehearse", EX_WORD, rehearse, "auto|on|off",
         "with --explain: on: tell what chunks take from pictures of 96, 128 and 160 pixels; auto: "
         "where pictures have more than 256, else a dry run above 160; off: chunks as they are",
         .words = rehearsing),
    SWITCH("check", check,
           "do not train: look whether the network can be trained in chunks, on a few samples of "
           "the first batch"),
    FLAG("progress", EX_WORD, progress, "MODE",
         "auto, bar, plain or off; auto: a bar on a terminal, else plain lines",
         .words = progress_modes),
    FLAG("trace", EX_TEXT, trace, "FILE.jsonl",
         "write every decision and step, one JSON object a line", .accepts = "a file to write",
         .file = EX_FILE_WRITTEN),
    FLAG("report", EX_TEXT, report, "FILE.html",
         "draw the run on one page: chunks, peak against budget and time over the steps, OOMs, "
         "epochs, settings",
         .accepts = "a file to write", .file = EX_FILE_WRITTEN),
    FLAG("replay", EX_TEXT, replay, "FILE.jsonl",
         "take the chunks of each step from a trace, and stop where it ends",
         .accepts = "a trace to read", .file = EX_FILE_READ),
    FLAG("learned", EX_TEXT, learned, "FILE",
         "begin with what runs before have learnt of chunks, and leave it there for the next one",
         .accepts = "a file to write", .file = EX_FILE_WRITTEN),
    FLAG("save", EX_TEXT, save, "FILE",
         "write all that is needed to go on, after each epoch and when the run is stopped; the "
         "file before it becomes FILE.1, and the one of the best epoch is FILE.best",
         .accepts = "a file to write", .file = EX_FILE_SAVED),
    FLAG("save-every", EX_PARSED, save_every, "N|10m",
         "write --save within epochs too: each N steps, or after so many seconds (s), minutes (m) "
         "or "
         "hours (h)",
         .read = ex_read_save_every,
         .accepts = "a number of steps, or a time such as 30s, 10m or 2h; both at least 1",
         .by_default = "after each epoch alone"),
    FLAG("resume", EX_TEXT, resume, "FILE",
         "go on where the run of that file was; --steps counts from its beginning",
         .accepts = "a file of --save", .file = EX_FILE_RESUMED),
    FLAG("inject-oom", EX_PARSED, inject, "STEP:N[:persistent]",
         "let the N-th request for memory in that step fail, once or from then on",
         .read = ex_read_inject, .accepts = "STEP:N or STEP:N:persistent, both at least 1"),
    SWITCH("help", help, "this list"),
    SWITCH("version", version, "versions of the library and of libtorch"),
};

/* ---- reading ----------------------------------------------------------------------------------- */

static ex_option *row_of(ex_option *table, size_t offset) {
    for (size_t i = 0;; i++)
        if (table[i].offset == offset && table[i].name) return &table[i];
}

/* Defaults that are made up for a program. */
typedef struct defaults {
    char budget[64], fallback[EX_FALLBACK];
} defaults;

/* What differs from program to program. */
static void adapt(const ex_command *command, ex_option *table, defaults *texts) {
    if (command->budget) {
        snprintf(texts->budget, sizeof texts->budget, "%s on the CPU, else auto", command->budget);
        row_of(table, AT(budget))->by_default = texts->budget;
    }
    ex_fallback_text(command->flags->fallback, texts->fallback);
    row_of(table, AT(fallback))->by_default = texts->fallback;
    if (command->data)
        row_of(table, AT(data))->help = row_of(table, AT(data))->accepts = command->data;
}

static void print_help(const ex_command *command, const ex_table *tables) {
    printf("%s: %s\n\nUsage: %s [--FLAG VALUE]... [--SWITCH]...\n\nFlags are --name VALUE or "
           "--name=VALUE; '-' and '_' in names are the same. "
           "Where a\n"
           "flag is given twice, the last one counts.\n",
           command->program, command->summary, command->program);
    ex_options_help(tables, stdout);
    printf("\nExit status: 0 done, 1 failure, 2 wrong flag, 3 does not fit into the budget, "
           "4 --check has\nfound a fault, 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM.\n");
}

static void print_version(const ex_command *command) {
    printf("%s: libmemtrain %s, libtorch %s\n", command->program, mt_version_string(),
           mt_torch_version());
}

static int is_given(const char *flag, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], flag) == 0) return 1;
    return 0;
}

/* What only two flags together can get wrong: one number is above another. */
static int check_sizes(const ex_command *command, ex_error *error) {
    const ex_flags *f = command->flags;
    const struct {
        const char *name, *bound;
        int64_t value, most; /* 0: not given */
    } pairs[] = {
        {"--min-micro-batch", "--batch", f->min_micro_batch, f->batch},
        {"--min-micro-batch", "--max-micro-batch", f->min_micro_batch, f->max_micro_batch},
        {"--min-micro-batch", "--micro-batch", f->min_micro_batch, f->micro_batch},
        {"--micro-batch", "--batch", f->micro_batch, f->batch},
        {"--micro-batch", "--max-micro-batch", f->micro_batch, f->max_micro_batch},
    };
    for (size_t i = 0; i < EX_ROWS(pairs); i++) {
        if (!pairs[i].value || !pairs[i].most || pairs[i].value <= pairs[i].most) continue;
        ex_error_set(error, command->program,
                     "%s: '%lld' is not accepted; accepted: at most the %lld of %s", pairs[i].name,
                     (long long)pairs[i].value, (long long)pairs[i].most, pairs[i].bound);
        return -1;
    }
    return 0;
}

/* A replay begins at the first step, which a run that goes on has behind it. */
static int check_start(const ex_command *command, ex_error *error) {
    const ex_flags *f = command->flags;
    const struct {
        int is_wrong;
        const char *text;
    } wrong[] = {{f->resume && f->replay,
                  "--resume: not together with --replay, which begins at the first step"},
                 {(f->save_every.steps || f->save_every.seconds > 0) && !f->save,
                  "--save-every: not without --save, the file that it writes"},
                 {f->no_validation && f->patience,
                  "--patience: not together with --no-validation, whose figure it looks at"}};
    for (size_t i = 0; i < EX_ROWS(wrong); i++) {
        if (!wrong[i].is_wrong) continue;
        ex_error_set(error, command->program, "%s", wrong[i].text);
        return -1;
    }
    return 0;
}

/*
 * A rung that is taken already is none to take. by_default: a program's own list is for any device, and one of
 * auto may turn out to be the CPU.
 */
static int check_fallback(const ex_command *command, int64_t by_default, ex_error *error) {
    const ex_flags *f = command->flags;
    const int64_t amp = MT_RUNG_BIT(MT_RUNG_AMP), cpu = MT_RUNG_BIT(MT_RUNG_CPU);
    const int64_t minimal = cpu | MT_RUNG_BIT(MT_RUNG_MINIMAL);
    char given[EX_FALLBACK];
    ex_fallback_text(f->fallback, given);
    if (f->fallback == by_default) return 0;
    if ((f->fallback & minimal) == cpu && strcmp(f->device, "cpu") == 0)
        ex_error_set(error, command->program,
                     "--fallback: '%s' is not accepted with --device cpu, which is there already; "
                     "accepted: none, or some of amp, smaller-batch and minimal",
                     given);
    else if ((f->fallback & amp) && f->amp > 0)
        ex_error_set(error, command->program,
                     "--fallback: '%s' is not accepted with --amp %s, which is half precision "
                     "already; accepted: none, or some of smaller-batch, cpu and minimal",
                     given, f->amp == MT_BFLOAT16 ? "bf16" : "fp16");
    else
        return 0;
    return -1;
}

static int check_together(const ex_command *command, const ex_table *tables, int64_t fallback,
                          ex_error *error) {
    int processes = (int)ex_processes_asked(command->flags), status = check_sizes(command, error);
    if (status == 0) status = ex_files_check(command->program, tables, processes, error);
    if (status == 0) status = check_fallback(command, fallback, error);
    return status == 0 ? check_start(command, error) : status;
}

/* The effective batch; chunks stay within what was the batch, since that is what was seen to fit. */
static int accumulate(const ex_command *command, ex_error *error) {
    ex_flags *f = command->flags;
    if (f->accumulate == 1) return 0;
    if (!f->max_micro_batch && !f->micro_batch) f->max_micro_batch = f->batch;
    f->batch *= f->accumulate;
    if (f->batch <= 65536) return 0;
    ex_error_set(error, command->program,
                 "--accumulate: '%lld' is not accepted; accepted: at most 65536 samples a step, "
                 "these are %lld",
                 (long long)f->accumulate, (long long)f->batch);
    return -1;
}

int ex_flags_read(const ex_command *command, int argc, char **argv, int *out_status) {
    ex_option shared[EX_ROWS(rows)];
    defaults texts;
    ex_error error;
    int64_t fallback = command->flags->fallback;
    memcpy(shared, rows, sizeof rows);
    adapt(command, shared, &texts);
    const ex_table tables[] = {
        command->own, {shared, EX_ROWS(rows), command->flags}, {NULL, 0, NULL}};
    *out_status = 0;
    if (is_given("--help", argc, argv) || is_given("-h", argc, argv)) {
        print_help(command, tables);
        *out_status = ex_output_end(command->program) ? 0 : 1;
        return 0;
    }
    if (ex_options_parse(command->program, tables, argc, argv, &error) != 0 ||
        check_together(command, tables, fallback, &error) != 0 ||
        accumulate(command, &error) != 0) {
        fprintf(stderr, "%s\n", error.text);
        *out_status = 2;
        return 0;
    }
    if (!command->flags->version) return 1;
    print_version(command);
    *out_status = ex_output_end(command->program) ? 0 : 1;
    return 0;
}

/*
 * Momentum is of sgd, and how many epochs there are is of a rate that goes down over all of them: other settings, which
 * stay, say so, and two runs that have those in common leave out the same.
 */
static int is_idle(const ex_flags *flags, const char *name) {
    if (strcmp(name, "momentum") == 0) return flags->optimizer != MT_SGD;
    return strcmp(name, "epochs") == 0 && flags->schedule == MT_SCHEDULE_CONSTANT;
}

/* Of the places where activations wait bf16 alone changes them: all others are one. */
static void unite_places(const ex_flags *flags, ex_setting *s) {
    if (strcmp(s->name, "offload") == 0 && flags->offload != MT_OFFLOAD_PACK)
        snprintf(s->value, sizeof s->value, "not pack");
}

size_t ex_flags_settings(const ex_flags *flags, const ex_table *own, ex_setting out[EX_SETTINGS]) {
    ex_flags copy = *flags; /* a table's base is not const */
    const ex_table tables[] = {*own, {rows, EX_ROWS(rows), &copy}, {NULL, 0, NULL}};
    size_t kept = 0, count = ex_options_settings(tables, out, EX_SETTINGS);
    for (size_t i = 0; i < count && i < EX_SETTINGS; i++) {
        if (is_idle(flags, out[i].name)) continue;
        out[kept] = out[i];
        unite_places(flags, &out[kept++]);
    }
    return kept;
}

/* ---- handing them on --------------------------------------------------------------------------- */

static const mt_rate_rule rate_rules[] = {
    [EX_LR_AS_IT_IS] = MT_RATE_KEEP, [EX_LR_LINEAR] = MT_RATE_LINEAR, [EX_LR_SQRT] = MT_RATE_SQRT};

mt_policy_options ex_flags_policy(const ex_flags *flags) {
    mt_policy_options options = MT_POLICY_OPTIONS_INIT;
    options.micro_batch = (size_t)flags->micro_batch;
    options.min_micro_batch = (size_t)flags->min_micro_batch;
    options.max_micro_batch = (size_t)flags->max_micro_batch;
    options.clear_every = (int)flags->clear_every;
    options.eval_clear_every = (int)flags->val_clear_every;
    options.deterministic = flags->deterministic;
    if (flags->by_hand) options.keep_chunks = MT_KEEP_NEVER;
    options.allow_rungs = (unsigned)flags->fallback;
    /* A step that the rung makes smaller has the rate that a smaller --batch would have. */
    options.rate_rule = rate_rules[flags->lr_scaling];
    if (flags->checkpointing == EX_CHECKPOINTING_OFF)
        options.forbid_rungs = MT_RUNG_BIT(MT_RUNG_CHECKPOINTING);
    return options;
}

/* Tensors of a simulated card are the CPU's. */
static int is_simulated(const char *device) {
    return strncmp(device, "sim", 3) == 0;
}

/* A product under autocast, of the first into the second. */
static mt_status multiply(void *user) {
    mt_tensor *const *pair = user;
    return mt_call_into("aten::mm", MT_VALUES(mt_value_tensor(pair[0]), mt_value_tensor(pair[0])),
                        MT_NO_KEYWORDS, pair[1]);
}

static mt_dtype dtype_of_product(const char *device) {
    static float numbers[8 * 8];
    static const int64_t shape[] = {8, 8};
    mt_tensor *here = NULL, *pair[2] = {NULL, NULL};
    mt_tensor_info info = MT_TENSOR_INFO_INIT;
    mt_status status = mt_tensor_from_memory(numbers, MT_FLOAT32, 2, shape, &here);
    const char *place = is_simulated(device) ? "cpu" : device;
    if (status == MT_OK) status = mt_tensor_copy(here, place, MT_FLOAT32, &pair[0]);
    if (status == MT_OK) status = mt_tensor_new(&pair[1]);
    if (status == MT_OK) status = mt_amp_autocast(device, MT_FLOAT16, multiply, pair);
    if (status == MT_OK) status = mt_tensor_describe(pair[1], &info);
    for (int i = 0; i < 2; i++) mt_tensor_free(pair[i]);
    mt_tensor_free(here);
    return status == MT_OK ? info.dtype : MT_DTYPE_NONE;
}

static int is_mps(const char *device) {
    return strncmp(device, "mps", 3) == 0 || strcmp(device, "sim:mps") == 0;
}

int ex_flags_has_half(const char *device) {
    if (strcmp(device, "cpu") == 0 || is_mps(device)) return 0;
    return dtype_of_product(device) == MT_FLOAT16;
}

static mt_dtype amp_of(const ex_flags *flags, const char *device) {
    if (flags->amp != EX_AMP_AUTO) return (mt_dtype)flags->amp;
    return ex_flags_has_half(device) ? MT_FLOAT16 : MT_DTYPE_NONE;
}

mt_status ex_flags_check_device(const ex_flags *flags, const char *device) {
    if (flags->amp != MT_FLOAT16 || !is_mps(device) || is_simulated(device)) return MT_OK;
    return mt_set_error(
        MT_EINVAL, "--amp: 'fp16' cannot be used on %s; accepted there: auto, off, bf16", device);
}

double ex_flags_base_lr(const ex_flags *flags) {
    double times = (double)(flags->batch * flags->processes) / (double)flags->lr_batch;
    if (flags->lr_scaling == EX_LR_LINEAR) return flags->lr * times;
    return flags->lr_scaling == EX_LR_SQRT ? flags->lr * sqrt(times) : flags->lr;
}

/* The host's memory is the CPU's own. */
static int offload_of(const ex_flags *flags, const char *device) {
    if (flags->offload != EX_OFFLOAD_ON) return (int)flags->offload;
    return strcmp(device, "cpu") == 0 ? MT_OFFLOAD_FILE : MT_OFFLOAD_HOST;
}

mt_torch_options ex_flags_torch(const ex_flags *flags, const char *device) {
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    options.device = device;
    options.optimizer = (mt_optimizer)flags->optimizer;
    options.lr = ex_flags_base_lr(flags);
    options.momentum = flags->momentum;
    options.weight_decay = flags->weight_decay;
    options.clip_norm = flags->clip;
    options.apply_not_finite = flags->apply_not_finite;
    options.amp = amp_of(flags, device);
    options.channels_last = flags->channels_last == 1;
    options.arena = (int)flags->arena;
    if (flags->checkpointing == MT_CHECKPOINTING_ON) options.checkpointing = MT_CHECKPOINTING_ON;
    options.offload = offload_of(flags, device);
    options.offload_dir = flags->offload_dir;
    return options;
}

size_t ex_flags_least(const ex_flags *flags, const mt_backend_info *info) {
    return flags->min_micro_batch ? (size_t)flags->min_micro_batch : info->min_micro_batch;
}

/* A batch of so many samples in the chunks that --micro-batch asks for: sizes differ by one at most. */
static mt_status check_cut(const ex_flags *flags, const char *batch, size_t samples, size_t least) {
    size_t most = (size_t)flags->micro_batch;
    if (!most || samples < least) return MT_OK;
    size_t chunks = (samples + most - 1) / most;
    if (samples / chunks >= least) return MT_OK;
    return mt_set_error(
        MT_EINVAL,
        "--micro-batch: %zu cuts %s of %zu into chunks of %zu and %zu, and %zu are the "
        "fewest samples that this network can be trained on at once",
        most, batch, samples, (samples + chunks - 1) / chunks, samples / chunks, least);
}

mt_status ex_flags_check(const ex_flags *flags, const mt_backend_info *info, size_t rest) {
    const struct {
        const char *name;
        int64_t value; /* 0: not given */
    } sizes[] = {{"--batch", flags->batch},
                 {"--micro-batch", flags->micro_batch},
                 {"--max-micro-batch", flags->max_micro_batch}};
    size_t least = ex_flags_least(flags, info);
    for (size_t i = 0; i < EX_ROWS(sizes); i++)
        if (sizes[i].value && (size_t)sizes[i].value < least)
            return mt_set_error(
                MT_EINVAL,
                "%s: %lld is below %zu, the fewest samples that this network can be "
                "trained on at once",
                sizes[i].name, (long long)sizes[i].value, least);
    mt_status status = check_cut(flags, "a --batch", (size_t)flags->batch, least);
    return status == MT_OK ? check_cut(flags, "the last batch of an epoch,", rest, least) : status;
}

mt_schedule ex_flags_schedule(const ex_flags *flags, uint64_t steps) {
    mt_schedule schedule = MT_SCHEDULE_INIT;
    uint64_t warmup = (uint64_t)flags->warmup;
    schedule.kind = (mt_schedule_kind)flags->schedule;
    schedule.rate = ex_flags_base_lr(flags);
    schedule.warmup = warmup;
    schedule.warmup_factor = 1.0 / (double)(warmup + 1); /* not 0, which no optimiser takes */
    schedule.steps = steps > warmup ? steps : warmup + 1;
    schedule.step_every = (steps + 2) / 3 ? (steps + 2) / 3 : 1;
    return schedule;
}
