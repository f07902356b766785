/*
 * check_runs.hpp - what mt_torch_check runs: a few samples of a batch as a step that is taken back, and what is
 * kept of it. What the results mean is judged in check.cpp.
 */
#ifndef MEMTRAIN_SHIM_CHECK_RUNS_HPP
#define MEMTRAIN_SHIM_CHECK_RUNS_HPP

#include <memory>
#include <string>
#include <optional>
#include <vector>

#include "bytes.hpp"
#include "check_samples.hpp"
#include "torch_state.hpp"

namespace memtrain::shim {

/*
 * A gradient in a few numbers a parameter, since a copy of it may not fit: each element is added, with a sign, to one
 * of 16 sums (Charikar, Chen and Farach-Colton 2002, count sketch). Sign and sum follow from the element's place
 * alone, so sketches add up as gradients do, and the length of a difference is that of the gradients' difference in
 * the mean over signs.
 */
class Sketch {
public:
    static constexpr size_t sums = 16;

    /* Of the parameters' gradients, each times factor. */
    void take(const Flat &flat, double factor);

    /* Of these tensors; of a type that has no numbers the bytes. */
    void take(const std::vector<Named> &tensors);

    /* this = this + other * factor; an empty one is zero. */
    void add(const Sketch &other, double factor);

    /* L2 length, of all parameters or of one. */
    double length() const;
    double length_of(size_t parameter) const;

    /* The number of the first parameter with a gradient that is not finite; their number where there is none. */
    size_t first_not_finite() const;

    /* Scalar product. */
    double times(const Sketch &other) const;

    /* The same numbers; what is not finite equals what is not finite. */
    bool equals(const Sketch &other) const;

private:
    std::vector<double> values_; /* sums of them a parameter */
};

/* What a run has given. */
struct RunResult {
    double loss_sum = 0.0, units = 0.0;
    double metrics[MT_METRICS_MAX] = {};
    Sketch gradient;               /* of the mean loss; empty without a backward pass */
    std::vector<size_t> untouched; /* numbers of slots that train and received no gradient */
    bool drew = false;             /* random numbers */
    std::optional<size_t> written; /* the batch's tensor that the forward pass writes to */
    /* Of a run with a graph and no backward pass; in_half: some of it has fewer bits than float32. */
    bool has_graph = false, has_metrics = false, in_half = false;

    double loss() const { return units > 0.0 ? loss_sum / units : 0.0; }
};

/* Buffers as chunks in training mode leave them. */
struct StateResult {
    std::vector<Named> buffers;
    std::vector<bool>
        is_norms; /* a running mean or variance of a norm over the samples, or its counter */
    Sketch before, after;
};

/*
 * Copies of parameters in plain memory of the host's. What is written by a pointer changes no version counter, so the
 * step that is rolled back has not seen it.
 */
class ParameterCopies {
public:
    explicit ParameterCopies(const mt_model &model);

    /* Puts back those that have changed. Allocates no memory of a device's. */
    void put_back();

    /* The names of those that were put back, each once. */
    const std::vector<std::string> &changed() const { return changed_; }

private:
    std::vector<Named> parameters_;
    std::vector<std::vector<char>> bytes_;
    std::vector<std::string> changed_;
};

enum class Mode { training, evaluation };

/* How far a run goes: the forward pass without a graph or with one, or the backward pass too. */
enum class Depth { forward, graph, backward };

/*
 * Runs of parts of a batch. A part is a few samples, as many as the smallest chunk has, so that each chunk of parts is
 * one that training may see too. While the object lives planned memory and chosen segments are left alone: what is
 * run here is not what they are to learn from.
 */
class Runs {
public:
    Runs(mt_torch &torch, const mt_torch_batch &batch, size_t count, size_t part, size_t parts);
    ~Runs();
    Runs(const Runs &) = delete;
    Runs &operator=(const Runs &) = delete;

    /* Without autocast from now on, whose rounding would hide what is looked for. */
    void in_full_precision() { torch_.amp = MT_DTYPE_NONE; }

    /* All segments forget from now on: less memory, and the same bits. */
    void compute_again() { torch_.checkpointing |= torch_.model->checkpoints; }

    /*
     * These parts as one chunk, in this order, or with embeddings as chunks of these numbers of parts; taken back.
     * None: the whole batch. Not MT_OK: the line says why.
     */
    mt_status run(Mode mode, Depth depth, const std::vector<size_t> &parts,
                  const std::vector<size_t> &chunks, RunResult &out);

    /* What these parts as such chunks make of the buffers; others: with other random numbers. */
    mt_status run_state(const std::vector<size_t> &parts, const std::vector<size_t> &chunks,
                        bool others, StateResult &out);

    size_t part() const { return part_; }
    size_t parts() const { return parts_.first.size(); }
    size_t batch() const { return count_; }
    bool are_alike() const { return parts_.are_alike; }

    /* Parameters that are written to in a way that no step sees. */
    const std::vector<std::string> &written() const { return copies_.changed(); }

private:
    template <class Body> mt_status taken_back(const std::vector<size_t> &parts, Body &&body);
    mt_status chunk(size_t samples, RunResult &out);
    void forward(bool with_graph, size_t first, size_t samples, RunResult &out);
    mt_status chunks(const std::vector<size_t> &chunks, RunResult &out);
    std::vector<at::Tensor> gather(const std::vector<size_t> &parts) const;

    mt_torch &torch_;
    const mt_torch_batch &batch_;
    size_t count_, part_;
    Parts parts_;
    ParameterCopies copies_;
    decltype(mt_torch::arena) arena_;
    decltype(mt_torch::segments) segments_;
    bool checkpointing_;
    WrittenParameters::Learning learns_;
    int amp_;
    uint64_t shape_;
};

} // namespace memtrain::shim
#endif
