/*
 * check_ex_profoct.c - build/examples/profoct as a person runs it: flags of the script, presets, a budget in
 * which one episode fits and two do not, tests at the end, --self-test.
 */
#include "cli.h"

/* Episodes of four pictures. */
#define TINY SMALL, "--n_way", "2", "--k_shot", "1", "--n_query", "1", "--val-episodes", "2"
#define RUN TINY, "--episodes", "4", "--epochs", "1", "--test-episodes", "5"

TEST("flags", help_has_the_flags_of_the_script) {
    EXPECT(0, "--help");
    ck_says(cli_out, "--n-way", "--k-shot", "--n-query", "--method", "--backbone", "--FETI",
            "--use-amp", "ProFOCT_cosine", "--gradient-accumulation-steps",
            "--use-vic-on-attention", "--preset", "--self-test");
}

static const char *const wrong[][3] = {
    {"--backbone", "ResNet50", "ResNet18 or ResNet34"},
    {"--preset", "huge", "minimal, balanced or maximum"},
    {"--n_way", "9", "more than the 5 for 'val'"},
    {"--k_shot", "20", "more than the 20 pictures of --k-shot"},
    {"--data", "/nonexistent", "/nonexistent"},
};

TEST_LOOP("flags", wrong_values_exit_2_with_one_line, LENGTH(wrong)) {
    EXPECT(2, wrong[_i][0], wrong[_i][1]);
    cli_one_line("profoct: --");
    ck_contains(cli_err, wrong[_i][2]);
}

TEST("flags", a_preset_leaves_what_is_not_its_own) {
    EXPECT(0, SMALL, "--k_shot", "1", "--n_query", "1", "--preset", "minimal", "--epochs", "0");
    ck_contains(cli_out, "5-way 1-shot, 8 queries a class");
}

/* Flags after a preset have the last word; steps of its accumulation are episodes of a batch. */
static long long run_whole(void) {
    EXPECT(0, "--preset", "balanced", RUN, "--backbone", "ResNet18", "--budget=auto",
           "--micro-batch=2", "--trace", cli_trace);
    ck_says(cli_out,
            "2-way 1-shot, 1 queries a class; classes: 20 for training, 5 for validation, 8 "
            "for tests; guessing is right for 50.0 %",
            "ProFOCT_cosine at 32 pixels", "\nepoch 1  train loss ",
            "over 5 episodes of classes that were never seen; guessing: 50.0 %",
            "chunks of 2 for batch 2; ");
    ck_assert_int_eq(cli_number(cli_trace, "end", 1, "steps"), 2);
    return cli_number(cli_trace, "step", 1, "peak_bytes");
}

/* Where two episodes do not fit beside held gradients they go without; and each can be a chunk. */
TEST("runs", an_episode_is_never_cut) {
    static char budget[32];
    long long bytes = run_whole();
    ck_assert_int_gt(bytes, 0);
    snprintf(budget, sizeof budget, "%lld", bytes - 1);
    EXPECT(0, RUN, "--budget", budget, "--trace", cli_trace);
    ck_assert_int_lt(cli_number(cli_trace, "step", 1, "peak_bytes"), bytes);
    EXPECT(0, RUN, "--budget", budget, "--micro-batch", "1");
    ck_contains(cli_out, "chunks of 1 for batch 2; ");
}

/* A ResNet-18's file has 100 of a ResNet-34's 180 tensors. FETI's stem is another one; its own file has it. */
TEST("runs", a_backbone_is_read_whole) {
    char eighteen[CLI_PATH], feti[CLI_PATH];
    snprintf(eighteen, sizeof eighteen, "%s", cli_path("eighteen"));
    snprintf(feti, sizeof feti, "%s", cli_path("feti"));
    EXPECT(0, RUN, "--backbone", "ResNet18", "--steps", "1", "--save", eighteen);
    EXPECT(0, RUN, "--backbone", "ResNet18", "--steps", "1", "--weights", eighteen);
    ck_assert_ptr_null(strstr(cli_err, "--weights"));
    EXPECT(2, RUN, "--backbone", "ResNet34", "--weights", eighteen);
    ck_says(cli_err, "profoct: --weights: ",
            "' lacks 80 of the 180 tensors of the model that begin with 'feature.', the first is "
            "'feature.layer1.2.conv1.weight'; accepted: a file that has all of them");
    EXPECT(0, RUN, "--backbone", "ResNet18", "--FETI", "1", "--steps", "1", "--weights", eighteen,
           "--save", feti);
    ck_says(cli_err, "--weights: the stem of '",
            "' has kernels of 7x7 and FETI's has 5x5: it is not read");
    EXPECT(0, RUN, "--backbone", "ResNet18", "--FETI", "1", "--steps", "1", "--weights", feti);
    ck_assert_ptr_null(strstr(cli_err, "--weights"));
}

/* What does not fit with the matrix of covariances is told how to do without. */
TEST("runs", the_matrix_is_refused) {
    EXPECT(3, RUN, "--pool", "2", "--budget", "100MiB", "--covariance", "matrix");
    ck_contains(cli_err, "--covariance rows    the same numbers without a matrix of 16.0 MiB\n");
    EXPECT(3, RUN, "--pool", "2", "--budget", "100MiB");
    ck_assert_ptr_null(strstr(cli_err, "--covariance"));
}

TEST("runs", the_network_can_be_cut) {
    EXPECT(0, RUN, "--check");
    ck_contains(cli_out, "checked with 2 samples: 0 faults found\n");
    ck_assert_ptr_null(strstr(cli_out, "epoch 1"));
}

TEST("runs", the_self_test_passes) {
    EXPECT(0, TINY, "--self-test");
    ck_says(cli_out, "gradient accumulation", "mixed precision", "VIC detached", "cache clearing",
            "self-test: passed\n");
    ck_assert_ptr_null(strstr(cli_out, "FAILED"));
    EXPECT(0, TINY, "--self-test", "--backbone", "ResNet34"); /* more than a run has by default */
}

int main(void) {
    cli_case_named("flags");
    cli_case_named("runs");
    cli_program = "profoct";
    return suite_run_named("ex_profoct");
}
