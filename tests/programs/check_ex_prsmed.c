/*
 * check_ex_prsmed.c - build/examples/prsmed as a person runs it: the script's flags and configurations, what is
 * refused, the tables of memory, and a run in half the memory that a batch takes.
 */
#include "cli.h"
#include "prsmed.h"

#include <math.h>
#include <unistd.h>

/* Few scenes and a text model that stays random. */
#define QUICK                                                                                      \
    "--device", "cpu", "--image-size", "32", "--threads", "1", "--text-steps", "0", "--scenes",    \
        "16", "--val-scenes", "8", "--epochs", "1"

/* ---- flags --------------------------------------------------------------------------------------- */

static const char *const wrong[][3] = {
    {"--config", "4", "accepted: 0, 1, 2, 3 or 16gb"},
    {"--gpu-size", "12", "accepted: 80, 24, 16 or 8"},
    {"--image-size", "42", "a multiple of 4"},
    {"--data", "/nonexistent", "--data: /nonexistent: No such file"},
    {"--patterns", "/nonexistent", "--patterns: /nonexistent: No such file"},
    {"--patterns", "examples", "--patterns: examples: no PNG picture"},
};

TEST_LOOP("flags", wrong_values_exit_2_with_one_line, LENGTH(wrong)) {
    EXPECT(2, "--device", "cpu", wrong[_i][0], wrong[_i][1]);
    cli_one_line("prsmed: --");
    ck_contains(cli_err, wrong[_i][2]);
}

TEST("flags", an_encoder_in_part_is_refused) {
    const char *file = cli_path("w");
    cli_write_tensor(file, "patch_embed.conv1.bn.weight", "32", 128); /* timm's name */
    EXPECT(2, QUICK, "--budget", "auto", "--image-size", "64", "--encoder", "tiny_vit", "--weights",
           file);
    cli_one_line("prsmed: --weights: ");
    ck_says(cli_err, "' lacks ", " that begin with 'vision.patch_embed.' or 'vision.layers.', the");
}

TEST("flags", what_there_is_not_is_refused) {
    EXPECT(2, "--compile-model");
    ck_says(cli_err, "prsmed: --compile-model: ", "torch.compile");
    EXPECT(2, "--use-amp", "--no-use-amp");
    ck_contains(cli_err, "--no-use-amp: not together with --use-amp");
    EXPECT(2, "--use-amp", "--amp", "off");
    ck_contains(cli_err, "--use-amp: not together with --amp off");
    EXPECT(2, "--gradient-checkpointing", "--checkpointing", "off");
    ck_contains(cli_err, "--gradient-checkpointing: not together with --checkpointing off");
}

TEST("flags", flags_of_the_language_model) {
    static const char *const cases[][3] = {
        {"--text-weights", "w", "--text-weights: needs --text-model"},
        {"--write-text-weights", "w", "--write-text-weights: needs --text-model"},
        {"--cache-frozen-file", "s", "--cache-frozen-file: needs --text-model"},
        {"--frozen", "load", "--frozen load: needs --text-model"},
        {"--text-type", "bf16", "--text-type bf16: needs --text-model"},
        {"--text-type", "fp8", "accepted: float32 or bf16"},
        {"--text-model", "8b", "accepted: off, tiny, 500m, 1.1b or 7b"},
        {"--frozen", "away", "accepted: map or load"},
    };
    for (int i = 0; i < LENGTH(cases); i++) {
        EXPECT(2, cases[i][0], cases[i][1]);
        ck_contains(cli_err, cases[i][2]);
    }
    EXPECT(2, "--cache-frozen");
    ck_contains(cli_err, "--cache-frozen: needs --text-model");
    EXPECT(2, "--text-model", "tiny", "--cache-frozen-file", "s");
    ck_contains(cli_err, "--cache-frozen-file: needs --text-weights");
    EXPECT(2, "--text-model", "tiny", "--text-weights", "w", "--cache-frozen-file", "w");
    ck_contains(cli_err, "another file than that of --text-weights");
    EXPECT(2, "--text-model", "tiny", "--text-steps", "1");
    ck_contains(cli_err, "--text-steps: not together with --text-model");
    EXPECT(2, "--text-model", "tiny", "--breakdown");
    ck_contains(cli_err, "--breakdown: not together with --text-model");
}

/* Ratios of times, and what is said of them. */
static const struct {
    double ratio;
    const char *told;
} ratios[] = {
    {0, NULL},
    {0.3, NULL},
    {2, NULL},
    {2.01, "take 2.0 times as long"},
    {31.4,
     "take 31.4 times as long on this processor as in float32; --text-type float32 is faster"},
    {INFINITY, "take inf times"},
    {NAN, NULL},
};

TEST_LOOP("flags", slow_products_are_told, LENGTH(ratios)) {
    char text[256] = "";
    ck_assert_int_eq(prsmed_slow_half(ratios[_i].ratio, text, sizeof text), !!ratios[_i].told);
    if (ratios[_i].told)
        ck_says(text, "--text-type bf16: products in bfloat16 ", ratios[_i].told);
    else
        ck_assert_str_eq(text, "");
}

/* Samples of the largest chunk, from the last line. */
static int largest_chunk(void) {
    int least, most;
    const char *at = strstr(cli_out, "chunks of ");
    ck_assert_ptr_nonnull(at);
    int read = sscanf(at, "chunks of %d to %d", &least, &most);
    return read == 2 ? most : least;
}

/* Samples of a step, and the chunks that it has at least. */
static const struct {
    const char *flag, *value;
    long long samples, chunks;
} configurations[] = {
    {"--config", "1", 8, 4},
    {"--gpu-size", "8", 8, 8},
};

TEST_LOOP("flags", configurations_cut_as_the_script_does, LENGTH(configurations)) {
    EXPECT(0, QUICK, "--budget", "auto", "--deterministic", configurations[_i].flag,
           configurations[_i].value, "--steps", "1", "--trace", cli_trace);
    ck_assert_int_eq(cli_number(cli_trace, "step", 1, "samples"), configurations[_i].samples);
    ck_assert_int_le(largest_chunk(), configurations[_i].samples / configurations[_i].chunks);
}

/* ---- runs ---------------------------------------------------------------------------------------- */

TEST("runs", a_run_says_what_it_did) {
    EXPECT(0, QUICK);
    ck_says(cli_out, "16 scenes an epoch for training, 8 for validation, of 20 classes\n",
            "\nepoch 1  train loss ", "\nCPU Memory Allocated: 0.0",
            " GB, Cached: ", "\nvalidation Dice ", "; without the prompt: all pixels ");
}

TEST("runs", the_network_can_be_cut) {
    EXPECT(0, QUICK, "--check");
    ck_contains(cli_out, "checked with 3 samples: 0 faults found\n");
    ck_assert_ptr_null(strstr(cli_out, "epoch 1"));
}

/* They draw random numbers, and the run's are none of these. */
TEST("runs", the_tables_of_memory_change_nothing) {
    EXPECT(0, QUICK, "--steps", "1", "--deterministic", "--trace", cli_trace, "--batch", "4");
    EXPECT(0, QUICK, "--steps", "1", "--deterministic", "--trace", cli_replayed, "--breakdown",
           "--batch", "4");
    ck_says(cli_out, "\n  input ", "\n  frozen text model ", "\n  vision backbone ",
            "\n  mask head ", "\n  gradients ", "\n  all together ", "\n  half precision (bf16) ",
            "\n  chunks of 1 ");
    cli_same_state();
}

/* MPS tells no peak of a chunk: what hangs on it is not told, and no figure is made of what is not there. */
TEST("runs", a_device_that_tells_no_peaks) {
    EXPECT(0, QUICK, "--epochs", "0", "--breakdown", "--batch", "4", "--device", "sim:mps",
           "--budget", "200MiB");
    ck_contains(cli_out, "\n  gradients ");
    const char *together = strstr(cli_out, "\n  all together ");
    ck_assert_ptr_nonnull(together);
    ck_contains(together, " not told");
    ck_contains(strstr(cli_out, "\n  chunks of 1 "), " not told");
    ck_assert_ptr_null(strstr(cli_out, "EiB"));
    ck_assert_ptr_null(strstr(cli_out, " 0 B"));
}

/* A budget with half of what a batch takes beside what is there before it. */
static const char *half_the_memory(void) {
    static char budget[32];
    EXPECT(0, QUICK, "--budget", "auto", "--micro-batch", "8", "--trace", cli_trace);
    long long peak = cli_number(cli_trace, "step", 2, "peak_bytes");
    long long state = cli_number(cli_trace, "step", 2, "allocated_bytes");
    ck_assert_int_gt(peak, state);
    ck_assert_int_gt(state, 0);
    snprintf(budget, sizeof budget, "%lld", state + (peak - state) / 2);
    return budget;
}

TEST("runs", half_the_memory_is_enough) {
    const char *budget = half_the_memory();
    EXPECT(0, QUICK, "--budget", budget, "--trace", cli_replayed, "--workers", "0");
    ck_contains(cli_out, " for batch 8; ");
    ck_assert_int_eq(cli_number(cli_replayed, "end", 1, "samples_trained"), 16);
    ck_assert_int_lt(largest_chunk(), 8);
}

/* The text model is in the file, and is not trained a second time. */
TEST("runs", a_run_goes_on) {
    const char *path = cli_path("state");
#define LEARNT QUICK, "--text-steps", "1", "--micro-batch", "4"
    EXPECT(0, LEARNT, "--trace", cli_trace);
    ck_contains(cli_err, "text model: 1 step");
    EXPECT(0, LEARNT, "--steps", "1", "--save", path);
    EXPECT(0, LEARNT, "--resume", path, "--trace", cli_replayed);
    ck_assert_ptr_null(strstr(cli_err, "text model: "));
    cli_same_state();
}

/* No layer normalises over the batch, so small chunks would be part of the first step; a deterministic one has none. */
TEST("runs", chosen_chunks_go_on) {
    const char *path = cli_path("state"), *budget = half_the_memory();
#define CHOSEN                                                                                     \
    QUICK, "--budget", budget, "--deterministic", "--workers", "0", "--schedule", "constant"
    EXPECT(0, CHOSEN, "--epochs", "2", "--trace", cli_trace);
    ck_assert_int_lt(largest_chunk(), 8);
    EXPECT(0, CHOSEN, "--epochs", "2", "--steps", "1", "--save", path);
    EXPECT(0, CHOSEN, "--epochs", "2", "--resume", path, "--trace", cli_replayed);
    ck_assert_ptr_null(strstr(cli_err, "other bits"));
    cli_same_state();
}

/* Prompts that come again are not read again, and mapped and loaded weights are the same in each type. */
TEST("runs", an_epoch_that_comes_again_reads_nothing) {
    const char *weights = cli_path("weights");
#define TWO_EPOCHS                                                                                 \
    QUICK, "--text-model", "tiny", "--text-weights", weights, "--micro-batch", "4", "--epochs",    \
        "2", "--same-scenes", "--cache-frozen"
    EXPECT(0, "--text-model", "tiny", "--write-text-weights", weights);
    EXPECT(0, TWO_EPOCHS, "--text-type", "bf16", "--trace", cli_trace);
    ck_says(cli_out, "1 pass in bf16, of 16 prompts", "0 passes in bf16, of 0 prompts");
    EXPECT(0, TWO_EPOCHS, "--text-type", "bf16", "--frozen", "load", "--trace", cli_replayed);
    ck_contains(cli_out, "language model: 167872 parameters, 327.9 KiB in memory, 0 B mapped");
    cli_same_state();
    EXPECT(0, TWO_EPOCHS);
    ck_contains(cli_out, "0 passes in float32, of 0 prompts");
}

/* ---- --cache-frozen-file ------------------------------------------------------------------------- */

#define WITH_STATES                                                                                \
    QUICK, "--text-model", "tiny", "--text-weights", cli_path("weights"), "--text-type", "bf16",   \
        "--micro-batch", "4", "--cache-frozen-file", cli_path("states")

/* Weights, and the file of a run with them. */
static void write_states(void) {
    EXPECT(0, "--text-model", "tiny", "--write-text-weights", cli_path("weights"));
    EXPECT(0, WITH_STATES, "--trace", cli_trace);
    ck_contains(cli_out, "1 pass in bf16, of 16 prompts");
}

/* The file was left out for a reason, and is a good one again. */
static void states_are_left_out(const char *reason) {
    EXPECT(0, WITH_STATES, "--trace", cli_replayed);
    ck_says(cli_err, "states' is left out: ", reason);
    ck_contains(cli_out, "1 pass in bf16, of 16 prompts");
    EXPECT(0, WITH_STATES, "--trace", cli_trace);
    ck_assert_ptr_null(strstr(cli_err, "is left out"));
    ck_assert_ptr_null(strstr(cli_out, "1 pass"));
    cli_same_state();
}

/* Not even the prompts that centre its words: no pass of its blocks. Prompts that are new are added. */
TEST("states", a_second_run_reads_nothing) {
    write_states();
    EXPECT(0, WITH_STATES, "--trace", cli_replayed);
    ck_contains(cli_out, "language model: 0 passes in bf16, of 0 prompts, 0.0 s; 0 B read");
    ck_assert_ptr_null(strstr(cli_out, "1 pass"));
    cli_same_state();
    EXPECT(0, WITH_STATES, "--frozen", "load", "--trace", cli_replayed);
    ck_assert_ptr_null(strstr(cli_out, "1 pass"));
    cli_same_state();
    EXPECT(0, WITH_STATES, "--epochs", "2", "--trace", cli_trace);
    ck_contains(cli_out, "passes in bf16, of ");
    EXPECT(0, WITH_STATES, "--epochs", "2", "--trace", cli_replayed);
    ck_assert_ptr_null(strstr(strstr(cli_out, "0 passes in bf16"), "1 pass"));
    cli_same_state();
}

/* It goes on with what was kept. Validation of the first part would have read prompts of the second, in other passes. */
TEST("states", a_run_that_goes_on_has_them) {
    EXPECT(0, "--text-model", "tiny", "--write-text-weights", cli_path("weights"));
    EXPECT(0, WITH_STATES, "--no-validation", "--trace", cli_trace);
    cli_shell("rm '%s'", cli_path("states"));
    EXPECT(0, WITH_STATES, "--no-validation", "--steps", "1", "--save", cli_path("state"));
    EXPECT(0, WITH_STATES, "--no-validation", "--resume", cli_path("state"), "--trace",
           cli_replayed);
    ck_assert_ptr_null(strstr(cli_out, "1 pass in bf16, of 16 prompts"));
    cli_same_state();
}

TEST("states", of_something_else_are_left_out) {
    write_states();
    EXPECT(0, WITH_STATES, "--text-type", "float32");
    ck_says(cli_err, "is left out: its read_in is 'bf16', and this run's is 'float32'");
    states_are_left_out("its read_in is 'float32'");
    cli_shell("printf abcd | dd of='%s' bs=1 seek=300000 conv=notrunc 2>/dev/null",
              cli_path("weights"));
    states_are_left_out("its states_of is 'content ");
}

/* Damaged in its head, in its numbers and at its end; of other shapes and types, which are as long. */
TEST("states", that_are_damaged_are_left_out) {
    static const char *const damages[][2] = {
        {"truncate -s -9 '%s'", "states'"},
        {"truncate -s 0 '%s'", "states'"},
        {"printf abcd | dd of='%s' bs=1 seek=9000 conv=notrunc 2>/dev/null", "it is damaged"},
        {"sed -i s/,16,64/,64,16/ '%s'", "its 'states' has another type or shape"},
        {"sed -i 's/\"I64\"/\"U64\"/' '%s'", "its 'prompts' has another type or shape"},
        {"sed -i s/scale/scalf/ '%s'", "scale"},
    };
    write_states();
    for (int i = 0; i < LENGTH(damages); i++) {
        char line[256];
        snprintf(line, sizeof line, damages[i][0], cli_path("states"));
        cli_shell("%s", line);
        states_are_left_out(damages[i][1]);
    }
}

/* Before anything is trained. What is not ours stays as it is. */
TEST("states", wrong_files_are_refused) {
    write_states();
    EXPECT(2, WITH_STATES, "--cache-frozen-file", "/nonexistent/s");
    cli_one_line("prsmed: --cache-frozen-file: cannot write '/nonexistent/s': No such file");
    EXPECT(2, WITH_STATES, "--cache-frozen-file", cli_root);
    ck_contains(cli_err, "is not a regular file");
    cli_shell("cp '%s' '%s'", cli_path("weights"), cli_path("other"));
    EXPECT(2, WITH_STATES, "--cache-frozen-file", cli_path("other"));
    cli_one_line("prsmed: --cache-frozen-file: '");
    ck_contains(cli_err, "is a file of something else");
    cli_shell("cmp '%s' '%s'", cli_path("weights"), cli_path("other"));
}

/* A folder has the name that it is written under: the run goes on, and the next one writes it. */
TEST("states", that_cannot_be_written_end_no_run) {
    EXPECT(0, "--text-model", "tiny", "--write-text-weights", cli_path("weights"));
    cli_shell("mkdir '%s.memtrain-tmp'", cli_path("states"));
    EXPECT(0, WITH_STATES);
    ck_says(cli_err, "--cache-frozen-file: what is kept is not written: ", "is a folder");
    ck_contains(cli_out, "\nvalidation Dice ");
    cli_shell("rmdir '%s.memtrain-tmp'", cli_path("states"));
    EXPECT(0, WITH_STATES);
    ck_assert_int_eq(access(cli_path("states"), R_OK), 0);
}

/* A file of one name, which the first writes and all read. */
TEST("states", of_several_processes) {
    EXPECT(0, "--text-model", "tiny", "--write-text-weights", cli_path("weights"));
    EXPECT(0, WITH_STATES, "--processes", "2");
    ck_assert_ptr_null(strstr(cli_err, "is not written"));
    cli_shell("test -f '%s' && ! ls '%s' | grep 'states.'", cli_path("states"), cli_root);
    EXPECT(0, WITH_STATES, "--processes", "2");
    ck_assert_ptr_null(strstr(cli_out, "1 pass"));
}

/* ---- more runs ----------------------------------------------------------------------------------- */

/* A run goes on with the weights that it began with, wherever their file lies, and with no others. */
TEST("runs", a_checkpoint_knows_the_weights) {
    const char *weights = cli_path("weights"), *moved = cli_path("moved"),
               *state = cli_path("state");
#define WITH_WEIGHTS QUICK, "--text-model", "tiny", "--epochs", "1", "--text-weights"
    EXPECT(0, "--text-model", "tiny", "--write-text-weights", weights);
    cli_shell("cp '%s' '%s'", weights, moved);
    EXPECT(0, WITH_WEIGHTS, weights, "--steps", "1", "--save", state);
    EXPECT(0, WITH_WEIGHTS, moved, "--resume", state);
    cli_shell("printf abcd | dd of='%s' bs=1 seek=300000 conv=notrunc 2>/dev/null", moved);
    EXPECT(2, WITH_WEIGHTS, moved, "--resume", state);
    ck_says(cli_err, "--text-weights: content ", "was written with content ");
}

/* What chunks take does not depend on what it says. */
TEST("runs", an_explanation_reads_nothing) {
    const char *weights = cli_path("weights");
    EXPECT(0, "--text-model", "tiny", "--write-text-weights", weights);
    EXPECT(0, QUICK, "--text-model", "tiny", "--text-weights", weights, "--epochs", "0",
           "--explain");
    ck_contains(cli_out, "mapped weights, not counted");
    ck_assert_ptr_null(strstr(cli_out, " of 16 prompts"));
    EXPECT(0, QUICK, "--text-model", "tiny", "--epochs", "0", "--explain");
    ck_contains(cli_out, "language model: 167872 parameters, 655.8 KiB in memory, 0 B mapped");
}

/* Mapped, loaded, kept, in other chunks and in two parts: one state. */
TEST("runs", a_language_model_reads_the_prompts) {
    const char *weights = cli_path("weights"), *state = cli_path("state");
#define LANGUAGE_MODEL                                                                             \
    QUICK, "--text-model", "tiny", "--text-weights", weights, "--micro-batch", "4"
    EXPECT(1, QUICK, "--text-model", "tiny", "--text-weights", "/nonexistent/w");
    ck_contains(cli_err, "/nonexistent/w");
    EXPECT(1, "--text-model", "tiny", "--write-text-weights", "/nonexistent/w");
    ck_contains(cli_err, "prsmed: --write-text-weights: cannot ");
    EXPECT(0, "--text-model", "tiny", "--write-text-weights", weights);
    EXPECT(0, LANGUAGE_MODEL, "--trace", cli_trace);
    ck_contains(cli_out, "language model: 167872 parameters, 0 B in memory, 327.9 KiB mapped");
    ck_assert_int_eq(cli_number(cli_trace, "program", 1, "mapped_bytes"), 335744);
    EXPECT(0, LANGUAGE_MODEL, "--explain", "--epochs", "0");
    ck_contains(cli_out, "mapped weights, not counted     327.9 KiB");
    EXPECT(0, LANGUAGE_MODEL, "--explain", "--trace", cli_replayed); /* and then trains as ever */
    cli_same_state();
    const char *told = strstr(cli_out, "\nA step of "), *read = strstr(cli_out, " of 16 prompts");
    ck_assert(told && told < read);
    EXPECT(0, LANGUAGE_MODEL, "--explain", "--cache-frozen", "--workers", "0", "--trace",
           cli_replayed);
    cli_same_state();
    EXPECT(0, QUICK, "--text-model", "tiny", "--micro-batch", "4", "--trace", cli_trace);
    EXPECT(0, QUICK, "--text-model", "tiny", "--micro-batch", "4", "--explain", "--trace",
           cli_replayed);
    cli_same_state();
    EXPECT(0, LANGUAGE_MODEL, "--trace", cli_trace);
    EXPECT(0, LANGUAGE_MODEL, "--frozen", "load", "--trace", cli_replayed);
    ck_contains(cli_out, "language model: 167872 parameters, 655.8 KiB in memory, 0 B mapped");
    cli_same_state();
    EXPECT(0, LANGUAGE_MODEL, "--steps", "1", "--save", state);
    EXPECT(0, LANGUAGE_MODEL, "--resume", state, "--trace", cli_replayed);
    cli_same_state();
    EXPECT(0, LANGUAGE_MODEL, "--cache-frozen", "--workers", "0");
    EXPECT(0, QUICK, "--text-model", "tiny", "--explain");
    EXPECT(0, QUICK, "--text-model", "tiny", "--check");
    ck_contains(cli_out, "0 faults found");
}

int main(void) {
    cli_program = "prsmed";
    cli_case_named("flags");
    cli_case_named("runs");
    cli_case_named("states");
    return suite_run_named("ex_prsmed");
}
