/*
 * check_ex_card.c - the five programs on the test device (tests/device/card.hpp), under libtorch's keys for CUDA, XPU and
 * MPS, or on the one device that is asked for: a run of one step, in the same chunks, ends with the loss and the weights of
 * the CPU's.
 *
 * The test device has the CPU's kernels. A real card adds in another order, and so small a step magnifies that: a ReLU that turns
 * over near zero, a batch norm over a few numbers. So a real card may be as far from the CPU as the CPU with its channels side by
 * side in memory is from itself, four times over.
 */
#include "cli.h"
#include "suite.h"
#include "program_path.h"

#include <math.h>
#include <memtrain/safetensors.h>
#include <stdio.h>
#include <unistd.h>

enum { MOST_FLAGS = 12 };

/* The learning rate is so large that what a step leaves of the weights is the gradient for a good part. */
#define EACH                                                                                       \
    "--image-size=32", "--threads=1", "--deterministic", "--workers=0", "--progress=off",          \
        "--amp=off", "--optimizer=sgd", "--lr=0.1", "--epochs=1", "--batch=4", "--micro-batch=2"

static const struct {
    const char *name;
    const char *own[MOST_FLAGS + 1];
} programs[] = {
    {"food101",
     {"--image-size=64", "--batch=8", "--micro-batch=4", "--dev-samples=40", "--steps=1"}},
    {"smartcash",
     {"--image-size=64", "--backbone=cspdarknet_small", "--scenes=4", "--validation-scenes=2",
      "--phase1-epochs=0", "--phase2-epochs=1"}},
    /* a card has random numbers of its own */
    {"prsmed", {"--text-steps=0", "--scenes=4", "--val-scenes=4", "--dropout=0"}},
    {"car_clip", {"--size=w128-l4", "--steps=1"}},
    {"profoct",
     {"--backbone=ResNet18", "--n_way=2", "--k_shot=1", "--n_query=1", "--val-episodes=1",
      "--test-episodes=1", "--episodes=4"}},
};

static const char *const kinds[] = {"cuda", "xpu", "mps"};

enum { ON_CPU, ON_CARD, SIDE_BY_SIDE, RUNS };

static char preload[2 * CLI_PATH], saved[RUNS][CLI_PATH];

/* Under a sanitizer its own library has to come first. */
static int can_preload(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__APPLE__)
    return 0;
#else
    return 1;
#endif
}

/*
 * Whether there is a card of that kind; the programs that are started see it from now on. A device that is asked for is there
 * already.
 */
static int take_card(const char *kind) {
    static const char *environment[] = {preload, NULL};
    char self[CLI_PATH];
    if (!suite_on_cpu()) return 1;
    ck_assert(ex_program_path(NULL, self, sizeof self));
    *strrchr(self, '/') = '\0';
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s/libcard_%s.so", self, kind);
    cli_environment = environment;
    return can_preload() && access(preload + strlen("LD_PRELOAD="), R_OK) == 0;
}

static void run_on(int program, const char *device, int run, const char *trace) {
    const char *arguments[CLI_MOST_ARGUMENTS + 1] = {EACH,  "--device", device,    "--trace",
                                                     trace, "--save",   saved[run]};
    int count = 0;
    while (arguments[count]) count++;
    if (run == SIDE_BY_SIDE) arguments[count++] = "--channels-last=on";
    for (int i = 0; programs[program].own[i]; i++) arguments[count++] = programs[program].own[i];
    cli_take_program(programs[program].name);
    cli_expect(0, arguments);
}

/* ---- what is compared ----------------------------------------------------------------------------- */

static void expect_near(double is, double wanted, double scale, const char *what) {
    if (fabs(is - wanted) <= 1e-5 * scale) return; /* an assertion that holds takes a while, too */
    ck_abort_msg("%s: %.9g, on the CPU %.9g", what, is, wanted);
}

/* All of a tensor's numbers, to be freed. */
static float *numbers_of(const mt_safetensors *file, size_t index, size_t *out_count) {
    mt_safetensors_tensor tensor;
    ck_ok(mt_safetensors_get(file, index, &tensor));
    float *numbers = malloc(tensor.bytes + 1);
    ck_assert_ptr_nonnull(numbers);
    ck_ok(mt_safetensors_read(file, index, 0, numbers, tensor.bytes));
    *out_count = tensor.bytes / sizeof *numbers;
    return numbers;
}

static double largest_of(const float *numbers, size_t count) {
    double largest = 0;
    for (size_t i = 0; i < count; i++) largest = fmax(largest, fabs((double)numbers[i]));
    return largest;
}

/*
 * Biases without a gradient of their own. prsmed adds one to the keys of its decoder's attentions, which adds the same to all scores
 * of a query, and softmax takes no notice of that. Its gradient is a sum that cancels to 0, but for the rounding of its parts, and
 * each device rounds them otherwise. The parts are as large as those of its weight's gradient.
 */
static const char *const without_gradient[] = {"decoder.attention.key.bias",
                                               "decoder.layer.attention.key.bias"};

static int has_no_gradient(const char *name) {
    size_t length = strlen(name);
    for (int i = 0; i < LENGTH(without_gradient); i++) {
        size_t own = strlen(without_gradient[i]);
        if (length >= own && strcmp(name + length - own, without_gradient[i]) == 0) return 1;
    }
    return 0;
}

/* What the optimiser keeps after a first step is the gradient, which of each bias is a sum that may cancel for a part. */
static int has_scale_of_weight(const char *name) {
    return has_no_gradient(name) || strncmp(name, "optimizer.", strlen("optimizer.")) == 0;
}

/* The largest number of the weight that such a bias belongs to; 0: it is none. */
static double largest_of_weight(const mt_safetensors *file, const char *bias) {
    char name[512];
    const char *end = strstr(bias, ".bias");
    size_t index, count;
    if (!has_scale_of_weight(bias) || !end || end[strlen(".bias")]) return 0;
    snprintf(name, sizeof name, "%.*s.weight", (int)(end - bias), bias);
    if (mt_safetensors_find(file, name, &index) != MT_OK) return 0;
    float *numbers = numbers_of(file, index, &count);
    double largest = largest_of(numbers, count);
    free(numbers);
    return largest;
}

/* Against the largest number of the tensor, or of the weight where the bias has no gradient, or is one. */
static void compare(mt_safetensors *const *files, size_t index, const char *name) {
    size_t other, counts[2];
    ck_ok(mt_safetensors_find(files[ON_CARD], name, &other));
    float *wanted = numbers_of(files[ON_CPU], index, &counts[0]),
          *is = numbers_of(files[ON_CARD], other, &counts[1]);
    ck_assert_uint_eq(counts[0], counts[1]);
    double scale = fmax(largest_of(wanted, counts[0]), largest_of_weight(files[ON_CPU], name));
    for (size_t i = 0; i < counts[0]; i++) expect_near(is[i], wanted[i], scale, name);
    free(wanted);
    free(is);
}

/* Weights, statistics, and what the optimiser keeps: of a first step that is the gradient. */
static void same_state(void) {
    mt_safetensors *files[2];
    size_t compared = 0;
    for (int i = 0; i < 2; i++)
        ck_ok(mt_safetensors_open(saved[i], &files[i])); /* ON_CPU, ON_CARD */
    for (size_t i = 0; i < mt_safetensors_count(files[ON_CPU]); i++) {
        mt_safetensors_tensor tensor;
        ck_ok(mt_safetensors_get(files[ON_CPU], i, &tensor));
        if (tensor.dtype != MT_ST_F32) continue;
        compare(files, i, tensor.name);
        compared++;
    }
    ck_assert_uint_gt(compared, 20);
    for (int i = 0; i < 2; i++) mt_safetensors_free(files[i]);
}

/* All that is compared as one vector: how far it is from that of the CPU's run, and how long that is. */
static double distance(int run, double *out_length) {
    mt_safetensors *files[2];
    double apart = 0, length = 0;
    ck_ok(mt_safetensors_open(saved[ON_CPU], &files[0]));
    ck_ok(mt_safetensors_open(saved[run], &files[1]));
    for (size_t i = 0; i < mt_safetensors_count(files[0]); i++) {
        mt_safetensors_tensor tensor;
        size_t other, counts[2];
        ck_ok(mt_safetensors_get(files[0], i, &tensor));
        if (tensor.dtype != MT_ST_F32) continue;
        ck_ok(mt_safetensors_find(files[1], tensor.name, &other));
        float *wanted = numbers_of(files[0], i, &counts[0]),
              *is = numbers_of(files[1], other, &counts[1]);
        ck_assert_uint_eq(counts[0], counts[1]);
        for (size_t k = 0; k < counts[0]; k++) {
            apart += pow((double)is[k] - (double)wanted[k], 2);
            length += pow((double)wanted[k], 2);
        }
        free(wanted);
        free(is);
    }
    for (int i = 0; i < 2; i++) mt_safetensors_free(files[i]);
    *out_length = sqrt(length);
    return sqrt(apart);
}

TEST_LOOP("programs", a_step_is_that_of_the_cpu,
          (suite_on_cpu() ? LENGTH(kinds) : 1) * LENGTH(programs)) {
    int program = _i % LENGTH(programs);
    const char *kind = suite_on_cpu() ? kinds[_i / LENGTH(programs)] : suite_device();
    if (!take_card(kind))
        return suite_skip("ex_card", "the test device cannot be loaded before all else");
    double loss[RUNS], length;
    for (int i = 0; i < RUNS; i++)
        snprintf(saved[i], sizeof saved[i], "%.400s/%d.safetensors", cli_root, i);
    run_on(program, "cpu", ON_CPU, cli_trace);
    loss[ON_CPU] = cli_real(cli_trace, "step", 1, "loss");
    ck_assert(loss[ON_CPU] != 0);
    run_on(program, kind, ON_CARD, cli_replayed);
    loss[ON_CARD] = cli_real(cli_replayed, "step", 1, "loss");
    if (!suite_on_real_card()) {
        expect_near(loss[ON_CARD], loss[ON_CPU], fabs(loss[ON_CPU]), "loss");
        same_state();
        return;
    }
    run_on(program, "cpu", SIDE_BY_SIDE, cli_replayed);
    loss[SIDE_BY_SIDE] = cli_real(cli_replayed, "step", 1, "loss");
    double own = 4e5 * fabs(loss[SIDE_BY_SIDE] - loss[ON_CPU]);
    expect_near(loss[ON_CARD], loss[ON_CPU], fabs(loss[ON_CPU]) + own, "loss");
    own = 4e5 * distance(SIDE_BY_SIDE, &length);
    expect_near(distance(ON_CARD, &length), 0, length + own, "the distance of the states");
}

/* Of its norms over a sample the types are those that autocast wants: others end a process on MPS, and on the test device. */
TEST("programs", profoct_in_half_precision) {
    if (!suite_on_cpu())
        return suite_skip("ex_card: profoct_in_half_precision",
                          "on the CPU it loads the card itself");
    if (!take_card("mps"))
        return suite_skip("ex_card", "the test device cannot be loaded before all else");
    cli_take_program("profoct");
    EXPECT(0, "--device=mps", "--amp=bf16", "--image-size=32", "--threads=1", "--workers=0",
           "--progress=off", "--epochs=1", "--batch=4", "--micro-batch=2", "--lr=1e-3",
           "--backbone=ResNet18", "--n_way=2", "--k_shot=1", "--n_query=1", "--val-episodes=1",
           "--test-episodes=1", "--episodes=4");
}

/*
 * --amp auto is fp16 on whichever card computes in it, be it CUDA or not. Its scaler is then in the file. MPS, where the library does
 * without, has none, and who asks for fp16 there is told so as any wrong flag is.
 */
TEST_LOOP("programs", half_precision_by_itself, (suite_on_cpu() ? LENGTH(kinds) : 1)) {
    const char *kind = suite_on_cpu() ? kinds[_i] : suite_device();
    const int is_mps = strcmp(kind, "mps") == 0;
    mt_safetensors *file = NULL;
    size_t index;
    if (!take_card(kind))
        return suite_skip("ex_card", "the test device cannot be loaded before all else");
    snprintf(saved[0], sizeof saved[0], "%.400s/0.safetensors", cli_root);
    cli_take_program("food101");
    EXPECT(0, "--device", kind, "--amp=auto", "--image-size=64", "--batch=4", "--dev-samples=40",
           "--steps=1", "--epochs=1", "--threads=1", "--workers=0", "--progress=off", "--save",
           saved[0]);
    ck_ok(mt_safetensors_open(saved[0], &file));
    ck_assert_int_eq(mt_safetensors_find(file, "amp.scaler", &index), is_mps ? MT_EINVAL : MT_OK);
    mt_safetensors_free(file);
    for (int i = 0; is_mps && i < LENGTH(programs); i++) {
        cli_take_program(programs[i].name);
        EXPECT(2, "--device", kind, "--amp=fp16");
        ck_contains(cli_err, "--amp: 'fp16' cannot be used on mps");
    }
}

int main(void) {
    cli_case_named("programs");
    return suite_run_named("ex_card");
}
