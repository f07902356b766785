/*
 * model_faults.hpp - every allocation of a step of some model fails in turn: for suites of models whose batches
 * are not those of networks/networks.hpp, which check_oom_networks loops over.
 *
 * Comes after the C++ headers, since check.h does.
 */
#ifndef MODEL_FAULTS_HPP
#define MODEL_FAULTS_HPP

#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/from_blob.h>

#include <memtrain/torch.hpp>
#include <memtrain/trainer.h>

#include "settled.hpp"

#include "slow.h"
#include "suite.h"

namespace model_faults {

using Bytes = std::vector<char>;
using State =
    std::vector<Bytes>; /* parameters, buffers, what the optimiser keeps; the generator's */

/* A step of these chunks on a batch. Tensors of a simulated card are the host's. */
struct Step {
    mt_torch *torch;
    mt_backend backend;
    const mt_batch *batch;
    std::vector<size_t> chunks;
    const char *device = suite_on_card() ? suite_device() : "cpu";

    at::Generator generator() const {
        return at::globalContext().defaultGenerator(at::Device(device));
    }
    size_t allocated() const {
        mt_memory memory = {};
        memory.size = sizeof memory;
        ck_ok(mt_device_memory(device, &memory));
        return memory.allocated_bytes;
    }
};

inline Bytes bytes_of(const at::Tensor &tensor) {
    at::Tensor host = tensor.cpu().contiguous();
    const char *data = static_cast<const char *>(host.const_data_ptr());
    return {data, data + host.nbytes()};
}

/* The bytes of a tensor in `from`, which are copied out of it, back into it, or compared. */
inline mt_status copy_out(void *user, const char *, mt_tensor *handle) {
    static_cast<State *>(user)->push_back(bytes_of(memtrain::tensor(handle)));
    return MT_OK;
}

struct Reader {
    const State *from;
    size_t next = 0;
    bool is_equal = true;
};

inline mt_status copy_in(void *user, const char *, mt_tensor *handle) {
    auto *reader = static_cast<Reader *>(user);
    Bytes bytes = (*reader->from)[reader->next++];
    at::Tensor to = memtrain::tensor(handle).variable_data();
    to.copy_(at::from_blob(bytes.data(), to.sizes(), at::device(at::kCPU).dtype(to.dtype())));
    return MT_OK;
}

inline mt_status compare(void *user, const char *, mt_tensor *handle) {
    auto *reader = static_cast<Reader *>(user);
    const Bytes &bytes = reader->from->at(reader->next++);
    reader->is_equal = reader->is_equal && bytes_of(memtrain::tensor(handle)) == bytes;
    return MT_OK;
}

inline State state_of(const Step &step) {
    State state;
    ck_ok(mt_torch_visit_state(step.torch, copy_out, &state));
    at::Tensor rng = step.generator().get_state();
    ck_ok(copy_out(&state, "rng", memtrain::detail::Handle(rng).get()));
    return state;
}

inline void restore(const Step &step, const State &state) {
    Reader reader{&state};
    ck_ok(mt_torch_visit_state(step.torch, copy_in, &reader));
    at::Tensor rng = step.generator().get_state();
    std::memcpy(rng.data_ptr(), state.back().data(), state.back().size());
    step.generator().set_state(rng);
}

inline bool is_state(const Step &step, const State &state) {
    Reader reader{&state};
    ck_ok(mt_torch_visit_state(step.torch, compare, &reader));
    at::Tensor rng = step.generator().get_state();
    ck_ok(compare(&reader, "rng", memtrain::detail::Handle(rng).get()));
    return reader.is_equal && reader.next == state.size();
}

struct Injected {
    uint64_t requests = 0, failed = 0;
};

/* By a trainer of its own; the n-th request fails, none where n is 0. */
inline mt_status run(const Step &step, uint64_t n, int persistent, Injected *out) {
    mt_trainer *trainer = nullptr;
    ck_ok(mt_trainer_new(&step.backend, nullptr, &trainer));
    ck_ok(mt_trainer_set_chunks(trainer, step.chunks.data(), step.chunks.size()));
    ck_ok(mt_inject_oom(n, persistent));
    mt_status status = mt_trainer_step(trainer, step.batch, nullptr);
    mt_injected(&out->requests, &out->failed);
    ck_ok(mt_inject_oom(0, 0));
    mt_trainer_free(trainer);
    return status;
}

/* Whether the step ends in this state once more. On a card some kernels add in no fixed order. */
inline bool is_repeated(const Step &step, const State &before, const State &after) {
    Injected clean;
    restore(step, before);
    ck_ok(run(step, 0, 0, &clean));
    return is_state(step, after);
}

/*
 * Each stride-th request of the step fails, all of them in `make check-oom`. Once: the step ends as one without
 * a fault, to the bit. From then on: MT_EDEVMEM, and nothing has happened. Nothing is left behind.
 */
inline void every_allocation_fails(Step step, uint64_t stride, int persistent, const char *name) {
    const auto start = std::chrono::steady_clock::now();
    Injected clean, injected;
    uint64_t fired = 0;
    if (is_slow()) stride = 1;
    step.backend.hold_gradients = nullptr; /* what is allocated is compared with what was */
    ck_ok(run(step, 0, 0, &clean));        /* sets the kernels up, fills the optimiser's state */
    const State before = state_of(step);
    const size_t baseline = step.allocated();
    ck_ok(run(step, 0, 0, &clean));
    const State after = state_of(step);
    const bool has_order = !suite_on_real_card() || is_repeated(step, before, after);
    if (!has_order) suite_skip(name, "two steps without faults end in other bits on this card");
    ck_assert_uint_gt(clean.requests, 300); /* else nothing was counted, and nothing will fail */
    for (uint64_t n = 1; n == 1 || injected.failed; n += stride) {
        restore(step, before);
        mt_status status = run(step, n, persistent, &injected);
        const bool gave_up = injected.failed && persistent;
        ck_assert_msg(status == (gave_up ? MT_EDEVMEM : MT_OK), "%s, fault %llu: %s, '%s'", name,
                      static_cast<unsigned long long>(n), mt_status_name(status), mt_last_error());
        ck_assert_msg(!(gave_up || has_order) || is_state(step, gave_up ? before : after),
                      "%s, fault %llu: another state", name, static_cast<unsigned long long>(n));
        ck_assert_uint_eq(settled(baseline, [&] { return step.allocated(); }), baseline);
        fired += injected.failed > 0;
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("%s, %s: %llu faults of N = %llu, %.0f s\n", name,
                persistent ? "persistent" : "transient", static_cast<unsigned long long>(fired),
                static_cast<unsigned long long>(clean.requests), seconds.count());
    std::fflush(stdout);
    ck_assert_uint_ge(fired, clean.requests / stride);
}

} // namespace model_faults

#endif
