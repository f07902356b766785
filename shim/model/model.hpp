/* model.hpp - the model handle: the caller's functions, and what they are called with. */
#ifndef MEMTRAIN_SHIM_MODEL_HPP
#define MEMTRAIN_SHIM_MODEL_HPP

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <memtrain/torch.h>

#include "guard.hpp"
#include "mapping.hpp"
#include "tensor.hpp"

struct mt_model {
    mt_model_ops ops;
    void *self;
    size_t min_micro_batch = 0;
    bool normalises_over_batch = false;
    bool needs_whole_batch = false;
    bool checkpoints = false;
    size_t embedding_count = 0; /* 0: there is a loss of each chunk */
    std::vector<std::string> metrics;
    std::vector<const char *> metric_names; /* into metrics */
    std::vector<int> metric_over;           /* empty: over the samples */
    /*
     * Where ops.loss leaves what it has averaged over, in memory of self: known once the chunk has run, and not
     * before. NULL: ops.units tells it, or it is the samples.
     */
    const double *loss_units = nullptr;
    std::shared_ptr<memtrain::shim::Mapping> mapping; /* of its weights, or none */
    bool in_use = false;                              /* by an mt_torch */
    bool freed = false;                /* mt_model_free came first: mt_torch_free destroys it */
    mutable bool told_metrics = false; /* the log has heard that they are not given */

    mt_model(const mt_model_ops &own, void *model) noexcept : ops(own), self(model) {}
    ~mt_model();
    mt_model(const mt_model &) = delete;
    mt_model &operator=(const mt_model &) = delete;
};

namespace memtrain::shim {

/*
 * Calls one of the model's functions and throws Failure for what it returns. It may fail without a word: an
 * older line is not its own. One that goes through leaves that line as it was, as when a failed step is taken back.
 */
template <class... Wanted, class... Given>
void call_model(const char *name, mt_status (*function)(Wanted...), Given... arguments) {
    char before[512];
    std::snprintf(before, sizeof before, "%s", mt_last_error());
    mt_set_error(MT_OK, "%s", "");
    mt_status status = function(arguments...);
    if (status == MT_OK) mt_set_error(MT_OK, "%s", before);
    if (status != MT_OK && !*mt_last_error())
        mt_set_error(status, "the model's %s has failed and does not say why: %s", name,
                     mt_status_text(status));
    check(status);
}

/* All parameters, or all buffers, as the model tells of them; undefined ones are left out. */
std::vector<Named> parameters_of(const mt_model &model);
std::vector<Named> buffers_of(const mt_model &model);

/* Both. */
std::vector<Named> weights_of(const mt_model &model);

/* Loss and metrics of a chunk; tensors are the results as the model wrote them. */
struct Loss {
    at::Tensor loss;
    at::Tensor metrics;
    std::optional<double> units = {}; /* where the model tells them with the loss */
};
Loss loss_of(const mt_model &model, const Chunk &chunk);

/* Throws Failure where a tensor of the chunk has been written to. */
void check_unwritten(const char *what, const Chunk &chunk);

/* Embeddings of a chunk of so many samples; loss and metrics of a batch from all of its embeddings. */
std::vector<at::Tensor> embed_of(const mt_model &model, const Chunk &chunk, size_t samples);
Loss join_of(const mt_model &model, const std::vector<at::Tensor> &embeddings);

/* What the loss of these samples is averaged over; count where the model does not say, or not before the loss. */
double units_of(const mt_model &model, const mt_torch_batch &batch, size_t first, size_t count);

void set_training(const mt_model &model, bool on);

/* Ends the use by an mt_torch, and the model too when its owner has let go of it. */
void release_model(mt_model *model) noexcept;

} // namespace memtrain::shim
#endif
