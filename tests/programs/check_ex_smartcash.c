/*
 * check_ex_smartcash.c - build/examples/smartcash as a person runs it: flags, tiers by name, phases, and a
 * run that goes from tier to tier.
 */
#include "cli.h"
#include "slow.h"

/* Few and small pictures; two phases of one epoch. */
#define TINY                                                                                       \
    "--image-size", "64", "--scenes", "16", "--validation-scenes", "4", "--batch", "8",            \
        "--threads", "1", "--deterministic", "--progress", "off", "--phase1-epochs", "1",          \
        "--phase2-epochs", "1"

static const char *const wrong[][3] = {
    {"--tier", "4", "auto, 1, 2 or 3"},
    {"--backbone", "resnet18", "efficientnet_b4, efficientnet_b0, cspdarknet or"},
    {"--image-size", "100", "multiples of 32 from 64 on"},
    {"--data", "/nonexistent", "/nonexistent: No such file"},
    {"--data", "examples/data/food", "STYLE_SUIT_RANK.png"},
    {"--device", "sim:mps", "--force-cpu: not together with --device sim:mps"},
    {"--weights", "/nonexistent", "--weights: cannot open '/nonexistent'"},
    {"--cpu-budget", "1GiB", "--cpu-budget: the run begins on the CPU, where it is --budget"},
};

TEST_LOOP("flags", wrong_values_exit_2_with_one_line, LENGTH(wrong)) {
    EXPECT(2, wrong[_i][0], wrong[_i][1], "--force-cpu");
    ck_assert_str_eq(cli_out, "");
    cli_one_line("smartcash: ");
    ck_says(cli_err, wrong[_i][0], wrong[_i][2]);
}

TEST("flags", a_backbone_in_part_is_refused) {
    const char *file = cli_path("w");
    cli_write_tensor(file, "features.0.1.weight", "32", 128);
    EXPECT(2, TINY, "--backbone", "efficientnet_b0", "--weights", file);
    cli_one_line("smartcash: --weights: ");
    ck_says(cli_err, "' lacks ",
            " tensors of the model that begin with 'features.', the first is ");
    cli_write_tensor(file, "logit_scale", "", 4);
    EXPECT(2, TINY, "--weights", file);
    ck_contains(cli_err, "has no tensor under a name of the model's");
}

TEST("flags", an_epoch_of_nothing_is_refused) {
    EXPECT(2, TINY, "--scenes", "1");
    ck_contains(cli_err, "only 1 pictures for training; 2 are the fewest");
    EXPECT(0, TINY, "--scenes", "1", "--tier", "3", "--phase2-epochs", "0");
}

TEST("flags", epochs_are_those_of_the_phases) {
    EXPECT(2, "--epochs", "5", "--phase1-epochs", "1", "--phase2-epochs", "1");
    ck_contains(cli_err, "--epochs: '5' is not accepted; accepted: 2");
    EXPECT(0, TINY, "--phase2-epochs", "0");
    ck_contains(cli_err, "phase 1 from epoch 1 on: the backbone is frozen");
    ck_assert_ptr_null(strstr(cli_out, "epoch 2"));
    EXPECT(0, "--tier", "2", "--epochs", "1", "--steps", "1", "--scenes", "16", "--image-size",
           "64", "--validation-scenes", "4");
    ck_assert_ptr_null(strstr(cli_err, "phase"));
    ck_says(cli_out, "cpu, 2 threads", "Effective batch size: 16");
}

/* The figures of a tier, and some of them given otherwise. */
TEST("flags", tiers_by_name) {
    EXPECT(0, "--tier", "1", "--epochs", "0", "--device", "sim:mps");
    ck_says(cli_out, "as in tier 1, the accelerator", "sim:mps, 4 threads",
            "Effective batch size: 8");
    EXPECT(0, "--tier", "1", "--epochs", "0", "--force-cpu", "--gradient-accumulation", "16",
           "--batch-size", "2");
    ck_says(cli_out, "cpu, 4 threads", "Effective batch size: 32");
}

TEST("runs", the_network_can_be_cut) {
    EXPECT(0, TINY, "--tier", "3", "--check");
    ck_contains(cli_out, "checked with 3 samples: 0 faults found\n");
    ck_assert_ptr_null(strstr(cli_out, "epoch 1"));
}

/* Batches of one picture, as the tiers have them, train. */
TEST("runs", a_tier_trains) {
    EXPECT(0, "--tier", "3", "--image-size", "64", "--scenes", "32", "--validation-scenes", "4",
           "--epochs", "1", "--trace", cli_trace);
    ck_says(cli_out, "cpu, 1 thread;", "chunks of 1 for batch 32", "of the cards");
    ck_assert_int_eq(cli_number(cli_trace, "step", 1, "samples"), 32);
    ck_contains(cli_err, "batch normalisation sees chunks of at most 1 of the batch's 32 samples");
    cli_one_line(""); /* and no more */
}

static const char *const networks[] = {"efficientnet_b4", "cspdarknet"};

TEST_LOOP_IF(is_slow(), "it takes long: MT_TEST_SLOW=1 runs it", "runs", each_backbone_trains,
             LENGTH(networks)) {
    EXPECT(0, TINY, "--steps", "1", "--batch", "2", "--phase1-epochs", "0", "--budget", "auto",
           "--validation-scenes", "0", "--backbone", networks[_i]);
    ck_says(cli_out, networks[_i], "for batch 2; 0 OOMs met");
}

/* Chunks, phases and all: a replay, and a run in two parts that met in the middle of a phase. */
TEST_IF(is_slow(), "it takes long: MT_TEST_SLOW=1 runs it", "runs", a_run_can_be_repeated) {
    EXPECT(0, TINY, "--trace", cli_trace, "--budget", "40MiB");
    EXPECT(0, TINY, "--replay", cli_trace, "--trace", cli_replayed);
    cli_same_state();
}

TEST("runs", a_run_goes_on_in_its_phase) {
    const char *path = cli_path("run");
    EXPECT(0, TINY, "--micro-batch", "4", "--trace", cli_trace);
    EXPECT(0, TINY, "--micro-batch", "4", "--steps", "1", "--save", path);
    EXPECT(0, TINY, "--micro-batch", "4", "--resume", path, "--trace", cli_replayed);
    ck_says(cli_err, "phase 1 from epoch 1 on", "phase 2 from epoch 2 on");
    cli_same_state();
}

/*
 * A card that has room for the state and for no two pictures: the step ends on the CPU, whole, or where that
 * has none beside what is rendered ahead in the last tier.
 */
static const char *const falls[][2] = {
    {"200MiB", "went through in tier 2, the CPU, all 4 samples of it"},
    {"44MiB", "went through in tier 3, one thread and nothing beside the training, all 4 samples"},
};

TEST_LOOP("runs", a_small_card_is_left, LENGTH(falls)) {
    EXPECT(0, "--device", "sim:mps", "--budget", "60MiB", "--image-size", "256", "--batch", "4",
           "--scenes", "8", "--validation-scenes", "0", "--phase1-epochs", "0", "--phase2-epochs",
           "1", "--threads", "1", "--deterministic", "--prefetch", "8", "--trace", cli_trace,
           "--cpu-budget", falls[_i][0]);
    ck_contains(cli_out, "begins in tier 1");
    ck_says(cli_err, "tier 1, the accelerator, is left in step 1", falls[_i][1]);
    for (int i = 1; i <= 2; i++) ck_assert_int_eq(cli_number(cli_trace, "step", i, "samples"), 4);
}

/*
 * What waits ahead of the step takes the memory that its smallest chunk needs: the same step goes through in
 * the last tier, where nothing is rendered ahead.
 */
TEST("runs", nothing_is_left_beside_the_training) {
    EXPECT(0, TINY, "--phase1-epochs", "0", "--budget", "22.5MiB", "--prefetch", "64", "--trace",
           cli_trace);
    ck_says(cli_err, "tier 2, the CPU, is left in step 1",
            "went through in tier 3, one thread and nothing beside the training, all 8 samples of "
            "it");
    for (int i = 1; i <= 2; i++) ck_assert_int_eq(cli_number(cli_trace, "step", i, "samples"), 8);
}

int main(void) {
    cli_program = "smartcash";
    cli_case_named("flags");
    cli_case_named("runs");
    return suite_run_named("ex_smartcash");
}
