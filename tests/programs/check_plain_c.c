/*
 * check_plain_c.c - build/examples/plain_c as a person runs it: a backend in plain C keeps its budget, meets
 * an OOM at each request for memory, and is replayed to the bit. It needs no libtorch.
 */
#include "cli.h"

/* ---- flags ------------------------------------------------------------------------------------- */

TEST("flags", help_goes_to_standard_output) {
    EXPECT(0, "--help");
    ck_contains(cli_out, "--inject-oom STEP:N");
    ck_assert_str_eq(cli_err, "");
}

static const char *const wrong[][3] = {
    {"--batch", "none", "from 1 to 1024"},
    {"--batch", "0", "from 1 to 1024"},
    {"--batch", "1025", "from 1 to 1024"},
    {"--batch", "-1", "from 1 to 1024"},
    {"--batch", "12x", "from 1 to 1024"},
    {"--batch", "18446744073709551617", "from 1 to 1024"},
    {"--micro-batch", "half", "auto, or a whole number"},
    {"--micro-batch", "0", "auto, or a whole number"},
    {"--epochs", "1e3", "from 1 to 1000"},
    {"--steps", " 1", "from 1 to"},
    {"--seed", "+1", "from 0 to"},
    {"--budget", "much", "a size such as"},
    {"--budget", "0.5", "a size such as"},
    {"--inject-oom", "2", "STEP:N"},
    {"--inject-oom", "0:1", "STEP:N"},
    {"--inject-oom", "1:2:3", "STEP:N"},
    {"--trace", "/nonexistent/t", "No such file"},
    {"--replay", "/nonexistent/t", "No such file"},
    {"--trace", NULL, "the path of a file"},
    {"--batch", NULL, "from 1 to 1024"},
    {"--bogus", NULL, "no such flag"},
    {"7", NULL, "no such flag"},
};

TEST_LOOP("flags", wrong_flags_exit_2_with_one_line, LENGTH(wrong)) {
    const char *const *flag = wrong[_i];
    EXPECT(2, flag[0], flag[1]);
    ck_assert_str_eq(cli_out, "");
    cli_one_line("plain_c: ");
    ck_says(cli_err, flag[0], flag[1] ? flag[1] : "", flag[2]);
}

/* ---- budgets ----------------------------------------------------------------------------------- */

/* No step is above the budget, and the peak of each is what recordings of two chunks have predicted. */
static void check_steps(int count) {
    for (int n = 1; n <= count; n++) {
        long long peak = cli_number(cli_trace, "step", n, "peak_bytes");
        ck_assert_int_gt(peak, 0);
        ck_assert_int_le(peak, cli_number(cli_trace, "step", n, "budget_bytes"));
        ck_assert_int_eq(peak, cli_number(cli_trace, "step", n, "predicted_peak_bytes"));
    }
    ck_assert_int_eq(cli_number(cli_trace, "step", count + 1, "step"), -1);
}

TEST("runs", it_learns_inside_its_budget) {
    double accuracy = 0;
    size_t smallest = 0, largest = 0;
    EXPECT(0, "--epochs", "3", "--trace", cli_trace);
    ck_assert_str_eq(cli_err, "");
    ck_contains(cli_out, "accuracy by guessing 10.0 %");
    const char *test = strstr(strstr(cli_out, "epoch 3 "), "test loss");
    ck_assert_int_eq(sscanf(test, "test loss %*f accuracy %lf", &accuracy), 1);
    ck_assert_msg(accuracy > 50, "%s", cli_out);
    const char *chunks = strstr(cli_out, "chunks of ");
    ck_assert_int_eq(sscanf(chunks, "chunks of %zu to %zu for batch 64; 0 OOMs met, 0 samples",
                            &smallest, &largest),
                     2);
    ck_assert_uint_le(smallest, largest);
    ck_assert_uint_lt(largest, 64);
    check_steps(3 * 32);
}

TEST("runs", a_whole_batch_does_not_fit_where_chunks_do) {
    EXPECT(3, "--micro-batch", "64", "--steps", "1");
    ck_says(cli_err, "A batch of 64 samples does not fit on cpu",
            "What would make it fit:", "a smaller micro-batch than the 64");
    EXPECT(0, "--micro-batch", "auto", "--steps", "1");
    EXPECT(0, "--micro-batch", "64", "--steps", "1", "--budget", "3MiB");
    ck_contains(cli_out, "chunks of 64 to 64");
}

/* Weights, momentum and gradient take 103 KiB, a chunk of one 42 more. */
static const struct {
    const char *budget, *words;
    int status;
} budgets[] = {
    {"100KiB", "weights, momentum and gradient take", 3},
    {"120KiB", "does not fit on cpu", 3},
    {"144KiB", "does not fit on cpu", 3},
    {"145KiB", "", 0},
};

TEST_LOOP("runs", the_smallest_budget, LENGTH(budgets)) {
    EXPECT(budgets[_i].status, "--budget", budgets[_i].budget, "--steps", "2", "--batch", "3");
    ck_contains(cli_err, budgets[_i].words);
}

/* ---- recovery ---------------------------------------------------------------------------------- */

#define SHORT "--batch", "24", "--steps", "3"

/* 204,800 bytes have room for 8 pictures beside the state: three chunks, in each case. */
static const char *const micro_batches[] = {"auto", "8"};

TEST_LOOP("recovery", each_request_that_fails_ends_as_its_replay, LENGTH(micro_batches)) {
    for (int n = 1;; n++) {
        char fault[16];
        snprintf(fault, sizeof fault, "2:%d", n);
        EXPECT(0, SHORT, "--budget", "200KiB", "--micro-batch", micro_batches[_i], "--trace",
               cli_trace, "--inject-oom", fault);
        if (strstr(cli_err, "warning: --inject-oom: step 2 made ")) {
            ck_assert_int_gt(n, 3 * 11); /* requests of a chunk */
            return;
        }
        ck_assert_int_eq(cli_number(cli_trace, "end", 1, "ooms"), 1);
        ck_assert_int_le(cli_number(cli_trace, "end", 1, "peak_bytes"), 200 << 10);
        EXPECT(0, "--batch", "24", "--replay", cli_trace, "--trace", cli_replayed);
        ck_assert_int_eq(cli_number(cli_replayed, "end", 1, "steps"), 3);
        ck_assert_int_eq(cli_number(cli_replayed, "end", 1, "ooms"), 0);
        cli_same_state();
    }
}

/* The chunks before it stay, so that the chunk that failed is all that is thrown away. The budget does not
   explain the failure, as the evidence tells, and so it teaches nothing. */
TEST("recovery", a_failure_costs_its_chunk) {
    static char trace[CLI_CAPACITY];
    EXPECT(0, SHORT, "--budget", "200KiB", "--trace", cli_trace, "--inject-oom", "2:20");
    cli_read_file(cli_trace, trace);
    const char *oom = strstr(trace, "{\"event\":\"oom\""), *keep = strstr(trace, "\"keep\":true");
    ck_assert_msg(oom && keep && keep < oom, "%s", trace);
    ck_assert_ptr_null(strstr(oom, "\"action\":\"replan\""));
    ck_assert_int_eq(cli_number(cli_trace, "step", 2, "retries"), 1);
    ck_assert_int_gt(cli_number(cli_trace, "step", 2, "discarded"), 0);
    ck_assert_int_le(cli_number(cli_trace, "step", 2, "discarded"), 12);
}

/* ---- replay ------------------------------------------------------------------------------------ */

TEST("replays", equal_chunks_are_equal_bits) {
    EXPECT(0, SHORT, "--micro-batch", "5", "--trace", cli_trace);
    EXPECT(0, SHORT, "--micro-batch", "5", "--trace", cli_replayed, "--budget", "300KiB");
    cli_same_state();
    EXPECT(0, SHORT, "--replay", cli_trace, "--trace", cli_replayed, "--budget", "200KiB");
    cli_same_state();
    const char *state = strstr(cli_out, "; state ");
    char first[32];
    ck_assert_int_eq(sscanf(state, "; state %16s", first), 1);
    EXPECT(0, SHORT, "--micro-batch", "5", "--seed", "2");
    ck_assert_ptr_null(strstr(cli_out, first));
}

TEST("replays", a_replay_ends_with_its_trace) {
    EXPECT(0, "--batch", "500", "--epochs", "1", "--trace", cli_trace);
    EXPECT(0, "--batch", "500", "--epochs", "2", "--replay", cli_trace, "--trace", cli_replayed);
    ck_assert_int_eq(cli_number(cli_replayed, "end", 1, "steps"), 4);
    ck_assert_ptr_null(strstr(cli_out, "epoch 2"));
    cli_same_state();
}

/* Chunks that are given stay as they are. */
TEST("replays", a_replay_needs_its_memory) {
    EXPECT(0, SHORT, "--micro-batch", "24", "--trace", cli_trace);
    EXPECT(3, SHORT, "--replay", cli_trace, "--budget", "200KiB");
    ck_contains(cli_err, "smaller chunks than those that are given");
}

/* The first version that others may have kept traces of: its policy chose other chunks than that of today does. */
TEST("replays", a_trace_of_an_earlier_version_is_replayed) {
    const char *const chunks[] = {"2,4,3,3,3,3,3,3", "4,2,3,3,3,3,3,3", "8,8,8",
                                  "4,4,4,4,4,4",     "4,4,4,4,4,4",     "4,4,4,4,4,4"};
    char text[CLI_CAPACITY], wanted[96];
    EXPECT(0, "--batch", "24", "--replay", "tests/traces/plain_c-0.1.0.jsonl", "--trace",
           cli_replayed);
    cli_read_file(cli_replayed, text);
    for (int i = 0; i < LENGTH(chunks); i++) {
        snprintf(wanted, sizeof wanted,
                 "\"step\":%d,\"epoch\":1,\"samples\":24,\"chunks\":[%s],\"loss\"", i + 1,
                 chunks[i]);
        ck_contains(text, wanted);
    }
    ck_assert_int_eq(cli_number(cli_replayed, "end", 1, "steps"), LENGTH(chunks));
}

/* What is replaced in a trace by what, and what is said of it. */
static const char *const damage[][3] = {
    {"\"plain_c\"", "\"2.11.0\"", "is no trace of plain_c"},
    {"\"batch\":24", "\"batch\":32", "with --batch 24 and --seed 1"},
    {"\"seed\":1", "\"seed\":2", "with --batch 24 and --seed 1"},
    {"\"step\",\"step\":2", "\"step\",\"step\":3", "the line of step 2 is damaged"},
    {"\"chunks\":[8,8,8],\"loss", "\"chunks\":[8,8,8,\"loss", "the line of step 1 is damaged"},
    {"\"chunks\":[8,8,8],\"loss", "\"chunks\":[],\"loss", "the line of step 1 is damaged"},
    {"\"chunks\":[8,8,8],\"loss", "\"chunks\":[8,-8,8],\"loss", "the line of step 1 is damaged"},
    {"\"chunks\":[8,8,8],\"loss", "\"chunks\":[8,8],\"loss", "add up to 16 samples"},
    {"\"chunks\":[8,8,8],\"loss", "\"chunks\":[8,8,8,0],\"loss", "chunk 3 is 0"},
};

static void replace(const char *from, const char *to) {
    static char text[CLI_CAPACITY];
    cli_read_file(cli_trace, text);
    char *at = strstr(text, from);
    ck_assert_msg(at != NULL, "'%s' is not in '%s'", from, text);
    cli_write_bytes(cli_trace, text, (size_t)(at - text));
    cli_append_file(cli_trace, to);
    cli_append_file(cli_trace, at + strlen(from));
}

TEST_LOOP("replays", another_trace_is_refused, LENGTH(damage)) {
    EXPECT(0, SHORT, "--micro-batch", "8", "--trace", cli_trace);
    replace(damage[_i][0], damage[_i][1]);
    EXPECT(2, "--batch", "24", "--replay", cli_trace);
    ck_contains(cli_err, damage[_i][2]);
    cli_one_line("plain_c: ");
}

TEST("replays", a_trace_does_not_overwrite_its_replay) {
    EXPECT(0, SHORT, "--trace", cli_trace);
    EXPECT(2, SHORT, "--trace", cli_trace, "--replay", cli_trace);
    ck_contains(cli_err, "is the file of --replay");
    ck_assert_int_eq(cli_number(cli_trace, "end", 1, "steps"), 3);
}

#ifdef __linux__
TEST("replays", a_full_disk_is_told) {
    EXPECT(1, SHORT, "--trace", "/dev/full");
    ck_contains(cli_err, "plain_c: --trace: '/dev/full'");
}
#endif

int main(void) {
    cli_program = "plain_c";
    cli_case_named("flags");
    cli_case_named("runs");
    cli_case_named("recovery");
    cli_case_named("replays");
    return suite_run_named("plain_c");
}
