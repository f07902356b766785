/*
 * contrastive.hpp - models with embeddings: the gradient of a whole batch's loss over pairs, chunk by
 * chunk, by cached embeddings (Gao et al. 2021, arXiv 2101.06983).
 *
 * With e_i = f(x_i; w) and L(e_1, ..., e_B; v), dL/dw is the sum over i of (de_i/dw)^T u_i, u_i = dL/de_i.
 * It is exact, since e_i depends on its own sample alone: first all e_i without a graph, then L and all
 * u_i (and dL/dv), then each chunk once more with a graph, and backward from its u_i.
 */
#ifndef MEMTRAIN_SHIM_CONTRASTIVE_HPP
#define MEMTRAIN_SHIM_CONTRASTIVE_HPP

#include <vector>

#include "arena.hpp"
#include "model.hpp"
#include "snapshot.hpp"

namespace memtrain::shim {

/* Throws Failure unless so many chunks of at least a sample are within the samples of the batch. */
void check_chunks(const char *function, const size_t *chunks, size_t count, size_t samples);

/* MT_OK where the model has embeddings, or has none, as is wanted; else MT_ENOTSUP. */
mt_status check_cached(const char *function, const mt_torch &torch, bool wanted);

/* Embeddings of a whole batch, their rows in the order of its samples. They lie in no arena. */
class Embeddings {
public:
    /* Copies those of samples [first, first + count) of total. The first ones tell shapes and dtypes. */
    void put(const std::vector<at::Tensor> &chunk, size_t first, size_t count, size_t total);
    std::vector<at::Tensor> take() { return std::move(tensors_); }
    const std::vector<at::Tensor> &tensors() const { return tensors_; }
    void clear() noexcept { tensors_.clear(); }

private:
    void make(const std::vector<at::Tensor> &chunk, size_t total);
    std::vector<at::Tensor> tensors_;
};

/* What prepare leaves for the chunks of a step. */
class CachedStep {
public:
    /*
     * The step's work up to the chunks' own: embeddings, of such chunks, join, and its backward pass. deferred: nothing is
     * waited for.
     */
    void prepare(mt_torch &torch, const cpu::Kind &kind, const size_t *chunks, size_t count,
                 bool deferred);

    /* The next chunk, forward and backward. */
    void accumulate(mt_torch &torch, mt_chunk_result &result);

    /* MT_ESTATE unless these samples are the next chunk; unless all chunks have run. */
    mt_status check_next(const char *function, size_t first, size_t count) const;
    mt_status check_done(const char *function) const;

    /* Releases it all, and allocates nothing. */
    void clear() noexcept;

private:
    struct Told {
        size_t first, count;
        RngState rng;   /* as the chunk found it */
        double seconds; /* its share of what was prepared; 0 where that was not waited for */
    };
    void embed(mt_torch &torch, const cpu::Kind &kind, Told &told, Embeddings &all, bool deferred);
    void join(mt_torch &torch, Embeddings &all);
    void backward(mt_torch &torch, const Told &told, std::vector<at::Tensor> &&embeddings) const;
    void fill_result(mt_torch &torch, const Told &told, mt_chunk_result &result) const;

    std::vector<Told> told_;
    size_t next_ = 0, samples_ = 0;
    RngState after_;                    /* as join left it */
    std::vector<at::Tensor> gradients_; /* of the embeddings; undefined where there is none */
    Loss values_;                       /* of the batch */
};

/* An evaluation of one batch, whose chunks come by several calls. */
class CachedEvaluation {
public:
    /* MT_ESTATE unless the chunk begins a batch or goes on with the last one's. */
    mt_status check_next(const char *function, const mt_batch &batch, size_t first) const;

    /* Embeddings of a chunk; at the end of the batch loss and metrics too. */
    void run(mt_torch &torch, const mt_torch_batch &own, const mt_batch &batch, size_t first,
             size_t count, mt_chunk_result &result);

    /* So many samples of the chunk have gone through: all of them, or none. */
    void end_chunk(size_t first, size_t count) noexcept;
    void clear() noexcept;

private:
    Embeddings all_;
    size_t done_ = 0, samples_ = 0;
    uint64_t id_ = 0;
};

} // namespace memtrain::shim
#endif
