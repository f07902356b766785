/*
 * contrastive_subject.hpp - two small towers that are trained by cached embeddings, and a step of them. Comes after the C++
 * headers, since check.h does.
 */
#ifndef CONTRASTIVE_SUBJECT_HPP
#define CONTRASTIVE_SUBJECT_HPP

#include "networks/towers.hpp"

#include "check_shim.hpp"

namespace contrastive_subject {

using namespace check_shim;
using networks::Pairs;
using networks::TowersImpl;
using networks::TowersOptions;

/* Small enough for thousands of steps. */
inline TowersOptions towers(double dropout, bool shared = false) {
    TowersOptions o;
    o.image.side = 16;
    o.image.width = 24;
    o.image.depth = 1;
    o.image.dropout = dropout;
    o.length = 6;
    o.embedding = 8;
    o.shared = shared;
    return o;
}

/* The towers with their optimiser, seeded. */
struct Subject {
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    std::shared_ptr<TowersImpl> net;
    mt_backend seam = MT_BACKEND_INIT;

    Subject(const TowersOptions &o, const mt_torch_options &options,
            at::ScalarType type = at::kFloat) {
        ck_ok(mt_torch_init(nullptr));
        ck_ok(mt_torch_set_threads(1));
        ck_ok(mt_torch_seed(7));
        ck_ok(memtrain::make_model(&model, [&] {
            net = std::make_shared<TowersImpl>(o);
            net->to(type);
            return networks::contrastive(net);
        }));
        ck_ok(mt_torch_new(model, &options, &torch));
        ck_ok(mt_torch_backend(torch, &seam));
    }
    ~Subject() {
        mt_torch_free(torch);
        mt_model_free(model);
    }
    Subject(const Subject &) = delete;
    Subject &operator=(const Subject &) = delete;

    std::string hash() const {
        char text[65];
        ck_ok(mt_torch_state_sha256(torch, text));
        return text;
    }
    mt_memory memory() const {
        mt_memory now = {};
        now.size = sizeof now;
        ck_ok(seam.memory(seam.self, &now));
        return now;
    }
};

/* What the chunks of a step came to. */
struct Sums {
    double loss = 0, units = 0, metric = 0, seconds = 0;
    size_t peak = 0;
};

inline void add(Sums &sums, const mt_chunk_result &result) {
    sums.loss += result.loss_sum;
    sums.units += result.units;
    sums.metric += result.metric_sums[0];
    sums.seconds += result.seconds;
    sums.peak = std::max(sums.peak, result.peak_bytes);
}

inline mt_status prepare(const Subject &s, const std::vector<size_t> &chunks,
                         size_t *peak = nullptr) {
    mt_chunk_result result = chunk_result();
    mt_status status = mt_prepare(s.torch, chunks.data(), chunks.size(), &result);
    if (peak) *peak = result.peak_bytes;
    return status;
}

/* begin, prepare, chunks; the step stays open. */
inline Sums run(const Subject &s, const Pairs &pairs, const std::vector<size_t> &chunks) {
    Sums sums;
    size_t first = 0;
    ck_ok(mt_begin(s.torch, &pairs.batch));
    ck_ok(prepare(s, chunks, &sums.peak));
    for (size_t count : chunks) {
        mt_chunk_result result = chunk_result();
        ck_ok(mt_accumulate(s.torch, first, count, 1.0, &result));
        add(sums, result);
        first += count;
    }
    return sums;
}

inline void apply(const Subject &s) {
    mt_apply_result applied = apply_result();
    ck_ok(mt_apply(s.torch, &applied));
}

} // namespace contrastive_subject
#endif
