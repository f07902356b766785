/*
 * check_ex_ends.c - how a run of food101 ends when something ends it: a signal, a full disk, a budget
 * that is known to be too small.
 */
#include "cli.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- signals ------------------------------------------------------------------------------------- */

static const struct {
    int number;
    const char *name;
} signals[] = {{SIGINT, "stopped by Ctrl-C after step "},
               {SIGTERM, "stopped by SIGTERM after step "},
               {SIGHUP, "stopped by SIGHUP after step "}};

TEST_LOOP("signals", a_signal_finishes_the_step, LENGTH(signals)) {
    const char *const arguments[] = {FEW_PICTURES, "--epochs", "1000", "--trace", cli_trace, NULL};
    pid_t child = cli_start(arguments);
    cli_wait_for_step(2);
    ck_assert_int_eq(kill(child, signals[_i].number), 0);
    ck_assert_int_eq(cli_finish(child), 128 + signals[_i].number);
    ck_says(cli_out, signals[_i].name, "; state sha256 ");
    ck_assert_int_ge(cli_number(cli_trace, "end", 1, "steps"), 2);
    EXPECT(0, FEW_PICTURES, "--epochs", "1000", "--replay", cli_trace, "--trace", cli_replayed);
    cli_same_state();
}

/* The rate is too small to change a float32, so that only the statistics of BatchNorm move, and settle. */
TEST("signals", epochs_that_are_not_better_end_the_run) {
    static const char told[] = "no epoch since ";
    EXPECT(0, FEW_PICTURES, "--optimizer", "sgd", "--momentum", "0", "--lr", "1e-30", "--epochs",
           "50", "--patience", "2", "--trace", cli_trace);
    const char *line = strstr(cli_out, told), *result = strstr(cli_out, "\nvalidation accuracy ");
    ck_assert_msg(line && result && line < result, "%s", cli_out); /* as things happen */
    ck_contains(line, " was better: --patience 2 ends the run\n");
    int best = atoi(line + strlen(told));
    ck_assert_int_ge(best, 1);
    /* 48 pictures are two batches. */
    ck_assert_int_eq((int)cli_number(cli_trace, "end", 1, "steps"), 2 * (best + 2));
}

/* There is nothing to save yet, and it may take long: here it reads a trace that does not end. */
TEST_LOOP("signals", a_signal_before_training_ends_at_once, LENGTH(signals)) {
    const char *const arguments[] = {FEW_PICTURES, "--replay", cli_trace, NULL};
    int writer;
    ck_assert_int_eq(mkfifo(cli_trace, 0600), 0);
    pid_t child = cli_start(arguments);
    while ((writer = open(cli_trace, O_WRONLY | O_NONBLOCK)) < 0) usleep(10000);
    ck_assert_int_eq(kill(child, signals[_i].number), 0);
    ck_assert_int_eq(cli_finish(child), 128 + signals[_i].number);
    close(writer);
}

/* A terminal that goes sends one, and its shell another: none of the two ends the run before it has saved. */
TEST("signals", a_second_hangup_changes_nothing) {
    const char *file = cli_path("c");
    const char *const arguments[] = {FEW_PICTURES, "--epochs", "1000", "--trace",
                                     cli_trace,    "--save",   file,   NULL};
    pid_t child = cli_start(arguments);
    cli_wait_for_step(2);
    for (int i = 0; i < 50; i++) {
        ck_assert_int_eq(kill(child, SIGHUP), 0);
        usleep(1000);
    }
    ck_assert_int_eq(cli_finish(child), 128 + SIGHUP);
    ck_assert_int_eq(access(file, R_OK), 0);
}

/* Under nohup, and in the background of a script, the parent has said that they are not to end the run. */
TEST_LOOP("signals", an_ignored_signal_stays_ignored, LENGTH(signals)) {
    const char *const arguments[] = {FEW_PICTURES, "--epochs", "1000", "--trace", cli_trace, NULL};
    int other = signals[_i].number == SIGTERM ? SIGINT : SIGTERM;
    signal(signals[_i].number, SIG_IGN);
    pid_t child = cli_start(arguments);
    cli_wait_for_step(2);
    for (int n = 3; n < 6; n++) {
        ck_assert_int_eq(kill(child, signals[_i].number), 0);
        cli_wait_for_step(n);
    }
    ck_assert_int_eq(kill(child, other), 0);
    ck_assert_int_eq(cli_finish(child), 128 + other);
    ck_contains(cli_out, "stopped by ");
}

/* Ctrl-Z, and on again: the run is the one that was not stopped. */
static const int stopping[] = {SIGTSTP, SIGSTOP};

TEST_LOOP("signals", a_run_that_is_stopped_and_goes_on, LENGTH(stopping)) {
    const char *const arguments[] = {FEW_PICTURES, "--steps", "12", "--trace", cli_trace, NULL};
    int status;
    pid_t child = cli_start(arguments);
    cli_wait_for_step(2);
    ck_assert_int_eq(kill(child, stopping[_i]), 0);
    ck_assert_int_eq(waitpid(child, &status, WUNTRACED), child);
    ck_assert(WIFSTOPPED(status));
    ck_assert_int_eq(kill(child, SIGCONT), 0);
    ck_assert_int_eq(cli_finish(child), 0);
    EXPECT(0, FEW_PICTURES, "--replay", cli_trace, "--trace", cli_replayed);
    cli_same_state();
}

/* ---- pipes that nobody reads any more ---------------------------------------------------------------- */

/* A reader of a pipe at that path, which goes when something has been read. */
static int open_reader(const char *path) {
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ck_assert_int_ge(reader, 0);
    return reader;
}

static void read_and_go(int reader) {
    char text[512];
    while (read(reader, text, sizeof text) <= 0) usleep(10000);
    close(reader);
}

TEST("pipes", a_trace_that_nobody_reads) {
    const char *const arguments[] = {FEW_PICTURES, "--steps", "4", "--trace", cli_trace, NULL};
    int reader = open_reader(cli_trace);
    pid_t child = cli_start(arguments);
    read_and_go(reader);
    ck_assert_int_eq(cli_finish(child), 1);
    ck_says(cli_err, "--trace: ", "Broken pipe");
}

/* As in `food101 | head -1`: what was trained is saved, and the end says what has been lost. */
TEST("pipes", a_standard_output_that_nobody_reads) {
    const char *file = cli_path("c"), *output = cli_path("pipe");
    const char *const arguments[] = {FEW_PICTURES, "--steps", "4", "--save", file, NULL};
    int reader = open_reader(output);
    cli_stdout = output;
    pid_t child = cli_start(arguments);
    read_and_go(reader);
    ck_assert_int_eq(cli_finish(child), 1);
    ck_contains(cli_err, "food101: standard output could not be written");
    ck_assert_int_eq(access(file, R_OK), 0);
}

/* ---- what cannot be written -------------------------------------------------------------------------- */

static const char *const printing[] = {"--help", "--version", "--explain"};

TEST_LOOP("full", a_full_standard_output_is_told, LENGTH(printing)) {
    if (!cli_has_full_disk("a_full_standard_output_is_told")) return;
    cli_stdout = "/dev/full";
    EXPECT(1, FEW_PICTURES, "--steps", "1", "--progress", "off", printing[_i]);
    cli_one_line("food101: standard output could not be written");
}

/* An epoch is told before its files are written: there is a folder in the place of the second one. */
TEST("full", an_epoch_is_told_before_its_files) {
    ck_assert_int_eq(mkdir(cli_path("c.best"), 0700), 0);
    EXPECT(2, FEW_PICTURES, "--epochs", "1", "--save", cli_path("c"));
    ck_contains(cli_err, ".best");
    ck_contains(cli_out, "\nepoch 1  train loss ");
    ck_assert_ptr_null(strstr(cli_out, "\nvalidation accuracy "));
}

/* Before anything is trained. */
TEST("full", a_full_disk_for_the_trace_is_told_at_once) {
    if (!cli_has_full_disk("a_full_disk_for_the_trace_is_told_at_once")) return;
    EXPECT(1, FEW_PICTURES, "--epochs", "100000", "--trace", "/dev/full");
    cli_one_line("food101: --trace: cannot write '/dev/full': "); /* once */
    ck_assert_ptr_null(strstr(cli_out, "epoch 1"));
}

TEST("full", a_loss_that_explodes_ends_the_trace) {
    EXPECT(1, FEW_PICTURES, "--optimizer", "sgd", "--lr", "1e30", "--steps", "20", "--trace",
           cli_trace);
    ck_assert_int_ge(cli_number(cli_trace, "end", 1, "steps"), 1);
}

/* ---- what cannot fit ----------------------------------------------------------------------------- */

static const struct {
    const char *flags[4];
    const char *has[3];
} tight[] = {
    {{"--budget", "1MiB"}, {"these together                  171.6 MiB", "170.6 MiB", "1.0 MiB"}},
    {{"--budget", "100MiB"},
     {"optimiser state                  85.3 MiB", "batches ahead (--workers)       864.2 KiB",
      "71.6 MiB"}},
    {{"--budget", "176MiB"}, {"left for activations", "at once do not fit: ", "176.0 MiB"}},
    {{"--micro-batch", "32", "--checkpointing", "off"},
     {"does not fit", "32 samples at once do not fit: ", "fixes the chunks"}},
};

TEST_LOOP("fits", explaining_what_cannot_fit_exits_3, LENGTH(tight)) {
    const char *budget = strcmp(tight[_i].flags[0], "--budget") == 0 ? "1GiB" : "240MiB";
    EXPECT(3, "--device", "cpu", "--image-size", "96", "--threads", "1", "--explain", "--epochs",
           "0", "--budget", budget, tight[_i].flags[0], tight[_i].flags[1], tight[_i].flags[2],
           tight[_i].flags[3]);
    ck_says(cli_out, "What takes memory on cpu", "gradients                        42.7 MiB");
    for (int i = 0; i < LENGTH(tight[_i].has); i++) ck_contains(cli_out, tight[_i].has[i]);
    ck_contains(cli_err, "--budget SIZE");
    if (tight[_i].flags[2]) ck_contains(cli_err, "--checkpointing auto"); /* it was turned off */
}

/* What helps is what was not asked for yet, and a budget does not help against what no budget explains. */
TEST("fits", flags_that_help_are_named) {
    EXPECT(3, FEW_PICTURES, "--steps", "3", "--inject-oom", "2:5:persistent", "--budget", "400MiB");
    ck_contains(cli_err,
                "  --inject-oom         left out: every request of step 2 from number 5 on");
    ck_assert_ptr_null(strstr(cli_err, "--budget SIZE"));
    ck_assert_ptr_null(strstr(cli_err, "--optimizer"));
    EXPECT(3, FEW_PICTURES, "--budget", "175MiB", "--checkpointing", "off", "--steps", "1");
    ck_contains(cli_err, "  --budget SIZE        ");
    ck_contains(cli_err, "  --offload-dir DIR    activations wait in a file there");
    EXPECT(3, FEW_PICTURES, "--budget", "175MiB", "--checkpointing", "off", "--steps", "1",
           "--offload-dir", cli_root);
    ck_assert_ptr_null(strstr(cli_err, "--offload"));
    EXPECT(3, FEW_PICTURES, "--budget", "175MiB", "--checkpointing", "off", "--steps", "1",
           "--offload", "never");
    ck_contains(cli_err, "  --offload auto       with --offload-dir DIR: activations wait");
}

#define AT_96 "--threads", "1", "--image-size", "96", "--steps", "1"

/* One that is too large by far: the one that is told trains, and none is told where none would. */
TEST("fits", the_smaller_chunk_that_is_told_trains) {
    char least[8];
    EXPECT(3, "--device", "cpu", AT_96, "--budget", "210MiB", "--checkpointing", "off",
           "--min-micro-batch", "12");
    const char *told = strstr(cli_err, "  --min-micro-batch ");
    ck_assert_msg(told && sscanf(told, "  --min-micro-batch %7s instead of 12: ", least) == 1, "%s",
                  cli_err);
    ck_assert_int_lt(atoi(least), 12);
    EXPECT(0, "--device", "cpu", AT_96, "--budget", "210MiB", "--checkpointing", "off", "--epochs",
           "1", "--min-micro-batch", least);
    EXPECT(3, "--device", "cpu", AT_96, "--budget", "180MiB", "--min-micro-batch", "12");
    ck_assert_ptr_null(strstr(cli_err, "--min-micro-batch"));
    EXPECT(3, "--device", "sim:mps", AT_96, "--budget", "220MiB", "--min-micro-batch", "30");
    ck_contains(cli_err,
                "  --min-micro-batch N  at most 16, instead of 30: one chunk more, if that");
}

TEST("fits", a_model_that_no_card_holds_goes_on_on_the_cpu) {
    static char traced[CLI_CAPACITY];
    EXPECT(0, FEW_PICTURES, "--device", "sim:cuda", "--budget", "150MiB", "--fallback", "cpu",
           "--steps", "2", "--trace", cli_trace);
    ck_contains(cli_err, "--fallback: going on on the CPU: ");
    cli_read_file(cli_trace, traced);
    ck_contains(traced, "\"device_asked\":\"sim:cuda\",\"device_left\":\"");
    ck_contains(cli_out, "cpu");
    EXPECT(3, FEW_PICTURES, "--device", "sim:cuda", "--budget", "150MiB", "--steps", "2");
}

/* ---- what is known beforehand -------------------------------------------------------------------- */

static const struct {
    const char *flags[8];
    int status;
    const char *has[3], *has_not[2];
} explained[] = {
    /* BatchNorm at 32 pixels needs two samples: one is in no table. */
    {{"--batch", "8"}, 0, {"    2 ", "    8 ", "is cut into 1 chunk or more"}, {"    1 ", ""}},
    {{"--batch", "5", "--max-micro-batch", "2"}, 0, {"is cut into 2 chunks", "", ""}, {"", ""}},
    {{"--max-micro-batch", "4"}, 0, {"is cut into 8 chunks or more", "", ""}, {"", ""}},
    {{"--min-micro-batch", "30"},
     0,
     {"    32 ", "A batch of 32 is one chunk: each has at least 30", ""},
     {"2 chunks", "    30 "}},
    {{"--image-size", "96", "--min-micro-batch", "30", "--budget", "260MiB", "--checkpointing",
      "off"},
     3,
     {"32 samples at once do not fit: ", "the smallest chunk, of 32 samples",
      "--min-micro-batch 16 instead of 30: "},
     {"cut into", ""}},
    {{"--micro-batch", "8", "--budget", "300MiB"}, 0, {", kept takes at most ", "", ""}, {"", ""}},
    /* Smaller chunks than the flags allow are shown where these do not fit. */
    {{"--image-size", "96", "--budget", "210MiB", "--min-micro-batch", "12", "--checkpointing",
      "off"},
     3,
     {"MiB  fits\n", "MiB  does not fit\n",
      " at once fit, and chunks of at least 12 leave a batch "},
     {"cut into", ""}},
    {{"--image-size", "96", "--budget", "180MiB", "--min-micro-batch", "12"},
     3,
     {"With checkpointing: 16 at once do not fit either.",
      "With none of these not even 2 at once do, the fewest", ""},
     {"samples at once  ", ""}},
    /* The state alone is too large: another device helps, and the card's size is what there is. */
    {{"--device", "sim:mps", "--budget", "150MiB"},
     3,
     {"missing", "a simulated card of more than 150.0 MiB", "  --device cpu "},
     {"are free", ""}},
    {{"--device", "sim:cuda", "--budget", "150MiB"},
     3,
     {"missing", "a simulated card of more than 150.0 MiB",
      "--fallback cpu       goes on there where not even the model fits"},
     {"are free", ""}},
    {{"--device", "cpu", "--budget", "100MiB"},
     3,
     {"missing", "more than the 100.0 MiB of now; ", "are free"},
     {"--device cpu", "--fallback"}},
    {{"--device", "cpu", "--arch", "resnet50"},
     3,
     {"missing", "or auto, instead of the 240.0 MiB that suit the defaults", "are free"},
     {"of now", ""}},
    {{"--device", "sim:mps", "--budget", "auto"},
     0,
     {"of a simulated card of the default size", "", ""},
     {"are free", ""}},
    {{"--micro-batch", "20", "--budget", "260MiB"}, 0, {"fixes the chunks", "", ""}, {"", ""}},
    {{"--device", "sim:mps", "--budget", "300MiB"},
     0,
     {"not known beforehand on sim:mps, which does not tell of its allocations; --device cpu tells",
      "The largest chunk is tried first; one that is refused",
      "one rung after the other: checkpointing, offload\n"},
     {"samples at once", ""}},
    {{"--device", "sim:mps", "--budget", "300MiB", "--checkpointing", "off", "--fallback",
      "smaller-batch,minimal"},
     0,
     {"one rung after the other: offload, smaller_batch, cpu, minimal\n", "", ""},
     {"checkpointing", ""}},
    {{"--device", "sim:mps", "--budget", "300MiB", "--micro-batch", "8"},
     0,
     {"not known beforehand on sim:mps", "--micro-batch 8 fixes the chunks", ""},
     {"two thirds", ""}},
};

TEST_LOOP("fits", explaining_says_what_is_known, LENGTH(explained)) {
    const char *const *flags = explained[_i].flags;
    const char *arguments[CLI_MOST_ARGUMENTS] = {FEW_PICTURES, "--explain", "--epochs", "0"};
    static char all[2 * CLI_CAPACITY];
    int n = 0;
    while (arguments[n]) n++;
    for (int i = 0; i < LENGTH(explained[_i].flags) && flags[i]; i++) arguments[n++] = flags[i];
    cli_expect(explained[_i].status, arguments);
    snprintf(all, sizeof all, "%s%s", cli_out, cli_err);
    for (int i = 0; i < LENGTH(explained[_i].has); i++) ck_contains(all, explained[_i].has[i]);
    for (int i = 0; i < LENGTH(explained[_i].has_not); i++)
        if (*explained[_i].has_not[i])
            ck_assert_msg(!strstr(all, explained[_i].has_not[i]), "%s", all);
}

/*
 * Budgets in which a step of 32 is one chunk, one alone, several, alone as a last resort, and needs a rung. What the
 * work spaces of oneDNN's kernels take depends on the CPU, so a budget close to a border is told from the border.
 */
#define MIDWAY "midway" /* between the whole batch alone and the same beside held gradients */
#define BELOW "below"   /* between the whole batch alone and the same with checkpointing */

static const char *const foretold[][6] = {
    {"400MiB", "64", ", alone takes "},
    {MIDWAY, "64", ", alone takes "},
    {"218MiB", "64", "chunks of "},
    {MIDWAY, "32", ", alone takes ", "--min-micro-batch", "30"},
    {BELOW, "32", ", alone takes ", "--min-micro-batch", "30"},
    {"194MiB", "128", "A step of ", "--batch", "8"}, /* where the second size does not fit */
};

/* Returns the table's row of 32 samples. */
static const char *spacious(const char *const *row, const char *checkpointing, double *out_alone) {
    EXPECT(0, "--device", "cpu", "--threads", "1", "--deterministic", "--epochs", "0", "--explain",
           "--budget", "4GiB", "--image-size", row[1], "--checkpointing", checkpointing, row[3],
           row[4]);
    const char *whole = strstr(cli_out, "\n                 32 ");
    const char *takes = strstr(cli_out, ", alone takes ");
    ck_assert_msg(whole && takes, "%s", cli_out);
    ck_assert_int_eq(sscanf(takes, ", alone takes %lf MiB", out_alone), 1);
    return whole;
}

/* The budget of a row; what is not a size itself is read from what --explain says where there is much room. */
static void budget_of(const char *const *row, char text[32]) {
    double kept, alone;
    snprintf(text, 32, "%s", row[0]);
    if (strcmp(row[0], MIDWAY) != 0 && strcmp(row[0], BELOW) != 0) return;
    /* With room to spare: what the whole batch takes beside held gradients, alone, and alone with checkpointing. */
    const char *whole = spacious(row, "off", &alone);
    ck_assert_int_eq(sscanf(whole, " 32 %lf MiB", &kept), 1);
    if (strcmp(row[0], BELOW) == 0) {
        kept = alone;
        (void)spacious(row, "on", &alone);
    }
    snprintf(text, 32, "%.0fKiB", (alone + kept) / 2 * 1024);
}

static char trace[CLI_CAPACITY];

/* The whole line of an event in the trace that comes last before a place in it. */
static const char *line_before(const char *end, const char *event) {
    const char *line = NULL;
    for (const char *p = strstr(trace, event); p && p < end; p = strstr(p + 1, event)) line = p;
    ck_assert_ptr_nonnull(line);
    return line;
}

static int line_has(const char *line, const char *word) {
    const char *found = strstr(line, word);
    return found && found < strchr(line, '\n');
}

/* Chunks of a line: what is in its list. */
static size_t chunks_of(const char *line, size_t *first) {
    const char *list = strstr(line, "\"chunks\":[");
    size_t count = 1;
    ck_assert_int_eq(sscanf(list, "\"chunks\":[%zu", first), 1);
    for (const char *p = list; *p != ']'; p++) count += *p == ',';
    return count;
}

/* Without --deterministic sizes grow, where nothing tells of them. */
TEST("fits", explaining_how_sizes_will_be_found) {
    size_t first;
    EXPECT(0, "--device", "sim:mps", "--image-size", "32", "--threads", "1", "--budget", "300MiB",
           "--steps", "1", "--epochs", "1", "--explain", "--trace", cli_trace);
    ck_contains(cli_out, "Chunks begin small");
    ck_assert_ptr_null(strstr(cli_out, "The largest chunk is tried first"));
    cli_read_file(cli_trace, trace);
    ck_assert_uint_gt(chunks_of(strstr(trace, "\"event\":\"step\""), &first), 1);
    ck_assert_uint_lt(first, 16);
}

TEST_LOOP("fits", explaining_says_what_the_run_does, LENGTH(foretold)) {
    size_t chunks, chunk, bytes, first;
    /* A batch that fits whole beside held gradients goes alone from the second on. */
    const int number = strstr(foretold[_i][2], "kept") ? 1 : 2;
    char event[48], budget[32];
    budget_of(foretold[_i], budget);
    EXPECT(0, "--device", "cpu", "--threads", "1", "--deterministic", "--workers", "0", "--steps",
           "2", "--epochs", "1", "--progress", "off", "--explain", "--budget", budget,
           "--image-size", foretold[_i][1], "--trace", cli_trace, foretold[_i][3], foretold[_i][4]);
    const char *told = strstr(cli_out, "A step of ");
    ck_assert_msg(told != NULL, "%s", cli_out);
    ck_assert_int_eq(sscanf(told, "A step of %zu chunk%*[s ]of %zu", &chunks, &chunk), 2);
    ck_assert_int_eq(sscanf(strchr(told, '('), "(%zu bytes)", &bytes), 1);
    ck_contains(told, foretold[_i][2]);
    cli_read_file(cli_trace, trace);
    snprintf(event, sizeof event, "\"event\":\"step\",\"step\":%d,", number);
    const char *step = strstr(trace, event);
    const char *plan = line_before(step, "\"event\":\"plan\"");
    ck_assert_uint_eq(chunks_of(step, &first), chunks);
    ck_assert_uint_eq(first, chunk);
    ck_assert_int_eq(cli_number(cli_trace, "step", number, "predicted_peak_bytes"),
                     (long long)bytes);
    ck_assert_int_eq(line_has(plan, "\"alone\":true"), line_has(told, ", alone takes "));
    ck_assert_int_eq(line_has(plan, "\"keep\":true") && !line_has(plan, "\"alone\":true"),
                     line_has(told, ", kept takes "));
    ck_assert_int_eq(line_has(step, "\"checkpointing\""),
                     strstr(cli_out, "Rungs that the run takes: checkpointing\n") != NULL);
    long long peak = cli_number(cli_trace, "step", number, "peak_bytes");
    ck_assert_int_lt(llabs(peak - (long long)bytes), peak / 100);
}

/* A batch that cannot be cut, until it fits or can be made no smaller. */
TEST("fits", explaining_a_smaller_batch) {
    size_t samples;
    EXPECT(0, "--device", "cpu", "--threads", "1", "--workers", "0", "--steps", "1", "--epochs",
           "1", "--progress", "off", "--image-size", "96", "--budget", "240MiB", "--batch", "21",
           "--min-micro-batch", "11", "--checkpointing", "off", "--fallback", "smaller-batch",
           "--explain", "--trace", cli_trace);
    ck_contains(cli_out, " of 21): ");
    ck_contains(cli_out, "Rungs that the run takes: smaller_batch\n");
    const char *told = strstr(cli_out, "A step of 1 chunk of ");
    ck_assert_msg(told && sscanf(told, "A step of 1 chunk of %zu", &samples) == 1, "%s", cli_out);
    ck_assert_uint_lt(samples, 21);
    ck_assert_int_eq(cli_number(cli_trace, "step", 1, "samples"), (long long)samples);
}

#define ON_A_SMALL_CARD                                                                            \
    "--device", "sim:cuda", "--budget", "200MiB", "--image-size", "96", "--threads", "1",          \
        "--batch", "8", "--steps", "1", "--progress", "off", "--offload", "never"

TEST("fits", explaining_a_fallback) {
    EXPECT(3, ON_A_SMALL_CARD, "--checkpointing", "off", "--explain");
    ck_contains(cli_err, "--fallback cpu");
    EXPECT(0, ON_A_SMALL_CARD, "--fallback", "amp,cpu", "--trace", cli_trace);
    EXPECT(0, ON_A_SMALL_CARD, "--fallback", "amp,cpu", "--trace", cli_replayed, "--explain");
    ck_contains(cli_out,
                "With checkpointing: 2 at once fit.\nRungs that the run takes: checkpointing\n");
    cli_same_state();
    EXPECT(0, ON_A_SMALL_CARD, "--fallback", "cpu", "--checkpointing", "off", "--trace", cli_trace);
    EXPECT(0, ON_A_SMALL_CARD, "--fallback", "cpu", "--checkpointing", "off", "--trace",
           cli_replayed, "--explain");
    ck_contains(cli_out, "With cpu: 2 at once fit.\nRungs that the run takes: cpu\n");
    cli_same_state();
}

int main(void) {
    /* Started in the background, it would have children that ignore what they are sent. */
    for (int i = 0; i < LENGTH(signals); i++) signal(signals[i].number, SIG_DFL);
    cli_case_named("signals");
    cli_case_named("full");
    cli_case_named("fits");
    cli_case_named("pipes");
    return suite_run_named("ex_ends");
}
