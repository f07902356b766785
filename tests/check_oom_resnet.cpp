/*
 * check_oom_resnet.cpp - every single allocation of a real ResNet-18 step fails in turn.
 *
 * Transient: the step recovers and ends bit-equal to a step without a fault. Persistent: the step
 * gives up with MT_EDEVMEM and everything is as it was before. `make check` runs two chunks of 2
 * pictures of 32 pixels with SGD; MT_TEST_SLOW=1 (make check-oom) larger chunks and all optimisers.
 */
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "../bench/bench.hpp"

#include <check.h> /* last: its macro fail would break C++ headers */

namespace {

struct Setting {
    const char *name;
    mt_optimizer optimizer;
    int64_t side;
    std::vector<size_t> chunks;
};

const std::vector<Setting> quick = {{"sgd", MT_SGD, 32, {2, 2}}};
const std::vector<Setting> slow = {
    {"sgd", MT_SGD, 64, {5, 4}}, {"adam", MT_ADAM, 32, {3, 2}}, {"adamw", MT_ADAMW, 64, {4, 4}}};

/* Each setting is split over several test processes: the n-th of them takes every PARTS-th fault. */
enum { PARTS = 4 };

const std::vector<Setting> &settings() {
    const char *text = std::getenv("MT_TEST_SLOW");
    return text && *text == '1' ? slow : quick;
}

using State = std::map<std::string, std::vector<char>>;

mt_status copy_out(void *user, const char *name, mt_tensor *handle) {
    const at::Tensor &t = memtrain::tensor(handle);
    const char *data = static_cast<const char *>(t.data_ptr());
    (*static_cast<State *>(user))[name].assign(data, data + t.nbytes());
    return MT_OK;
}

mt_status copy_in(void *user, const char *name, mt_tensor *handle) {
    const at::Tensor &t = memtrain::tensor(handle);
    std::memcpy(t.data_ptr(), (*static_cast<State *>(user))[name].data(), t.nbytes());
    return MT_OK;
}

/* The first name whose bytes differ from those in the state given, or "". */
struct Comparison {
    const State *expected;
    std::string different;
    size_t tensors = 0;
};

mt_status compare(void *user, const char *name, mt_tensor *handle) {
    auto &c = *static_cast<Comparison *>(user);
    const at::Tensor &t = memtrain::tensor(handle);
    c.tensors++;
    if (std::memcmp(t.data_ptr(), c.expected->at(name).data(), t.nbytes()) != 0 &&
        c.different.empty())
        c.different = name;
    return MT_OK;
}

struct Fixture {
    const Setting &setting;
    bench::Batch batch;
    mt_model *model;
    mt_torch *torch = nullptr;
    mt_backend backend = MT_BACKEND_INIT;
    mt_trainer *trainer = nullptr;

    explicit Fixture(const Setting &s, int64_t count)
        : setting(s), batch(count, s.side, 10), model(bench::resnet18(10)) {
        mt_torch_options options = MT_TORCH_OPTIONS_INIT;
        options.optimizer = s.optimizer;
        options.clip_norm = 1.0;
        bench::must(mt_torch_new(model, &options, &torch), "torch");
        bench::must(mt_torch_backend(torch, &backend), "backend");
        bench::must(mt_trainer_new(&backend, nullptr, &trainer), "trainer");
    }
    ~Fixture() {
        mt_trainer_free(trainer);
        mt_torch_free(torch);
        mt_model_free(model);
    }
    mt_status step(uint64_t fault, int persistent, mt_step_report *report) {
        const auto &chunks = setting.chunks;
        bench::must(mt_trainer_set_chunks(trainer, chunks.data(), chunks.size()), "chunks");
        bench::must(mt_inject_oom(fault, persistent), "inject");
        mt_status status = mt_trainer_step(trainer, &batch.batch, report);
        return status;
    }
    State state() {
        State s;
        bench::must(mt_torch_visit_state(torch, copy_out, &s), "visit");
        return s;
    }
    void restore(State &s) { bench::must(mt_torch_visit_state(torch, copy_in, &s), "visit"); }
    void expect(const State &s, uint64_t fault) {
        Comparison c{&s, "", 0};
        bench::must(mt_torch_visit_state(torch, compare, &c), "visit");
        ck_assert_msg(c.different.empty(), "%s, fault %llu: %s differs", setting.name,
                      static_cast<unsigned long long>(fault), c.different.c_str());
        ck_assert_uint_eq(c.tensors, s.size());
    }
    size_t allocated() {
        mt_memory memory = {};
        memory.size = sizeof memory;
        bench::must(mt_device_memory("cpu", &memory), "memory");
        return memory.allocated_bytes;
    }
};

size_t count_of(const Setting &s) {
    size_t count = 0;
    for (size_t m : s.chunks) count += m;
    return count;
}

/* Part `part` of all faults; returns the number of faults that fired. */
uint64_t all_faults(Fixture &f, int part, int persistent) {
    mt_step_report report = MT_STEP_REPORT_INIT;
    uint64_t requests, failed, fired = 0;
    ck_assert_int_eq(f.step(0, 0, nullptr), MT_OK); /* set-up of the kernels */
    State before = f.state();
    ck_assert_int_eq(f.step(0, 0, nullptr), MT_OK);
    State after = f.state();
    f.restore(before);
    size_t baseline = f.allocated();
    for (uint64_t n = 1 + static_cast<uint64_t>(part);; n += PARTS) {
        mt_status status = f.step(n, persistent, &report);
        mt_injected(&requests, &failed);
        bench::must(mt_inject_oom(0, 0), "inject");
        ck_assert_msg(f.allocated() == baseline, "fault %llu: %zu bytes are held, %zu before",
                      static_cast<unsigned long long>(n), f.allocated(), baseline);
        if (!failed) {
            ck_assert_int_eq(status, MT_OK);
            return fired;
        }
        fired++;
        if (persistent) {
            ck_assert_msg(status == MT_EDEVMEM, "fault %llu: %s: %s",
                          static_cast<unsigned long long>(n), mt_status_name(status),
                          mt_last_error());
            f.expect(before, n);
        } else {
            ck_assert_msg(status == MT_OK, "fault %llu: %s: %s", static_cast<unsigned long long>(n),
                          mt_status_name(status), mt_last_error());
            ck_assert_uint_eq(report.retries, 1);
            f.expect(after, n);
            f.restore(before);
        }
    }
}

void run_part(int index, int persistent) {
    const Setting &s = settings()[static_cast<size_t>(index / PARTS)];
    bench::must(mt_torch_init(nullptr), "init");
    bench::must(mt_torch_set_threads(1), "threads");
    bench::must(mt_torch_seed(1), "seed");
    Fixture f(s, static_cast<int64_t>(count_of(s)));
    uint64_t fired = all_faults(f, index % PARTS, persistent);
    std::printf("%s, %s, part %d of %d: %llu faults\n", s.name,
                persistent ? "persistent" : "transient", index % PARTS + 1, PARTS,
                static_cast<unsigned long long>(fired));
    std::fflush(stdout);
    ck_assert_uint_gt(fired, 100); /* a step of ResNet-18 makes more than 500 requests a chunk */
}

START_TEST(a_fault_is_recovered_from) {
    run_part(_i, 0);
}
END_TEST

START_TEST(a_lasting_fault_changes_nothing) {
    run_part(_i, 1);
}
END_TEST

/* Keeps freed pages: thousands of steps would spend a third of their time on page faults. */
void keep_pages() {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

} // namespace

int main() {
    keep_pages();
    Suite *suite = suite_create("oom_resnet");
    TCase *tcase = tcase_create("every allocation");
    int tests = static_cast<int>(settings().size()) * PARTS;
    tcase_set_timeout(tcase, 1200);
    tcase_add_loop_test(tcase, a_fault_is_recovered_from, 0, tests);
    tcase_add_loop_test(tcase, a_lasting_fault_changes_nothing, 0, tests);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
