/*
 * check_ex_options.c - command lines of the examples: what is accepted, what is refused and in which
 * words, the help, and what the flags turn into.
 */
#include "suite.h"
#include "flag_values.h"
#include "flags.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

/* ---- a program with a table of its own --------------------------------------------------------- */

typedef struct program {
    ex_flags flags;
    int64_t colour, paws;
    int purrs;
    const char *name;
} program;

static const ex_word colours[] = {{"black", 3}, {"white", 4}, {"tabby", 5}, {NULL, 0}};
static const ex_word some[] = {{"some", 0}, {"none", -1}, {NULL, 0}};
static const ex_option own[] = {
    {.section = "Cats"},
    EX_FLAG("colour", EX_WORD, program, colour, "NAME", "of the coat", .words = colours,
            .decides = 1),
    EX_FLAG("paws-of", EX_WHOLE, program, paws, "N", "how many", .least = -3, .most = 4,
            .words = some),
    EX_FLAG("purrs", EX_SWITCH, program, purrs, NULL, "purrs", .most = 1),
    EX_FLAG("name", EX_TEXT, program, name, "TEXT", "what it is called", .decides = 1),
};

static program fresh = {.flags = EX_FLAGS_INIT, .colour = 4, .paws = 4};
static program cat;

#define MOST_ARGUMENTS 8

static ex_command command(void) {
    cat = fresh;
    return (ex_command){"cat", "a cat", "240MiB", NULL, {own, EX_ROWS(own), &cat}, &cat.flags};
}

static int count(const char *const *arguments) {
    int n = 0;
    while (n < MOST_ARGUMENTS && arguments[n]) n++;
    return n;
}

static void read_back(FILE *file, char *text, size_t capacity) {
    size_t length;
    rewind(file);
    length = fread(text, 1, capacity - 1, file);
    text[length] = '\0';
    fclose(file);
}

/* ex_flags_read with what it printed; the arguments end with NULL. */
static int read_command(const char *const *arguments, int *status, char *out, char *err,
                        size_t capacity) {
    char *argv[MOST_ARGUMENTS + 2] = {(char *)"cat"};
    FILE *files[2] = {tmpfile(), tmpfile()};
    int saved[2] = {dup(1), dup(2)}, n = count(arguments), goes_on;
    ex_command c = command();
    for (int i = 0; i < n; i++) argv[i + 1] = (char *)arguments[i];
    fflush(stdout);
    fflush(stderr);
    for (int i = 0; i < 2; i++) dup2(fileno(files[i]), i + 1);
    goes_on = ex_flags_read(&c, n + 1, argv, status);
    fflush(stdout);
    fflush(stderr);
    for (int i = 0; i < 2; i++) {
        dup2(saved[i], i + 1);
        close(saved[i]);
    }
    read_back(files[0], out, capacity);
    read_back(files[1], err, capacity);
    return goes_on;
}

/* ---- accepted ---------------------------------------------------------------------------------- */

enum { CAPACITY = 16384 };

static void accept(const char *const *arguments) {
    static char out[CAPACITY], err[CAPACITY];
    int status = -1;
    ck_assert_msg(read_command(arguments, &status, out, err, CAPACITY) == 1, "%s", err);
    ck_assert_int_eq(status, 0);
    ck_assert_str_eq(out, "");
    ck_assert_str_eq(err, "");
}

#define ACCEPT(...) accept((const char *const[MOST_ARGUMENTS + 1]){__VA_ARGS__})

TEST("accepted", nothing_leaves_the_defaults) {
    ACCEPT(NULL);
    ck_assert_int_eq(cat.flags.batch, 32);
    ck_assert_int_eq(cat.colour, 4);
    ck_assert_ptr_null(cat.flags.budget);
    ck_assert_str_eq(cat.flags.device, "auto");
}

TEST("accepted", values_come_in_both_forms) {
    ACCEPT("--batch", "8", "--epochs=3", "--name", "a=b", "--trace=x=y");
    ck_assert_int_eq(cat.flags.batch, 8);
    ck_assert_int_eq(cat.flags.epochs, 3);
    ck_assert_str_eq(cat.name, "a=b");
    ck_assert_str_eq(cat.flags.trace, "x=y");
}

TEST("accepted", dashes_and_underscores_are_the_same) {
    ACCEPT("--micro_batch", "4", "--max-micro_batch=9", "--val_clear_every=never", "--paws_of=2");
    ck_assert_int_eq(cat.flags.micro_batch, 4);
    ck_assert_int_eq(cat.flags.max_micro_batch, 9);
    ck_assert_int_eq(cat.flags.val_clear_every, MT_CLEAR_NEVER);
    ck_assert_int_eq(cat.paws, 2);
}

TEST("accepted", the_later_of_two_counts) {
    ACCEPT("--batch", "8", "--batch=16", "--colour=black", "--colour", "tabby");
    ck_assert_int_eq(cat.flags.batch, 16);
    ck_assert_int_eq(cat.colour, 5);
}

TEST("accepted", words_and_switches) {
    ACCEPT("--paws-of=none", "--purrs", "--optimizer=sgd", "--amp", "bf16", "--progress=off",
           "--deterministic");
    ck_assert_int_eq(cat.paws, -1);
    ck_assert_int_eq(cat.purrs, 1);
    ck_assert_int_eq(cat.flags.optimizer, MT_SGD);
    ck_assert_int_eq(cat.flags.amp, MT_BFLOAT16);
    ck_assert_int_eq(cat.flags.progress, EX_PROGRESS_OFF);
    ck_assert_int_eq(cat.flags.deterministic, 1);
}

TEST("accepted", numbers_that_begin_with_a_minus) {
    ACCEPT("--paws-of", "-3");
    ck_assert_int_eq(cat.paws, -3);
}

TEST("accepted", bounds_are_included) {
    ACCEPT("--image-size=32", "--momentum=0", "--seed=9223372036854775807", "--threads=1024");
    ck_assert_int_eq(cat.flags.seed, INT64_MAX);
    ACCEPT("--image-size=2048", "--momentum=0.999", "--epochs=0", "--lr=1e-30");
    ck_assert_int_eq(cat.flags.epochs, 0);
}

static const char *const devices[] = {"auto",    "cpu", "mps",      "cuda",    "cuda:0",
                                      "cuda:12", "sim", "sim:cuda", "sim:mps", "xpu",
                                      "xpu:0",   "npu", "npu:3",    "my_card"};

TEST_LOOP("accepted", devices_are_accepted, LENGTH(devices)) {
    ACCEPT("--device", devices[_i]);
    ck_assert_str_eq(cat.flags.device, devices[_i]);
}

/*
 * What is planned on a simulated card of CUDA is what CUDA does. Cards that are not here have no half precision; check_ex_card asks
 * those that are.
 */
TEST("accepted", half_precision_is_for_cards) {
    static const char *const with[] = {"sim:cuda", "sim"};
    static const char *const without[] = {"cpu", "mps", "sim:mps", "npu"};
    ck_ok(mt_torch_init(NULL));
    ACCEPT("--amp", "auto");
    for (int i = 0; i < LENGTH(with); i++)
        ck_assert_int_eq(ex_flags_torch(&cat.flags, with[i]).amp, MT_FLOAT16);
    for (int i = 0; i < LENGTH(without); i++)
        ck_assert_int_eq(ex_flags_torch(&cat.flags, without[i]).amp, MT_DTYPE_NONE);
}

TEST("refused", half_precision_is_not_for_mps) {
    ACCEPT("--amp", "fp16");
    ck_refused(ex_flags_check_device(&cat.flags, "mps"), MT_EINVAL,
               "--amp: 'fp16' cannot be used on mps; accepted there: auto, off, bf16");
    ck_ok(ex_flags_check_device(&cat.flags, "cuda"));
    ACCEPT("--amp", "bf16");
    ck_ok(ex_flags_check_device(&cat.flags, "mps"));
}

/* PyTorch's names for the only device of a type. */
TEST("accepted", the_only_device_may_have_its_number) {
    ACCEPT("--device", "cpu:0");
    ck_assert_str_eq(cat.flags.device, "cpu");
    ACCEPT("--device", "mps:0");
    ck_assert_str_eq(cat.flags.device, "mps");
}

static const char *const budgets[] = {"600MiB", "8GB",     "0.95", "80%",  "auto",
                                      "1.5G",   "1048576", "1KiB", "4096B"};

TEST_LOOP("accepted", budgets_are_accepted, LENGTH(budgets)) {
    ACCEPT("--budget", budgets[_i]);
    ck_assert_str_eq(cat.flags.budget, budgets[_i]);
}

#define RUNG(name) MT_RUNG_BIT(MT_RUNG_##name)

static const struct {
    const char *names;
    unsigned rungs;
    const char *told; /* as help has it for a program with this default */
} fallbacks[] = {
    {"none", 0, "none"},
    {"cpu", RUNG(CPU), "cpu"},
    {"minimal", RUNG(CPU) | RUNG(MINIMAL), "minimal"},
    {"cpu,minimal", RUNG(CPU) | RUNG(MINIMAL), "minimal"},
    {"smaller-batch", RUNG(SMALLER_BATCH), "smaller-batch"},
    {"smaller-batch,amp,cpu", RUNG(AMP) | RUNG(SMALLER_BATCH) | RUNG(CPU), "amp,smaller-batch,cpu"},
};

TEST_LOOP("accepted", fallbacks_are_accepted, LENGTH(fallbacks)) {
    char text[EX_FALLBACK];
    ACCEPT("--fallback", fallbacks[_i].names);
    ck_assert_uint_eq(ex_flags_policy(&cat.flags).allow_rungs, fallbacks[_i].rungs);
    ex_fallback_text(fallbacks[_i].rungs, text);
    ck_assert_str_eq(text, fallbacks[_i].told);
}

/* One thread is a rung of the CPU too, and what a program has by default is for any device. */
TEST("accepted", fallbacks_that_are_not_there_yet_are_accepted) {
    ACCEPT("--device", "cpu", "--fallback", "minimal");
    ACCEPT("--device", "cpu", "--fallback", "amp,smaller-batch");
    ACCEPT("--device", "auto", "--fallback", "cpu");
    ACCEPT("--amp", "bf16", "--fallback", "cpu");
    ACCEPT("--amp", "auto", "--fallback", "amp");
    fresh.flags.fallback = RUNG(CPU);
    ACCEPT("--device", "cpu");
}

TEST("accepted", a_smaller_batch_has_the_rate_that_is_scaled) {
    ACCEPT("--fallback", "smaller-batch");
    ck_assert_int_eq(ex_flags_policy(&cat.flags).rate_rule, MT_RATE_KEEP);
    ACCEPT("--fallback", "smaller-batch", "--lr-scaling", "linear");
    ck_assert_int_eq(ex_flags_policy(&cat.flags).rate_rule, MT_RATE_LINEAR);
    ACCEPT("--fallback", "smaller-batch", "--lr-scaling", "sqrt");
    ck_assert_int_eq(ex_flags_policy(&cat.flags).rate_rule, MT_RATE_SQRT);
}

TEST("accepted", a_fault_is_read) {
    ACCEPT("--inject-oom=2:117");
    ck_assert_uint_eq(cat.flags.inject.step, 2);
    ck_assert_uint_eq(cat.flags.inject.request, 117);
    ck_assert_int_eq(cat.flags.inject.persistent, 0);
    ACCEPT("--inject_oom", "3:1:persistent");
    ck_assert_uint_eq(cat.flags.inject.step, 3);
    ck_assert_int_eq(cat.flags.inject.persistent, 1);
}

TEST("accepted", a_time_is_read) {
    ACCEPT("--save=f", "--save-every=20");
    ck_assert_uint_eq(cat.flags.save_every.steps, 20);
    ck_assert(cat.flags.save_every.seconds == 0);
    ACCEPT("--save=f", "--save_every", "10m");
    ck_assert_uint_eq(cat.flags.save_every.steps, 0);
    ck_assert(cat.flags.save_every.seconds == 600);
    ACCEPT("--save=f", "--save-every=30s");
    ck_assert(cat.flags.save_every.seconds == 30);
    ACCEPT("--save=f", "--save-every=2h");
    ck_assert(cat.flags.save_every.seconds == 7200);
}

/* Other names of the same: the best place that the device has, and none. */
TEST("accepted", offload_on_and_off) {
    ACCEPT("--offload", "on", "--device", "sim");
    ck_assert_int_eq(ex_flags_torch(&cat.flags, "sim").offload, MT_OFFLOAD_HOST);
    ck_assert_int_eq(ex_flags_torch(&cat.flags, "cpu").offload, MT_OFFLOAD_FILE);
    ACCEPT("--offload", "off");
    ck_assert_int_eq(ex_flags_torch(&cat.flags, "cpu").offload, MT_OFFLOAD_NEVER);
}

/* ---- refused ----------------------------------------------------------------------------------- */

static const struct {
    const char *arguments[3]; /* at most two */
    const char *has[3];       /* what the line says */
} refused[] = {
    {{"--batch", "0"}, {"--batch", "'0'", "a whole number from 1 to 65536"}},
    {{"--batch", "8x"}, {"--batch", "'8x'", "from 1"}},
    {{"--batch", "1e3"}, {"--batch", "'1e3'", "from 1"}},
    {{"--batch=", NULL}, {"--batch", "''", "from 1"}},
    {{"--batch", "99999999999999999999"}, {"--batch", "99999999999999999999", "from 1"}},
    {{"--batch", " 8"}, {"--batch", "' 8'", "from 1"}},
    {{"--batch", NULL}, {"--batch", "needs a value", "from 1"}},
    {{"--batch", "--purrs"}, {"--batch", "needs a value", "from 1"}},
    {{"--epochs", "-1"}, {"--epochs", "'-1'", "from 0"}},
    {{"--seed", "-1"}, {"--seed", "'-1'", "from 0"}},
    {{"--image-size", "16"}, {"--image-size", "'16'", "from 32 to 2048"}},
    {{"--paws-of", "5"}, {"--paws-of", "'5'", "a whole number from -3 to 4, some or none"}},
    {{"--colour", "red"}, {"--colour", "'red'", "black, white or tabby"}},
    {{"--colour", "Black"}, {"--colour", "'Black'", "black, white or tabby"}},
    {{"--name", ""}, {"--name", "''", "TEXT"}},
    {{"--lr", "0"}, {"--lr", "'0'", "above 0"}},
    {{"--lr", "nan"}, {"--lr", "'nan'", "above 0"}},
    {{"--lr", "inf"}, {"--lr", "'inf'", "above 0"}},
    {{"--lr", "1e999"}, {"--lr", "'1e999'", "above 0"}},
    {{"--lr", "0.1.2"}, {"--lr", "'0.1.2'", "above 0"}},
    {{"--momentum", "1"}, {"--momentum", "'1'", "below 1"}},
    {{"--weight-decay", "-0.1"}, {"--weight-decay", "'-0.1'", "at least 0"}},
    {{"--optimizer", "lion"}, {"--optimizer", "'lion'", "sgd, adam or adamw"}},
    {{"--amp", "fp8"}, {"--amp", "'fp8'", "off, bf16 or fp16"}},
    {{"--device", "sim:xla"}, {"--device", "'sim:xla'", "sim, sim:cuda or sim:mps"}},
    {{"--device", "GPU 1"}, {"--device", "'GPU 1'", "another card's name"}},
    {{"--device", "cuda:"}, {"--device", "'cuda:'", "cuda:N"}},
    {{"--device", "cuda:x"}, {"--device", "'cuda:x'", "cuda:N"}},
    {{"--device", "xpu:"}, {"--device", "'xpu:'", "xpu:N"}},
    {{"--device", "xpu:1000"}, {"--device", "'xpu:1000'", "xpu:N"}},
    {{"--budget", "5XB"}, {"--budget", "'5XB'", "600MiB"}},
    {{"--budget", "0"}, {"--budget", "'0'", "600MiB"}},
    {{"--budget", "1.0"}, {"--budget", "'1.0'", "80% (of what is there)"}},
    {{"--budget", "1.5"}, {"--budget", "'1.5'", "without a unit at least 1048576 bytes"}},
    {{"--budget", "4096"}, {"--budget", "'4096'", "without a unit"}},
    {{"--budget", "1048575 \t"}, {"--budget", "'1048575 ", "without a unit"}},
    {{"--budget", "120%"}, {"--budget", "'120%'", "80%"}},
    {{"--budget-resident", "2"}, {"--budget-resident", "'2'", "without a unit"}},
    {{"--budget-resident", "0.5"}, {"--budget-resident", "'0.5'", "900MiB"}},
    {{"--budget-resident", "50%"}, {"--budget-resident", "'50%'", "900MiB"}},
    {{"--budget", "-5MiB"}, {"--budget", "'-5MiB'", "600MiB"}},
    {{"--fallback", "cpu,"}, {"--fallback", "'cpu,'", "amp, smaller-batch, cpu and minimal"}},
    {{"--fallback", "none,cpu"}, {"--fallback", "'none,cpu'", "none, or some of"}},
    {{"--fallback", "cp"}, {"--fallback", "'cp'", "with commas between"}},
    {{"--fallback", "cpu,cpu"}, {"--fallback", "'cpu,cpu'", "each once"}},
    {{"--fallback", "amp,minimal,amp"}, {"--fallback", "'amp,minimal,amp'", "each once"}},
    {{"--fallback=cpu", "--device=cpu"},
     {"--fallback: 'cpu'", "with --device cpu, which is there already", "and minimal"}},
    {{"--device=cpu", "--fallback=amp,cpu"},
     {"--fallback: 'amp,cpu'", "--device cpu", "some of amp, smaller-batch and minimal"}},
    {{"--amp=bf16", "--fallback=amp"},
     {"--fallback: 'amp'", "with --amp bf16, which is half precision already", "smaller-batch"}},
    {{"--amp=fp16", "--fallback=amp,minimal"},
     {"--fallback: 'amp,minimal'", "with --amp fp16", "some of smaller-batch, cpu and minimal"}},
    {{"--micro-batch", "0"}, {"--micro-batch", "'0'", "auto"}},
    {{"--clear-every", "0"}, {"--clear-every", "'0'", "auto, never or epoch"}},
    {{"--progress", "fancy"}, {"--progress", "'fancy'", "auto, bar, plain or off"}},
    {{"--inject-oom", "2"}, {"--inject-oom", "'2'", "STEP:N"}},
    {{"--inject-oom", "0:1"}, {"--inject-oom", "'0:1'", "STEP:N"}},
    {{"--inject-oom", "1:0"}, {"--inject-oom", "'1:0'", "STEP:N"}},
    {{"--inject-oom", "1:2:always"}, {"--inject-oom", "'1:2:always'", "persistent"}},
    {{"--inject-oom", "1: 2"}, {"--inject-oom", "'1: 2'", "STEP:N"}},
    {{"--save-every", "0"}, {"--save-every", "'0'", "such as 30s, 10m or 2h"}},
    {{"--save-every", "10d"}, {"--save-every", "'10d'", "such as 30s, 10m or 2h"}},
    {{"--save-every", "10ms"}, {"--save-every", "'10ms'", "such as 30s, 10m or 2h"}},
    {{"--save-every", "m"}, {"--save-every", "'m'", "such as 30s, 10m or 2h"}},
    {{"--save-every", "-1"}, {"--save-every", "'-1'", "such as 30s, 10m or 2h"}},
    {{"--save-every=9", NULL}, {"--save-every", "not without --save", ""}},
    {{"--no-validation", "--patience=2"}, {"--patience", "not together with --no-validation", ""}},
    {{"--purrs=1", NULL}, {"--purrs", "takes no value", "'1'"}},
    {{"--bacth", "8"}, {"--bacth", "did you mean --batch?", "--help"}},
    {{"--micro_bath=8", NULL}, {"--micro_bath", "did you mean --micro-batch?", "--help"}},
    {{"--elephants", NULL}, {"no flag --elephants", "--help", ""}},
    {{"8", NULL}, {"'8' is not a flag", "--help", ""}},
    {{"-batch", "8"}, {"'-batch' is not a flag", "--help", ""}},
    {{"--", NULL}, {"'--' is not a flag", "--help", ""}},
    {{"--min-micro-batch=9", "--max-micro-batch=8"}, {"--min-micro-batch", "'9'", "8"}},
    {{"--min-micro-batch=33", NULL}, {"--min-micro-batch", "'33'", "at most the 32 of --batch"}},
    {{"--min-micro-batch=9", "--micro-batch=8"},
     {"--min-micro-batch", "'9'", "at most the 8 of --micro-batch"}},
    {{"--micro-batch=64", "--batch=32"}, {"--micro-batch", "'64'", "at most the 32 of --batch"}},
    {{"--micro-batch=9", "--max-micro-batch=8"},
     {"--micro-batch", "'9'", "at most the 8 of --max-micro-batch"}},
    {{"--trace=a", "--replay=a"}, {"--trace", "'a'", "another file than that of --replay"}},
    {{"--trace=a", "--report=a"}, {"--report", "'a'", "another file than that of --trace"}},
    {{"--trace=a", "--resume=a"}, {"--trace", "'a'", "another file than that of --resume"}},
    {{"--report=a", "--save=a"}, {"--report", "'a'", "another file than that of --save"}},
};

TEST_LOOP("refused", wrong_flags_are_refused_in_one_line, LENGTH(refused)) {
    static char out[CAPACITY], err[CAPACITY];
    const char *arguments[MOST_ARGUMENTS + 1] = {refused[_i].arguments[0], refused[_i].arguments[1],
                                                 NULL};
    int status = -1;
    ck_assert_int_eq(read_command(arguments, &status, out, err, CAPACITY), 0);
    ck_assert_int_eq(status, 2);
    ck_assert_str_eq(out, "");
    ck_assert_msg(strncmp(err, "cat: ", 5) == 0, "%s", err);
    ck_assert_msg(strchr(err, '\n') == err + strlen(err) - 1, "not one line: %s", err);
    for (int i = 0; i < 3; i++) ck_contains(err, refused[_i].has[i]);
}

TEST("refused", control_characters_do_not_reach_the_terminal) {
    static char out[CAPACITY], err[CAPACITY];
    const char *arguments[MOST_ARGUMENTS + 1] = {"--batch", "8\n9\033[2J", NULL};
    int status;
    ck_assert_int_eq(read_command(arguments, &status, out, err, CAPACITY), 0);
    ck_contains(err, "'8?9?[2J'");
}

/* ---- help and version -------------------------------------------------------------------------- */

static const char *help_text(const char *const *arguments) {
    static char out[CAPACITY], err[CAPACITY];
    int status = -1;
    ck_assert_int_eq(read_command(arguments, &status, out, err, CAPACITY), 0);
    ck_assert_int_eq(status, 0);
    ck_assert_str_eq(err, "");
    return out;
}

#define HELP(...) help_text((const char *const[MOST_ARGUMENTS + 1]){__VA_ARGS__})

TEST("help", help_lists_flags_and_defaults) {
    const char *text = HELP("--help", NULL);
    const char *has[] = {"cat: a cat",       "\nCats\n",    "--colour NAME",
                         "(default: white)", "\nMemory\n",  "(default: 32)",
                         "--help",           "Exit status", "240MiB on the CPU"};
    for (int i = 0; i < LENGTH(has); i++) ck_contains(text, has[i]);
}

TEST("help", help_is_narrow) {
    const char *line = HELP("--help", NULL);
    while (*line) {
        size_t length = strcspn(line, "\n");
        ck_assert_msg(length <= 100, "%.*s", (int)length, line);
        line += length + 1;
    }
}

TEST("help", help_comes_before_complaints_and_shows_true_defaults) {
    ck_contains(HELP("--elephants", "--batch", "8", "--help", NULL), "(default: 32)");
    ck_contains(HELP("-h", NULL), "Exit status");
}

TEST("help", version_names_both_libraries) {
    const char *text = HELP("--version", NULL);
    ck_contains(text, MT_VERSION_STRING);
    ck_contains(text, "libtorch 2.");
}

/* ---- what the flags turn into ------------------------------------------------------------------ */

TEST("options", flags_become_options) {
    ACCEPT("--micro-batch=4", "--clear-every=5", "--val-clear-every=never", "--deterministic",
           "--lr=0.25", "--clip=1", "--optimizer=adam");
    mt_policy_options policy = ex_flags_policy(&cat.flags);
    mt_torch_options torch = ex_flags_torch(&cat.flags, "cpu");
    ck_assert_uint_eq(policy.micro_batch, 4);
    ck_assert_int_eq(policy.clear_every, 5);
    ck_assert_int_eq(policy.eval_clear_every, MT_CLEAR_NEVER);
    ck_assert_int_eq(policy.deterministic, 1);
    ck_assert_int_eq(torch.optimizer, MT_ADAM);
    ck_assert(torch.lr == 0.25 && torch.clip_norm == 1.0);
    ck_assert_str_eq(torch.device, "cpu");
}

/* The network needs two samples at once; --batch 32 where the row does not say. */
static const struct {
    const char *arguments[2];
    size_t rest;
    const char *has; /* NULL: accepted */
} cuts[] = {
    {{"--batch=2", NULL}, 0, NULL},
    {{"--batch=1", NULL}, 0, "--batch: 1 is below 2"},
    {{"--micro-batch=1", NULL}, 0, "--micro-batch: 1 is below 2"},
    {{"--max-micro-batch=1", NULL}, 0, "--max-micro-batch: 1 is below 2"},
    {{"--micro-batch=1", "--min-micro-batch=1"}, 0, NULL},
    {{"--batch=16", "--min-micro-batch=16"}, 15, NULL},
    {{"--micro-batch=2", NULL}, 0, NULL},
    {{"--micro-batch=2", NULL}, 4, NULL},
    {{"--micro-batch=2", NULL}, 1, NULL}, /* left out */
    {{"--micro-batch=2", NULL}, 5, "--micro-batch: 2 cuts the last batch of an epoch, of 5 into"},
    {{"--batch=3", "--micro-batch=2"},
     0,
     "--micro-batch: 2 cuts a --batch of 3 into chunks of 2 and 1, and 2 are the fewest"},
    {{"--batch=33", "--micro-batch=2"}, 0, "a --batch of 33 into chunks of 2 and 1"},
    {{"--batch=3", "--micro-batch=3"}, 0, NULL},
    {{"--batch=7", "--micro-batch=3"}, 0, NULL},     /* 3, 2, 2 */
    {{"--batch=3", "--max-micro-batch=2"}, 0, NULL}, /* the policy makes it one chunk */
};

TEST_LOOP("options", chunks_that_cannot_be_trained_are_refused, LENGTH(cuts)) {
    const char *const arguments[MOST_ARGUMENTS + 1] = {cuts[_i].arguments[0], cuts[_i].arguments[1],
                                                       NULL};
    mt_backend_info info = {.size = sizeof info, .min_micro_batch = 2};
    accept(arguments);
    if (!cuts[_i].has) {
        ck_ok(ex_flags_check(&cat.flags, &info, cuts[_i].rest));
        return;
    }
    ck_refused(ex_flags_check(&cat.flags, &info, cuts[_i].rest), MT_EINVAL, cuts[_i].has);
}

static const char *setting(const char *name) {
    static ex_setting settings[EX_SETTINGS];
    const ex_table cats = {own, EX_ROWS(own), &cat};
    size_t found = ex_flags_settings(&cat.flags, &cats, settings);
    ck_assert_uint_lt(found, EX_SETTINGS);
    for (size_t i = 0; i < found; i++)
        if (strcmp(settings[i].name, name) == 0) return settings[i].value;
    return "idle";
}

TEST("options", settings_are_what_decides) {
    ACCEPT("--lr=0.1", "--batch=7", "--amp=bf16", "--micro-batch=3", "--schedule=constant");
    ck_assert_str_eq(setting("lr"), "0.1");
    ck_assert_str_eq(setting("batch"), "7");
    ck_assert_str_eq(setting("amp"), "bf16");
    ck_assert_str_eq(setting("optimizer"), "adamw");
    ck_assert_str_eq(setting("weight-decay"), "0.01");
    ck_assert_str_eq(setting("colour"), "white");
    ck_assert_str_eq(setting("name"), ""); /* not given, which decides too */
    ck_assert_str_eq(setting("paws-of"), "idle");
    ck_assert_str_eq(setting("momentum"), "idle");
    ck_assert_str_eq(setting("epochs"), "idle");
    ck_assert_str_eq(setting("micro-batch"), "idle");
    ACCEPT("--optimizer=sgd", "--schedule=cosine", "--epochs=9", "--lr=0.30000000000000004");
    ck_assert_str_eq(setting("momentum"), "0.9");
    ck_assert_str_eq(setting("epochs"), "9");
    ck_assert_str_eq(setting("lr"), "0.30000000000000004");
    ck_assert_str_eq(setting("offload"), "not pack");
    ACCEPT("--name=Tom", "--offload=never");
    ck_assert_str_eq(setting("name"), "Tom");
    ck_assert_str_eq(setting("offload"), "not pack");
    ACCEPT("--offload=pack");
    ck_assert_str_eq(setting("offload"), "pack");
    ACCEPT("--name=a/path/that/is/longer/than/a/setting");
    ck_assert_str_eq(setting("name"), "h/that/is/longer/than/a/setting");
}

static double rate_of(const ex_flags *flags, uint64_t step, uint64_t steps) {
    const mt_schedule schedule = ex_flags_schedule(flags, steps);
    return mt_schedule_rate(&schedule, step);
}

TEST("options", learning_rates) {
    ex_flags flags = EX_FLAGS_INIT;
    flags.lr = 2.0;
    ck_assert(rate_of(&flags, 7, 10) == 2.0);
    flags.schedule = MT_SCHEDULE_COSINE;
    ck_assert(rate_of(&flags, 0, 10) == 2.0);
    ck_assert(fabs(rate_of(&flags, 5, 10) - 1.0) < 1e-12);
    for (uint64_t i = 1; i < 10; i++)
        ck_assert(rate_of(&flags, i, 10) < rate_of(&flags, i - 1, 10));
    ck_assert(rate_of(&flags, 9, 10) > 0);
    flags.warmup = 4;
    for (int kind = MT_SCHEDULE_CONSTANT; kind <= MT_SCHEDULE_STEP; kind++) {
        flags.schedule = kind;
        ck_assert(rate_of(&flags, 0, 10) == 2.0 / 5);
        ck_assert(rate_of(&flags, 2, 10) < rate_of(&flags, 3, 10));
        ck_assert(rate_of(&flags, 4, 10) == 2.0);
        for (uint64_t i = 5; i < 10; i++)
            ck_assert(rate_of(&flags, i, 10) <= rate_of(&flags, i - 1, 10));
        ck_assert(rate_of(&flags, 9, 10) > 0);
        ck_assert(rate_of(&flags, 1, 3) > 0); /* shorter than its warm-up */
    }
}

/* ---- suite ------------------------------------------------------------------------------------- */

SUITE("ex_options")
