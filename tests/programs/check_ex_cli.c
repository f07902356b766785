/*
 * check_ex_cli.c - build/examples/food101 as a person runs it: exit status, lines, trace. How a run
 * ends otherwise than by itself is in check_ex_ends.c.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_setaffinity */
#endif
#include "cli.h"

#ifdef __linux__
#include <sched.h>
#endif
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

/* A budget in which a batch of 32 small pictures does not fit whole, by a byte. */
static const char *tight_budget(void) {
    static char text[32];
    EXPECT(0, FEW_PICTURES, "--steps", "1", "--budget", "auto", "--micro-batch", "32", "--trace",
           cli_trace);
    long long bytes = cli_number(cli_trace, "step", 1, "peak_bytes");
    ck_assert_int_gt(bytes, 0);
    snprintf(text, sizeof text, "%lld", bytes - 1);
    return text;
}

/* ---- flags --------------------------------------------------------------------------------------- */

TEST("flags", help_and_version_go_to_standard_output) {
    EXPECT(0, "--help");
    ck_says(cli_out, "\n\nUsage: food101 [--FLAG VALUE]...", "--profile", "ultra-safe 4");
    ck_assert_str_eq(cli_err, "");
    EXPECT(0, "--version");
    ck_contains(cli_out, "food101: libmemtrain " MT_VERSION_STRING);
    ck_assert_str_eq(cli_err, "");
}

/* auto is at most what the user has set; the first number of a list counts. */
TEST("flags", threads_that_are_set_are_kept) {
    static const char *const environment[] = {"OMP_NUM_THREADS=1,2", NULL};
    cli_environment = environment;
    EXPECT(0, "--device", "cpu", "--image-size", "32", "--steps", "1", "--dev-samples", "40",
           "--trace", cli_trace);
    cli_environment = NULL;
    ck_assert_int_eq(cli_number(cli_trace, "program", 1, "threads"), 1);
    EXPECT(0, "--help");
    ck_says(cli_out, "OMP_NUM_THREADS where that is set", "129 SIGHUP");
}

static const char *const wrong[][3] = {
    {"--batch", "none", "from 1"},
    {"--profile", "fast", "ultra-safe, safe, moderate, target or original"},
    {"--arch", "resnet19", "resnet18, resnet34 or resnet50"},
    {"--device", "mps", "cannot be used here"},
    {"--device", "gpu", "'gpu' is not the name of a device; accepted: "},
    {"--device", "gpu", "; here: cpu"},
    {"--device", "cuda:999", "accepted: cpu"},
    {"--budget", "much", "600MiB"},
    {"--data", "/nonexistent", "FOLDER/CLASS/picture.jpg"},
    {"--trace", "/nonexistent/t", "No such file"},
    {"--replay", "/nonexistent/t", "No such file"},
    {"--dev-samples", "3", "too few for 8 classes"},
    {"--min-micro-batch", "33", "at most the 32 of --batch"},
};

/* BatchNorm at 32 pixels needs two samples: known before the first step. */
static const char *const too_few[][5] = {
    {"--batch", "1", NULL},
    {"--micro-batch", "1", NULL},
    {"--max-micro-batch", "1", NULL},
    {"--micro-batch", "2", "--batch", "3", NULL},
    {"--micro-batch", "2", "--batch", "13", NULL}, /* 224 pictures: a rest of 3 */
};

TEST_LOOP("flags", chunks_of_one_are_refused_by_flag, LENGTH(too_few)) {
    const char *const *flags = too_few[_i];
    EXPECT(2, FEW_PICTURES, flags[0], flags[1], flags[2], flags[3]);
    ck_assert_msg(strncmp(cli_err, "food101: --", 11) == 0, "%s", cli_err);
    ck_says(cli_err, flags[0], "the fewest samples that this network can be trained on at once");
}

TEST_LOOP("flags", wrong_values_exit_2_with_one_line, LENGTH(wrong)) {
    if (strcmp(wrong[_i][1], "mps") == 0 && access("/System/Library", F_OK) == 0) return;
    EXPECT(2, wrong[_i][0], wrong[_i][1]);
    ck_assert_str_eq(cli_out, "");
    cli_one_line("food101: --");
    ck_says(cli_err, wrong[_i][1], wrong[_i][2]);
}

/* ---- runs ---------------------------------------------------------------------------------------- */

TEST("runs", a_run_says_what_it_did) {
    EXPECT(0, FEW_PICTURES, "--epochs", "2", "--profile", "moderate", "--dev-samples", "60",
           "--trace", cli_trace);
    ck_says(cli_out, "8 classes; always guessing '", "\nepoch 1  train loss ",
            "\nepoch 2  train loss ", "  validation loss ", "\nvalidation accuracy ",
            "\nbudget 240.0 MiB, peak ", " for batch 16; 0 OOMs met, ", "; state sha256 ");
    ck_contains(cli_err, "epoch 1/2  step ");
    ck_assert_ptr_null(strchr(cli_err, '\r'));
    ck_assert_int_eq(cli_number(cli_trace, "program", 1, "threads"), 1);
    ck_assert_int_eq(cli_number(cli_trace, "epoch", 2, "epoch"), 2);
    ck_assert_int_gt(cli_number(cli_trace, "end", 1, "steps"), 2);
}

#define ONE_STEP FEW_PICTURES, "--steps", "1", "--epochs", "1", "--progress", "off"

/* Without --deterministic, of which orders are none. The size of a chunk is fixed, so that bits can be compared. */
#define MEASURED_STEP                                                                              \
    MEASURED, "--dev-samples", "60", "--steps", "1", "--epochs", "1", "--progress", "off"
#define ONE_CHUNK MEASURED_STEP, "--batch", "8", "--micro-batch", "8"

/* The order that is chosen and told is that of the run, to the bit; which one it is depends on the machine. */
TEST("runs", an_order_is_chosen) {
    char state[65];
    EXPECT(0, ONE_CHUNK, "--channels-last", "auto", "--trace", cli_trace);
    const char *told = strstr(cli_err, "--channels-last auto: "),
               *at = strstr(cli_out, "; state sha256 ");
    ck_assert_msg(told && at, "%s%s", cli_out, cli_err);
    snprintf(state, sizeof state, "%.64s", at + strlen("; state sha256 "));
    const char *order = strncmp(told + strlen("--channels-last auto: "), "on.", 3) ? "off" : "on";
    EXPECT(0, ONE_CHUNK, "--channels-last", order, "--replay", cli_trace);
    ck_contains(cli_out, state);
    EXPECT(0, ONE_CHUNK, "--channels-last", "auto", "--replay", cli_trace, "--save",
           cli_path("order"));
    ck_assert_ptr_null(strstr(cli_err, "--channels-last"));
    EXPECT(0, MEASURED, "--dev-samples", "60", "--epochs", "1", "--steps", "2", "--batch", "8",
           "--micro-batch", "8", "--channels-last", "auto", "--resume", cli_path("order"));
    ck_assert_ptr_null(strstr(cli_err, "--channels-last"));
    EXPECT(2, ONE_CHUNK, "--channels-last", strcmp(order, "on") ? "on" : "off", "--replay",
           cli_trace);
    ck_contains(cli_err, "--channels-last: ");
}

/* Nothing is measured where equal runs are to have equal bits, nor where nothing is trained. */
TEST("runs", no_order_is_tried) {
    EXPECT(0, ONE_STEP, "--batch", "8", "--channels-last", "auto");
    ck_contains(cli_err, "--channels-last auto: off, since --deterministic leaves nothing");
    EXPECT(0, MEASURED, "--dev-samples", "60", "--batch", "8", "--channels-last", "auto",
           "--explain", "--epochs", "0");
    ck_contains(cli_err, "--channels-last auto: off, since nothing is trained");
}

/* Where the batch does not fit at once, an order is chosen by a smaller chunk; where none does, a line says so. */
TEST("runs", an_order_is_chosen_in_little_memory) {
    size_t samples = 0;
    EXPECT(0, MEASURED_STEP, "--image-size", "96", "--batch", "32", "--budget", "230MiB",
           "--channels-last", "auto");
    const char *told = strstr(cli_err, "A chunk of ");
    ck_assert_msg(told && sscanf(told, "A chunk of %zu", &samples) == 1, "%s", cli_err);
    ck_assert_uint_ge(samples, 2);
    ck_assert_uint_le(samples, 16);
    EXPECT(3, MEASURED_STEP, "--image-size", "96", "--batch", "32", "--budget", "190MiB",
           "--channels-last", "auto");
    ck_contains(cli_err, "--channels-last auto: off, since not even a chunk of 2 with "
                         "checkpointing fits in both orders");
}

/* All 64 digits of the state are for files and pipes; on a terminal the line would wrap. */
TEST("runs", a_terminal_has_fewer_digits) {
    static char text[CLI_CAPACITY];
    size_t length = 0;
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    ck_assert_int_ge(terminal, 0);
    ck_assert_int_eq(grantpt(terminal) || unlockpt(terminal), 0);
    cli_stdout = ptsname(terminal);
    EXPECT(0, ONE_STEP);
    fcntl(terminal, F_SETFL, O_NONBLOCK);
    for (ssize_t n; (n = read(terminal, text + length, sizeof text - 1 - length)) > 0;)
        length += (size_t)n;
    close(terminal);
    const char *digits = strstr(text, "; state sha256 ");
    ck_assert_msg(digits != NULL, "%s", text);
    digits += strlen("; state sha256 ");
    ck_assert_uint_eq(strspn(digits, "0123456789abcdef"), 16);
    ck_assert_int_eq(digits[16], '\r');
}

TEST("runs", the_pictures_are_found_from_anywhere) {
    ck_assert_int_eq(chdir("/"), 0);
    EXPECT(0, ONE_STEP);
    ck_assert_str_eq(cli_err, "");
}

TEST("runs", two_runs_are_equal) {
    EXPECT(0, FEW_PICTURES, "--steps", "3", "--trace", cli_trace);
    EXPECT(0, FEW_PICTURES, "--steps", "3", "--trace", cli_replayed);
    cli_same_state();
}

TEST("runs", explaining_changes_nothing) {
    EXPECT(0, FEW_PICTURES, "--steps", "2", "--trace", cli_trace);
    EXPECT(0, FEW_PICTURES, "--steps", "2", "--trace", cli_replayed, "--explain");
    ck_says(cli_out, "optimiser state", "--budget 240MiB", "A batch of 32 is cut into ");
    cli_same_state();
}

TEST("runs", the_network_can_be_cut) {
    EXPECT(0, FEW_PICTURES, "--check");
    ck_contains(cli_out, "checked with 6 samples: 0 faults found\n");
    ck_assert_ptr_null(strstr(cli_out, "epoch 1"));
}

TEST("runs", explaining_alone) {
    EXPECT(0, FEW_PICTURES, "--epochs", "0", "--explain");
    ck_contains(cli_out, "What a chunk of the batch needs");
    ck_assert_ptr_null(strstr(cli_out, "epoch 1"));
}

/* A loss that is not finite makes no update, and so many in a row end the run: with or without their updates. */
TEST("runs", a_loss_that_explodes_stops_the_run) {
    EXPECT(1, FEW_PICTURES, "--optimizer", "sgd", "--lr", "1e30", "--steps", "20", "--trace",
           cli_trace);
    ck_says(cli_err, " is taken back: its loss is ", "food101: the losses of 10 steps up to step ",
            "--lr");
    EXPECT(1, FEW_PICTURES, "--optimizer", "sgd", "--lr", "1e30", "--steps", "20",
           "--apply-not-finite");
    ck_assert_ptr_null(strstr(cli_err, " is taken back"));
    ck_contains(cli_err, "food101: the losses of 10 steps up to step ");
}

/* ---- budgets ------------------------------------------------------------------------------------- */

TEST("budgets", a_budget_is_kept_where_the_whole_batch_does_not_fit) {
    const char *budget = tight_budget();
    EXPECT(0, SMALL, "--budget", budget, "--micro-batch", "32", "--steps", "2", "--trace",
           cli_trace); /* alone */
    ck_assert_int_le(cli_number(cli_trace, "step", 2, "peak_bytes"),
                     cli_number(cli_trace, "step", 2, "budget_bytes"));
    EXPECT(3, SMALL, "--budget", "178MiB", "--micro-batch", "32", "--steps", "2", "--checkpointing",
           "off");
    ck_says(cli_err, "A batch of 32 samples does not fit on cpu", "--micro-batch auto",
            "--budget SIZE");
    EXPECT(0, SMALL, "--budget", budget, "--epochs", "1", "--trace", cli_trace);
    for (int n = 1; n <= 7; n++) {
        ck_assert_int_eq(cli_number(cli_trace, "step", n, "samples"), 32);
        ck_assert_int_le(cli_number(cli_trace, "step", n, "peak_bytes"),
                         cli_number(cli_trace, "step", n, "budget_bytes"));
        ck_assert_int_eq(cli_number(cli_trace, "step", n, "retries"), 0);
    }
    ck_assert_int_eq(cli_number(cli_trace, "end", 1, "ooms"), 0);
    /* Two recordings, and the largest chunk of a deterministic run, at most half of the batch. */
    ck_assert_int_le(cli_number(cli_trace, "end", 1, "samples_discarded"), 6 + 32 / 2);
}

TEST("budgets", a_model_that_does_not_fit_exits_3) {
    EXPECT(3, FEW_PICTURES, "--budget", "100MiB");
    ck_says(cli_err, "parameters 42.7 MiB, gradients 42.7 MiB, optimiser state 85.3 MiB",
            "; together 17", " MiB, budget 100.0 MiB; activations come on top", "--optimizer sgd");
    ck_assert_ptr_null(strstr(cli_err, "--image-size"));
}

/* The parts and what is missing, where that is less than the buffers and the batches ahead. */
TEST("budgets", a_state_that_hardly_does_not_fit_is_told_whole) {
    EXPECT(3, FEW_PICTURES, "--budget", "170.74MiB", "--explain", "--workers", "1", "--prefetch",
           "1");
    ck_says(cli_out, "  buffers ", "  other tensors ", "  missing ");
    ck_contains(cli_err, "buffers 37.7 KiB, other tensors ");
}

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
/* Of two limits the one that is too small is told of, and the other is no help. */
static const struct {
    const char *budget, *limit, *says, *says_not;
} both[] = {
    {"200MiB", "300MiB", "no help: --budget-resident leaves tensors less\n", "than the 200.0 MiB"},
    {"100MiB", "2GiB", "more than the 100.0 MiB of now", "--budget-resident"},
    {"200MiB", "100MiB", "in use: the rest of the process leaves tensors nothing", "of 1 B"},
};

TEST_LOOP("budgets", one_of_two_limits_is_to_blame, LENGTH(both)) {
    EXPECT(3, FEW_PICTURES, "--budget", both[_i].budget, "--budget-resident", both[_i].limit);
    ck_contains(cli_err, both[_i].says);
    ck_assert_ptr_null(strstr(cli_err, both[_i].says_not));
}

/* MiB above code, with room for the state, in which the batches do not fit whole. */
static const struct {
    const char *side, *batch;
    int above;
} limits[] = {{"64", "32", 240}, {"96", "64", 390}};

/* How much of libtorch's code is resident depends on how its file lies in the system's cache. */
static int mib_of_code(void) {
    double mib = 0;
    EXPECT(0, FEW_PICTURES, "--steps", "1", "--epochs", "1", "--budget", "auto",
           "--budget-resident", "2GiB");
    const char *at = strstr(cli_out, "code and the rest ");
    ck_assert_msg(at && sscanf(at, "code and the rest %lf MiB", &mib) == 1, "%s", cli_out);
    return (int)mib;
}

/* A run that is told and not made has nothing to say of the process. */
TEST("budgets", a_dry_run_tells_no_process) {
    EXPECT(0, FEW_PICTURES, "--epochs", "0", "--explain", "--budget", "auto", "--budget-resident",
           "2GiB");
    ck_assert_ptr_null(strstr(cli_out, "\nprocess "));
}

TEST_LOOP("budgets", a_limit_of_the_process_is_kept, LENGTH(limits)) {
    double peak = 0, limit = 0;
    char text[32];
    int mib = mib_of_code() + limits[_i].above;
    snprintf(text, sizeof text, "%dMiB", mib);
    EXPECT(0, FEW_PICTURES, "--image-size", limits[_i].side, "--batch", limits[_i].batch, "--steps",
           "2", "--epochs", "1", "--budget", "auto", "--budget-resident", text);
    const char *line = strstr(cli_out, "\nprocess ");
    ck_assert_msg(line && sscanf(line, " process %lf MiB at most of %lf MiB;", &peak, &limit) == 2,
                  "%s", cli_out);
    ck_assert(limit == mib);
    /* What others than tensors take in the middle of a chunk is not seen beforehand. */
    ck_assert_msg(peak > 0 && peak <= 1.02 * limit, "%.1f MiB of %.1f", peak, limit);
    ck_assert_ptr_null(strstr(strchr(line + 1, '\n') + 1, "process ")); /* the last line */
}
#endif

#define EIGHTS FEW_PICTURES, "--steps", "2", "--micro-batch", "8"

TEST("budgets", an_arena_changes_no_number) {
    EXPECT(0, EIGHTS, "--trace", cli_trace);
    ck_assert_ptr_null(strstr(cli_out, "\nprocess "));
    EXPECT(0, EIGHTS, "--trace", cli_replayed, "--arena", "auto");
    cli_same_state();
    EXPECT(0, EIGHTS, "--trace", cli_replayed, "--arena", "never");
    cli_same_state();
    EXPECT(2, FEW_PICTURES, "--arena", "always");
    ck_contains(cli_err, "auto or never");
}

/* Where activations wait shows in the memory alone, but for those that are rounded. */
TEST("budgets", offload_changes_no_number) {
    static const char *const kinds[] = {"host", "file"};
    EXPECT(0, EIGHTS, "--trace", cli_trace, "--offload", "never");
    for (int i = 0; i < LENGTH(kinds); i++) {
        EXPECT(0, EIGHTS, "--trace", cli_replayed, "--offload", kinds[i], "--offload-dir", "/tmp");
        cli_same_state();
    }
    EXPECT(0, EIGHTS, "--offload", "pack");
    EXPECT(2, FEW_PICTURES, "--offload", "always");
    ck_contains(cli_err, "auto, on, host, file, pack, never or off");
    EXPECT(2, FEW_PICTURES, "--steps", "1", "--offload", "file", "--offload-dir",
           "/no/such/folder");
    ck_contains(cli_err, "--offload-dir: cannot write to '/no/such/folder'");
}

/* Whether activations are kept or computed again shows in the memory alone. */
TEST("budgets", segments_change_no_number) {
    EXPECT(0, EIGHTS, "--trace", cli_trace, "--checkpointing", "off");
    EXPECT(0, EIGHTS, "--trace", cli_replayed, "--checkpointing", "on");
    cli_same_state();
    EXPECT(2, FEW_PICTURES, "--checkpointing", "always");
    ck_contains(cli_err, "auto, on or off");
}

/* ---- recoveries ---------------------------------------------------------------------------------- */

static const char *const faults[] = {"2:1", "2:60", "2:200", "2:500", "2:900"};

TEST_LOOP("recoveries", a_recovery_ends_as_its_replay, LENGTH(faults)) {
    EXPECT(0, FEW_PICTURES, "--steps", "3", "--micro-batch", "11", "--inject-oom", faults[_i],
           "--trace", cli_trace, "--progress", "off");
    ck_assert_str_eq(cli_err, "");
    ck_contains(cli_out, "; 1 OOM met, ");
    ck_assert_int_eq(cli_number(cli_trace, "oom", 1, "step"), 2);
    ck_assert_int_eq(cli_number(cli_trace, "step", 2, "retries"), 1);
    EXPECT(0, FEW_PICTURES, "--replay", cli_trace, "--trace", cli_replayed);
    ck_contains(cli_out, "; 0 OOMs met, ");
    cli_same_state();
}

/* Steps that were made smaller, and the last 7 pictures of each epoch, which are left out. */
TEST("recoveries", smaller_batches_end_as_their_replay) {
#define OF_31                                                                                      \
    SMALL, "--image-size", "96", "--batch", "31", "--epochs", "2", "--lr-scaling", "linear"
    EXPECT(0, OF_31, "--min-micro-batch", "16", "--steps", "9", "--checkpointing", "off",
           "--budget", "262MiB", "--fallback", "smaller-batch", "--trace", cli_trace);
    long long samples = cli_number(cli_trace, "step", 9, "samples");
    ck_assert_msg(samples > 0 && samples < 31, "%lld samples", samples);
    EXPECT(0, OF_31, "--min-micro-batch", "16", "--budget", "400MiB", "--replay", cli_trace,
           "--trace", cli_replayed);
    ck_assert_int_eq(cli_number(cli_replayed, "step", 9, "samples"), samples);
    cli_same_state();
    EXPECT(2, OF_31, "--replay", cli_trace);
    ck_contains(cli_err, "step 8 has ");
    ck_assert_str_eq(cli_out, "");
}

TEST("recoveries", a_fault_that_stays_exits_3) {
    EXPECT(3, FEW_PICTURES, "--steps", "3", "--inject-oom", "2:40:persistent", "--trace",
           cli_trace);
    ck_contains(cli_err, "food101: ");
    ck_assert_int_eq(cli_number(cli_trace, "step", 1, "step"), 1);
    ck_assert_int_eq(cli_number(cli_trace, "step", 2, "step"), -1);
}

TEST("recoveries", a_fault_that_never_comes_is_told) {
    EXPECT(0, FEW_PICTURES, "--steps", "2", "--inject-oom", "2:1000000");
    ck_contains(cli_err, "warning: --inject-oom: step 2 made ");
    EXPECT(0, FEW_PICTURES, "--steps", "2", "--inject-oom", "9:1");
    ck_contains(cli_err, "warning: --inject-oom: the run had 2 steps");
}

TEST("recoveries", a_replay_stops_where_the_trace_ends) {
    EXPECT(0, EIGHTS, "--trace", cli_trace);
    EXPECT(0, FEW_PICTURES, "--replay", cli_trace, "--trace", cli_replayed);
    ck_assert_int_eq(cli_number(cli_replayed, "end", 1, "steps"), 2);
    cli_same_state();
}

/* Another value would replay to another state. */
static const char *const others[][3] = {
    {"--batch", "16", "--batch: 16, but '"},
    {"--lr", "0.01", "was written with 0.001"},
    {"--optimizer", "sgd", "with adamw;"},
    {"--amp", "bf16", "--amp: bf16, but '"},
    {"--arch", "resnet34", "with resnet18;"},
    {"--fit", "crop", "with pad;"},
    {"--epochs", "11", "with 10;"},
    {"--schedule", "constant", "with cosine;"},
    {"--weight-decay", "0", "with 0.01;"},
    {"--clip", "1", "with 0;"},
    {"--offload", "pack", "--offload: pack, but '"},
    {"--weights", "/tmp/w.safetensors", "--weights: /tmp/w.safetensors, but '"},
    {"--dev-samples", "40", "with 60;"},
    {"--seed", "2", "--seed: 2, but '"},
    {"--image-size", "64", "--image-size: 64"},
    {"--threads", "2", "food101: --threads: '2'"},
};

TEST("recoveries", a_replay_of_another_run_is_refused) {
    EXPECT(0, FEW_PICTURES, "--steps", "1", "--batch", "32", "--trace", cli_trace);
    for (int i = 0; i < LENGTH(others); i++) {
        EXPECT(2, FEW_PICTURES, "--replay", cli_trace, others[i][0], others[i][1]);
        ck_contains(cli_err, others[i][2]);
        ck_assert_str_eq(cli_out, "");
    }
}

/* Nor is a flag free that changes the numbers and is not given any more. */
TEST("recoveries", a_replay_without_what_a_run_had_is_refused) {
    EXPECT(0, FEW_PICTURES, "--steps", "1", "--offload", "pack", "--trace", cli_trace);
    EXPECT(2, FEW_PICTURES, "--replay", cli_trace);
    ck_says(cli_err, "--offload: not pack, but '",
            "' was written with pack; a replay needs the same");
    EXPECT(0, FEW_PICTURES, "--replay", cli_trace, "--offload", "pack", "--trace", cli_replayed);
    cli_same_state();
    EXPECT(0, FEW_PICTURES, "--steps", "1", "--offload", "never", "--trace", cli_trace);
    EXPECT(0, FEW_PICTURES, "--replay", cli_trace, "--offload", "host", "--trace", cli_replayed);
    cli_same_state();
}

TEST("recoveries", a_replay_on_another_device_is_refused) {
    EXPECT(0, FEW_PICTURES, "--device", "sim:cuda", "--budget", "200MiB", "--image-size", "96",
           "--batch", "8", "--steps", "1", "--fallback", "cpu", "--checkpointing", "off",
           "--offload", "never", "--trace", cli_trace);
    EXPECT(2, FEW_PICTURES, "--image-size", "96", "--batch", "8", "--replay", cli_trace);
    ck_says(cli_err, "t.jsonl', line ", "step 1 went on with cpu, which this device does not have",
            "--device sim:cuda");
}

/* ---- pictures ------------------------------------------------------------------------------------ */

/* Two classes of those that come with the program. */
static const char *copy_classes(void) {
    const char *data = cli_path("data"), *food = "examples/data/food";
    cli_shell("mkdir '%s' && cp -r %s/sweets %s/drink '%s'", data, food, food, data);
    return data;
}

/* The second head has metrics of its own, and a table that lacks a class is refused. */
TEST("runs", nutrition_is_a_second_head) {
    EXPECT(0, FEW_PICTURES, "--include-nutrition", "--steps", "2", "--epochs", "1", "--batch",
           "16");
    ck_says(cli_out, "mean absolute errors on made-up nutrition", "mass_g ");
    EXPECT(0, FEW_PICTURES, "--include-nutrition", "--steps", "2", "--epochs", "1", "--batch", "16",
           "--threads", "1", "--deterministic", "--trace", cli_trace);
    EXPECT(0, FEW_PICTURES, "--include-nutrition", "--steps", "2", "--epochs", "1", "--batch", "16",
           "--threads", "1", "--deterministic", "--trace", cli_replayed);
    cli_same_state();
    const char *data = copy_classes();
    EXPECT(2, FEW_PICTURES, "--include-nutrition", "--data", data);
    ck_contains(cli_err, "food101: --include-nutrition: '");
    cli_write_file(cli_path("data/nutrition.json"),
                   "{\"drink\": {\"calories\": 1, \"protein_g\": 1, \"carb_g\": 1, \"fat_g\": 1, "
                   "\"portion_g\": 1}}\n");
    EXPECT(2, FEW_PICTURES, "--include-nutrition", "--data", data);
    ck_contains(cli_err, "has no number 'calories' for class 'sweets'");
}

/* Each profile has its row; a batch that does not fit at once does in chunks. */
TEST("budgets", a_table_of_profiles) {
    EXPECT(2, FEW_PICTURES, "--table", "--epochs", "0");
    ck_contains(cli_err, "--epochs: '0' is not accepted; accepted: at least 1, for --table");
    EXPECT(2, FEW_PICTURES, "--table", "--trace", cli_trace);
    ck_contains(cli_err, "--table: not together with --save, --resume, --trace,");
    EXPECT(0, FEW_PICTURES, "--image-size", "96", "--table", "--epochs", "1", "--dev-samples",
           "48");
    ck_says(cli_out, "ultra-safe        4   4              ok",
            "safe              8   8              ok", "target           24   16 to 24       ok",
            "original         32   32             does not fit");
    const char *last = strstr(strstr(cli_out, "does not fit"), "original ");
    ck_assert_ptr_nonnull(last);
    ck_contains(last, " ok ");
    ck_assert_str_eq(cli_err, "");
}

TEST("pictures", bad_pictures_are_skipped_by_name) {
    const char *data = copy_classes();
    cli_write_file(cli_path("data/drink/broken.jpg"), "not a picture");
    EXPECT(0, FEW_PICTURES, "--data", data, "--steps", "1", "--epochs", "1", "--batch", "16",
           "--progress", "off");
    ck_says(cli_err, "warning: skipped ", "drink/broken.jpg");
    ck_contains(cli_out, "2 classes");
    ck_assert_ptr_null(strstr(cli_out, "among the best 5"));
    ck_assert_int_eq(mkdir(cli_path("data/stones"), 0700), 0);
    cli_write_file(cli_path("data/stones/broken.jpg"), "not a picture");
    EXPECT(2, FEW_PICTURES, "--data", data);
    ck_says(cli_err, "food101: --data: ", "stones");
}

/* ---- threads ------------------------------------------------------------------------------------- */

#ifdef __linux__
TEST("threads", threads_wait_asleep) {
    const char *const arguments[] = {FEW_PICTURES, "--epochs", "1000", "--trace", cli_trace, NULL};
    static char environment[CLI_CAPACITY];
    char path[64];
    int found = 0;
    cpu_set_t cores;
    ck_assert_int_eq(sched_getaffinity(0, sizeof cores, &cores), 0);
    if (CPU_COUNT(&cores) < 2) return suite_skip("threads_wait_asleep", "one core has no others");
    cli_says_nothing_of_threads = 1;
    pid_t child = cli_start(arguments);
    cli_wait_for_step(1);
    snprintf(path, sizeof path, "/proc/%d/environ", (int)child);
    cli_read_file(path, environment);
    for (const char *e = environment; *e; e += strlen(e) + 1)
        found = found || strcmp(e, "OMP_WAIT_POLICY=PASSIVE") == 0;
    kill(child, SIGKILL);
    cli_finish(child);
    ck_assert(found);
}
#endif

#ifdef __linux__
/* The one core that a run is given has one thread, however many the machine has. */
TEST("threads", threads_are_those_of_the_cores_allowed) {
    cpu_set_t all, one;
    int core = 0;
    ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
    if (CPU_COUNT(&all) < 2) printf("SKIP: affinity: there is one core alone\n");
    while (!CPU_ISSET(core, &all)) core++;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT(0, "--device", "cpu", "--image-size", "32", "--epochs", "0", "--trace", cli_trace);
    ck_assert_int_eq(cli_number(cli_trace, "program", 1, "threads"), 1);
}
#endif

int main(void) {
    cli_case_named("flags");
    cli_case_named("runs");
    cli_case_named("budgets");
    cli_case_named("recoveries");
    cli_case_named("pictures");
    cli_case_named("threads");
    return suite_run_named("ex_cli");
}
