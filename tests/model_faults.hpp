/*
 * model_faults.hpp - every allocation of a step of some model fails in turn: for suites of models whose batches
 * are not those of networks/networks.hpp, which check_oom_networks loops over.
 *
 * Comes after the C++ headers, since check.h does.
 */
#ifndef MODEL_FAULTS_HPP
#define MODEL_FAULTS_HPP

#include <cstring>
#include <string>
#include <vector>

#include <ATen/Context.h>

#include <memtrain/torch.hpp>
#include <memtrain/trainer.h>

#include "common/slow.h"
#include "common/suite.h"

namespace model_faults {

using Bytes = std::vector<char>;
using State = std::vector<Bytes>;

/* The bytes of a tensor in `from`, which are copied out of it, or back into it. */
inline mt_status copy_out(void *user, const char *, mt_tensor *handle) {
    const at::Tensor &t = memtrain::tensor(handle);
    const char *data = static_cast<const char *>(t.const_data_ptr());
    static_cast<State *>(user)->emplace_back(data, data + t.nbytes());
    return MT_OK;
}

struct Reader {
    const State *from;
    size_t next;
};

inline mt_status copy_in(void *user, const char *, mt_tensor *handle) {
    auto *reader = static_cast<Reader *>(user);
    const Bytes &bytes = (*reader->from)[reader->next++];
    std::memcpy(memtrain::tensor(handle).data_ptr(), bytes.data(), bytes.size());
    return MT_OK;
}

/* One thread, a seed, and a model with its optimiser, whose state can be put back. */
class Subject {
public:
    template <class Make>
    explicit Subject(Make make, mt_torch_options options = MT_TORCH_OPTIONS_INIT) {
        ck_ok(mt_torch_init(nullptr));
        ck_ok(mt_torch_set_threads(1));
        ck_ok(mt_torch_seed(1));
        ck_ok(make(&model_));
        ck_ok(mt_torch_new(model_, &options, &torch_));
        ck_ok(mt_torch_backend(torch_, &backend_));
        /* What is allocated after a step is compared with what was, so gradients stay held. */
        backend_.hold_gradients = nullptr;
    }
    ~Subject() {
        mt_torch_free(torch_);
        mt_model_free(model_);
    }
    Subject(const Subject &) = delete;
    Subject &operator=(const Subject &) = delete;

    State state() const {
        State state;
        ck_ok(mt_torch_visit_state(torch_, copy_out, &state));
        at::Tensor rng = generator().get_state();
        ck_ok(copy_out(&state, "rng", memtrain::detail::Handle(rng).get()));
        return state;
    }
    void restore(const State &state) const {
        Reader reader{&state, 0};
        ck_ok(mt_torch_visit_state(torch_, copy_in, &reader));
        at::Tensor rng = generator().get_state();
        std::memcpy(rng.data_ptr(), state.back().data(), state.back().size());
        generator().set_state(rng);
    }
    static size_t allocated() {
        mt_memory memory = {};
        memory.size = sizeof memory;
        ck_ok(mt_device_memory("cpu", &memory));
        return memory.allocated_bytes;
    }

    /* A step of these chunks by a trainer of its own, of which the n-th request fails; 0: none. */
    mt_status step(const mt_batch &batch, const std::vector<size_t> &chunks, uint64_t n = 0,
                   int persistent = 0, uint64_t *out_requests = nullptr,
                   uint64_t *out_failed = nullptr) const {
        mt_trainer *trainer = nullptr;
        uint64_t requests = 0, failed = 0;
        ck_ok(mt_trainer_new(&backend_, nullptr, &trainer));
        ck_ok(mt_trainer_set_chunks(trainer, chunks.data(), chunks.size()));
        ck_ok(mt_inject_oom(n, persistent));
        mt_status status = mt_trainer_step(trainer, &batch, nullptr);
        mt_injected(&requests, &failed);
        ck_ok(mt_inject_oom(0, 0));
        mt_trainer_free(trainer);
        if (out_requests) *out_requests = requests;
        if (out_failed) *out_failed = failed;
        return status;
    }

    mt_torch *torch() const { return torch_; }
    const mt_backend &backend() const { return backend_; }

private:
    static at::Generator generator() { return at::globalContext().defaultGenerator(at::kCPU); }

    mt_model *model_ = nullptr;
    mt_torch *torch_ = nullptr;
    mt_backend backend_ = MT_BACKEND_INIT;
};

/*
 * Each stride-th request of a step fails, all of them in `make check-oom`. Once: the step ends as one without
 * a fault, to the bit. From then on: MT_EDEVMEM, and nothing has happened. Nothing is left behind.
 */
inline void every_allocation_fails(const Subject &subject, const mt_batch &batch,
                                   const std::vector<size_t> &chunks, uint64_t stride,
                                   int persistent) {
    ck_ok(subject.step(batch, chunks)); /* sets the kernels up, fills the optimiser's state */
    const State before = subject.state();
    const size_t baseline = Subject::allocated();
    uint64_t requests = 0, fired = 0, failed = 1;
    ck_ok(subject.step(batch, chunks, 0, 0, &requests));
    const State after = subject.state();
    if (is_slow()) stride = 1;
    for (uint64_t n = 1; failed; n += stride) {
        subject.restore(before);
        mt_status status = subject.step(batch, chunks, n, persistent, nullptr, &failed);
        const bool gave_up = failed && persistent;
        ck_assert_msg(status == (gave_up ? MT_EDEVMEM : MT_OK), "fault %llu: %s, '%s'",
                      static_cast<unsigned long long>(n), mt_status_name(status), mt_last_error());
        ck_assert_msg(subject.state() == (gave_up ? before : after), "fault %llu: another state",
                      static_cast<unsigned long long>(n));
        ck_assert_uint_eq(Subject::allocated(), baseline);
        fired += failed > 0;
    }
    ck_assert_uint_ge(fired, requests / stride);
}

} // namespace model_faults

#endif
