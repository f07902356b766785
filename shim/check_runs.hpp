/*
 * check_runs.hpp - what mt_torch_check runs: a few samples of a batch as a step that is taken back, and what is
 * kept of it. What the results mean is judged in check.cpp.
 */
#ifndef MEMTRAIN_SHIM_CHECK_RUNS_HPP
#define MEMTRAIN_SHIM_CHECK_RUNS_HPP

#include <memory>
#include <string>
#include <vector>

#include "bytes.hpp"
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

    /* this = this + other * factor; an empty one is zero. */
    void add(const Sketch &other, double factor);

    /* L2 length, of all parameters or of one. */
    double length() const;
    double length_of(size_t parameter) const;

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
    bool has_graph = false, has_metrics = false; /* of a run without a backward pass */

    double loss() const { return units > 0.0 ? loss_sum / units : 0.0; }
};

/* How far a run goes: the forward pass without a graph or with one, or the backward pass too. */
enum class Depth { forward, graph, backward };

/*
 * Runs of parts of a batch. A part is a few samples, as many as the smallest chunk has, so that each chunk of parts is
 * one that training may see too. While the object lives planned memory and chosen segments are left alone: what is
 * run here is not what they are to learn from.
 */
class Runs {
public:
    Runs(mt_torch &torch, const mt_torch_batch &batch, size_t part, size_t parts);
    ~Runs();
    Runs(const Runs &) = delete;
    Runs &operator=(const Runs &) = delete;

    /* Without autocast from now on, whose rounding would hide what is looked for. */
    void in_full_precision() { torch_.amp = MT_DTYPE_NONE; }

    /* All segments forget from now on: less memory, and the same bits. */
    void compute_again() { torch_.checkpointing |= torch_.model->checkpoints; }

    /*
     * These parts as one chunk, in this order, or with embeddings as chunks of these numbers of parts; taken back.
     * Not MT_OK: the line says why.
     */
    mt_status run(Mode mode, Depth depth, const std::vector<size_t> &parts,
                  const std::vector<size_t> &chunks, RunResult &out);

    size_t part() const { return part_; }
    size_t parts() const { return parts_; }

private:
    template <class Body> mt_status taken_back(const std::vector<size_t> &parts, Body &&body);
    mt_status chunk(size_t samples, RunResult &out);
    mt_status forward(bool with_graph, size_t samples, RunResult &out);
    mt_status chunks(const std::vector<size_t> &chunks, RunResult &out);
    std::vector<at::Tensor> gather(const std::vector<size_t> &parts) const;

    mt_torch &torch_;
    const mt_torch_batch &batch_;
    size_t part_, parts_;
    decltype(mt_torch::arena) arena_;
    decltype(mt_torch::segments) segments_;
    bool checkpointing_, learns_;
    int amp_;
    uint64_t shape_;
};

} // namespace memtrain::shim
#endif
