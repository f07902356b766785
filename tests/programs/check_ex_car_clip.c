/*
 * check_ex_car_clip.c - build/examples/car_clip as a person runs it: its lines, its flags by all of their
 * names, both ways to train, budgets.
 */
#include "cli.h"

/* The smallest network, few pairs a step. */
#define TINY_MEASURED MEASURED, "--size", "w128-l4", "--progress", "off"
#define TINY TINY_MEASURED, "--deterministic"

/* ---- flags --------------------------------------------------------------------------------------- */

TEST("flags", help_names_the_flags) {
    EXPECT(0, "--help");
    ck_says(cli_out, "--contrastive", "--gradient-accumulation", "--empty-cache-frequency",
            "(default: 16)");
    ck_assert_str_eq(cli_err, "");
}

static const char *const wrong[][3] = {
    {"--contrastive", "both", "cached or plain"}, {"--size", "w100", "w192-l6"},
    {"--memory-fraction", "1.5", "up to 1"},      {"--memory-fraction", "0", "above 0"},
    {"--mixed-precision", "True", "on or off"},   {"--gradient-accumulation", "0", "from 1"},
    {"--data", "/nonexistent", "captions.json"},  {"--patch", "7", "a divisor of --image-size, 32"},
};

TEST_LOOP("flags", wrong_values_exit_2_with_one_line, LENGTH(wrong)) {
    EXPECT(2, wrong[_i][0], wrong[_i][1]);
    cli_one_line("car_clip: --");
    ck_says(cli_err, wrong[_i][1], wrong[_i][2]);
}

TEST("flags", a_network_in_part_is_refused) {
    const char *file = cli_path("w");
    cli_write_tensor(file, "logit_scale", "", 4);
    EXPECT(2, TINY, "--weights", file);
    cli_one_line("car_clip: --weights: ");
    ck_says(cli_err, "' lacks ", " tensors of the model, the first is ", "; accepted: a file that");
}

/* A loss of chunks depends on their size: it is that of --batch. */
TEST("flags", plain_chunks_are_not_chosen) {
    EXPECT(2, "--contrastive", "plain", "--micro-batch", "4");
    ck_says(cli_err, "car_clip: --micro-batch", "16");
}

TEST("flags", one_pair_is_told_from_nothing) {
    EXPECT(2, "--batch", "1", "--accumulate", "1");
    ck_contains(cli_err, "car_clip: --batch: '1' is not accepted; accepted: at least 2");
    EXPECT(2, "--batch", "1", "--contrastive", "plain");
    EXPECT(0, TINY, "--batch", "1", "--epochs", "0");
}

TEST("flags", the_script_s_names_mean_the_same) {
    EXPECT(0, TINY, "--batch=8", "--accumulate=2", "--epochs=1", "--steps=2", "--lr=2e-5",
           "--clip=0.5", "--clear-every=1", "--prefetch=1", "--amp=off", "--budget=0.95", "--trace",
           cli_trace);
    EXPECT(0, TINY, "--batch_size=8", "--gradient_accumulation=2", "--num_epochs=1", "--steps=2",
           "--learning_rate=2e-5", "--clip_grad_norm=0.5", "--empty_cache_frequency=1",
           "--prefetch_factor=1", "--mixed_precision=off", "--memory_fraction=0.95", "--trace",
           cli_replayed);
    cli_same_state();
    ck_says(cli_out, "\nCPU Memory - Allocated: 0.", " GB, Peak: 0.");
}

/* ---- runs ---------------------------------------------------------------------------------------- */

/* Chunks of pairs are prepared before they are tried too. */
TEST("runs", an_order_is_chosen) {
    EXPECT(0, TINY_MEASURED, "--batch", "8", "--accumulate", "1", "--epochs", "1", "--steps", "1",
           "--budget", "400MiB", "--channels-last", "auto");
    ck_says(cli_err, "--channels-last auto: ", "A chunk of 8 takes ");
}

/* "CPU Memory - Allocated: 0.03 GB, Peak: 0.07 GB", each so many steps and no more often. */
static int count_memory_lines(void) {
    static const char begin[] = "CPU Memory - Allocated: ";
    int lines = 0, end;
    double allocated, peak;
    for (const char *at = cli_out; (at = strstr(at, begin)); at += strlen(begin), lines++) {
        end = 0;
        ck_assert_int_eq(
            sscanf(at, "CPU Memory - Allocated: %lf GB, Peak: %lf GB%n", &allocated, &peak, &end),
            2);
        ck_assert_int_eq(at[end], '\n');
        ck_assert(at[-1] == '\n' && allocated > 0 && peak >= allocated);
    }
    return lines;
}

TEST("runs", a_run_says_what_it_did) {
    EXPECT(0, TINY, "--batch", "8", "--accumulate", "4", "--epochs", "1", "--steps", "4",
           "--clear-every", "2", "--trace", cli_trace);
    ck_says(cli_out, " for validation, whose titles are others", "\nEffective batch size: 32\n",
            "recall@1", "among 32: loss ", "by chance 3.1 % and 15.6 %");
    ck_assert_int_eq(count_memory_lines(), 2);
    ck_assert_ptr_null(strstr(cli_out, "Plain"));
    for (int step = 1; step <= 4; step++)
        ck_assert_int_eq(cli_number(cli_trace, "step", step, "samples"), 32);
}

TEST("runs", the_network_can_be_cut) {
    EXPECT(0, TINY, "--check");
    ck_contains(cli_out, "checked with 3 samples: 0 faults found\n");
    ck_assert_ptr_null(strstr(cli_out, "epoch 1"));
}

/* Chunks are those of --batch, and what that means is said. */
TEST("runs", plain_says_what_it_is) {
    EXPECT(0, TINY, "--contrastive", "plain", "--batch", "8", "--accumulate", "4", "--epochs", "1",
           "--steps", "2", "--trace", cli_trace);
    ck_says(cli_out, "Plain accumulation: each pair is told from the 7 others of its chunk",
            "4 such losses do not add up to that of a batch of 32", "chunks of 8 for batch 32",
            "among 32: loss ");
}

/* Chunks of any size train the same thing, so that a small budget takes smaller ones. */
TEST("runs", half_of_the_memory) {
    char budget[32];
    EXPECT(0, TINY, "--batch", "32", "--accumulate", "1", "--epochs", "1", "--steps", "1",
           "--micro-batch", "32", "--budget", "auto", "--workers", "0", "--trace", cli_trace);
    long long whole = cli_number(cli_trace, "step", 1, "peak_bytes");
    ck_assert_int_gt(whole, 0);
    snprintf(budget, sizeof budget, "%lld", whole / 2);
    EXPECT(0, TINY, "--batch", "32", "--accumulate", "1", "--epochs", "1", "--steps", "2",
           "--workers", "0", "--budget", budget, "--trace", cli_trace);
    ck_assert_int_le(cli_number(cli_trace, "end", 1, "peak_bytes"), whole / 2);
    ck_assert_int_eq(cli_number(cli_trace, "step", 2, "samples"), 32);
}

/* The loss of chunks cannot be had in smaller ones: the run says so, and what helps. */
TEST("runs", plain_that_does_not_fit) {
    EXPECT(3, TINY, "--contrastive", "plain", "--batch", "64", "--accumulate", "2", "--steps", "1",
           "--budget", "40MiB", "--workers", "0");
    ck_contains(cli_err, "--contrastive cached");
}

TEST("runs", a_fault_changes_nothing) {
    EXPECT(0, TINY, "--batch", "8", "--accumulate", "2", "--steps", "3", "--micro-batch", "8",
           "--inject-oom", "2:90", "--trace", cli_trace);
    EXPECT(0, TINY, "--batch", "8", "--accumulate", "2", "--steps", "3", "--replay", cli_trace,
           "--trace", cli_replayed);
    ck_assert_int_ge(cli_number(cli_trace, "oom", 1, "step"), 2);
    cli_same_state();
}

int main(void) {
    cli_program = "car_clip";
    cli_case_named("flags");
    cli_case_named("runs");
    return suite_run_named("ex_car_clip");
}
