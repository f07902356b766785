/*
 * check_ex_conv.c - examples/conv.c: a model of operators called from C, as mt_trainer drives it, and the
 * program as a person runs it.
 */
#include "cli.h"

int program_main(int argc, char **argv);
#define main program_main /* the program's own is not called */
#include "conv.c"
#undef main

/* ---- the model --------------------------------------------------------------------------------- */

enum { FEW = 7 }; /* pictures of a batch, in chunks of 4 and 3 */

static const size_t chunks[] = {4, 3};

/* The network with its trainer, and a batch. */
typedef struct subject {
    run run;
    mt_tensor *tensors[2];
    mt_torch_batch data;
    mt_batch batch;
} subject;

static void open_subject(subject *s, const char *device, size_t budget) {
    static const int64_t shape[] = {FEW, 1, SIDE, SIDE};
    s->run.flags = (flags){device, budget, FEW, 0, 1, 1, 1e-2, 0};
    ck_ok(mt_torch_set_threads(1));
    ck_ok(start(&s->run));
    for (size_t i = 0; i < FEW; i++) {
        draw_picture(1, i, s->run.pixels + i * PIXELS);
        s->run.labels[i] = (int64_t)i;
    }
    ck_ok(mt_tensor_from_memory(s->run.pixels, MT_FLOAT32, 4, shape, &s->tensors[0]));
    ck_ok(mt_tensor_from_memory(s->run.labels, MT_INT64, 1, shape, &s->tensors[1]));
    s->data = (mt_torch_batch){sizeof s->data, s->tensors, 2};
    s->batch = (mt_batch){sizeof s->batch, &s->data, FEW, 0};
}

static void close_subject(subject *s) {
    mt_tensor_free(s->tensors[0]);
    mt_tensor_free(s->tensors[1]);
    mt_trainer_free(s->run.trainer);
    mt_torch_free(s->run.torch);
    mt_model_free(s->run.model);
}

/* A step in two chunks; its n-th request for memory fails, none where n is 0. */
static mt_status step(subject *s, uint64_t n, int persistent, uint64_t *failed) {
    uint64_t requests;
    ck_ok(mt_trainer_set_chunks(s->run.trainer, chunks, 2));
    ck_ok(mt_inject_oom(n, persistent));
    mt_status status = mt_trainer_step(s->run.trainer, &s->batch, NULL);
    mt_injected(&requests, failed);
    ck_ok(mt_inject_oom(0, 0));
    return status;
}

static size_t allocated(void) {
    mt_memory memory = {.size = sizeof memory};
    ck_ok(mt_device_memory("cpu", &memory));
    return memory.allocated_bytes;
}

static const char *const devices[] = {"cpu", "sim:cuda", "sim:mps"};

/* Statistics of the norms, dropout's numbers and the optimiser included. */
static void hashes_of_two_steps(const char *device, char one[65], char two[65]) {
    static subject s;
    uint64_t failed;
    memset(&s, 0, sizeof s);
    open_subject(&s, device, (size_t)64 << 20);
    ck_ok(step(&s, 0, 0, &failed));
    ck_ok(mt_torch_state_sha256(s.run.torch, one));
    ck_ok(step(&s, 0, 0, &failed));
    ck_ok(mt_torch_state_sha256(s.run.torch, two));
    close_subject(&s);
}

/*
 * Once: the step ends as one without a fault, to the bit. From then on: nothing has happened, and what a
 * forward pass that failed had made is gone.
 */
static void every_request_fails(const char *device, int persistent, uint64_t stride) {
    static subject s;
    char first[65], second[65], now[65];
    uint64_t failed = 1, n = 0;
    hashes_of_two_steps(device, first, second);
    ck_assert_str_ne(first, second);
    for (n = 1; failed; n += stride) {
        memset(&s, 0, sizeof s);
        open_subject(&s, device, (size_t)64 << 20);
        ck_ok(step(&s, 0, 0, &failed));
        size_t before = allocated();
        mt_status status = step(&s, n, persistent, &failed);
        ck_status(status, failed && persistent ? MT_EDEVMEM : MT_OK);
        ck_ok(mt_torch_state_sha256(s.run.torch, now));
        ck_assert_str_eq(now, status == MT_OK ? second : first);
        if (status != MT_OK) ck_assert_uint_eq(allocated(), before);
        close_subject(&s);
    }
    ck_assert_uint_gt(n, 120);
}

TEST_LOOP("model", a_step_recovers_to_the_bit, LENGTH(devices)) {
    every_request_fails(devices[_i], 0, _i ? 13 : 3);
}

TEST_LOOP("model", a_step_that_cannot_be_done_is_taken_back, LENGTH(devices)) {
    every_request_fails(devices[_i], 1, _i ? 29 : 13);
}

static mt_status compare_kept(void *user, const char *name, mt_tensor *tensor) {
    double *sum = user;
    mt_value value;
    mt_tensor *total = NULL;
    if (!strstr(name, "running")) return MT_OK;
    ck_ok(mt_tensor_new(&total));
    ck_ok(CALL(total, "aten::sum", T(tensor)));
    ck_ok(mt_call("aten::item", MT_VALUES(T(total)), MT_NO_KEYWORDS, &value, 1, NULL));
    *sum = *sum * 3 + value.is.real;
    mt_tensor_free(total);
    return MT_OK;
}

/* Training changes the statistics of the norms; evaluation uses them, and leaves them as they are. */
TEST("model", statistics_are_trained) {
    static subject s;
    double fresh = 0, trained = 0, evaluated = 0;
    uint64_t failed;
    open_subject(&s, "cpu", (size_t)64 << 20);
    ck_ok(mt_torch_visit_state(s.run.torch, compare_kept, &fresh));
    ck_ok(step(&s, 0, 0, &failed));
    ck_ok(mt_torch_visit_state(s.run.torch, compare_kept, &trained));
    ck_ok(mt_trainer_evaluate(s.run.trainer, &s.batch, NULL));
    ck_ok(mt_torch_visit_state(s.run.torch, compare_kept, &evaluated));
    ck_assert_double_ne(fresh, trained);
    ck_assert_double_eq(trained, evaluated);
    close_subject(&s);
}

/* A model that is wrong is told of in the words of the operator. */
TEST("model", a_loss_that_fails) {
    static subject s;
    open_subject(&s, "cpu", (size_t)64 << 20);
    mt_tensor *swapped[] = {s.tensors[1], s.tensors[0]};
    s.data.tensors = swapped;
    ck_refused(mt_trainer_step(s.run.trainer, &s.batch, NULL), MT_ETORCH, "aten::conv2d: ");
    close_subject(&s);
}

/* ---- the program ------------------------------------------------------------------------------- */

TEST("program", it_learns_inside_its_budget) {
    double accuracy = 0, peak = 0, budget = 0;
    size_t smallest = 0, largest = 0;
    EXPECT(0, "--epochs", "2");
    ck_assert_str_eq(cli_err, "");
    const char *epoch = strstr(cli_out, "epoch 2 ");
    ck_assert_ptr_nonnull(epoch);
    ck_assert_int_eq(sscanf(strstr(epoch, "accuracy"), "accuracy %lf", &accuracy), 1);
    ck_assert_msg(accuracy > 50, "%s", cli_out);
    const char *last = strstr(cli_out, "chunks of ");
    ck_assert_ptr_nonnull(last);
    int read = sscanf(last, "chunks of %zu to %zu for batch 128, peak %lf MiB of %lf MiB, OOMs",
                      &smallest, &largest, &peak, &budget);
    ck_assert_msg(read == 4, "%s", last);
    ck_assert_uint_ge(smallest, 2);
    ck_assert_uint_lt(largest, 128);
    ck_assert_double_le(peak, budget);
}

static const struct {
    const char *flag, *value, *words;
    int status;
} answers[] = {
    {"--help", NULL, "", 0},
    {"--batch", "1", "from 2 to 1024", 2},
    {"--micro-batch", "half", "from 2 to 1024", 2},
    {"--budget", "much", "a size such as", 2},
    {"--lr", "0", "from", 2},
    {"--device", "toaster", "--device: 'toaster' is not accepted", 2},
    {"--bogus", NULL, "--bogus", 2},
    {"--budget", "300KiB", "does not fit", 3},
    {"--micro-batch", "128", "A batch of 128 samples does not fit", 3},
};

TEST_LOOP("program", flags_and_exit_statuses, LENGTH(answers)) {
    EXPECT(answers[_i].status, answers[_i].flag, answers[_i].value);
    ck_contains(cli_err, answers[_i].words);
    if (answers[_i].status == 0) ck_contains(cli_out, "--micro-batch N|auto");
    if (answers[_i].status == 2) cli_one_line("conv: ");
}

int main(void) {
    cli_program = "conv";
    cli_case_named("program");
    return suite_run_named("ex_conv");
}
