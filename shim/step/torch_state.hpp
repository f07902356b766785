/*
 * torch_state.hpp - struct mt_torch: one model and its optimiser on one device, and the state of
 * its current step. Made in torch_new.cpp, stepped in step.cpp, told of in torch_backend.cpp.
 */
#ifndef MEMTRAIN_SHIM_TORCH_STATE_HPP
#define MEMTRAIN_SHIM_TORCH_STATE_HPP

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arena.hpp"
#include "canary.hpp"
#include "contrastive.hpp"
#include "device.hpp"
#include "flat.hpp"
#include "groups.hpp"
#include "model.hpp"
#include "optimizer.hpp"
#include "pending.hpp"
#include "scaler.hpp"
#include "segment_choice.hpp"
#include "shared_training.hpp"
#include "snapshot.hpp"
#include "staging.hpp"
#include "written.hpp"

namespace memtrain::shim {

class Offload;

enum class Phase {
    idle,
    in_step,
    failed,  /* a chunk or the update failed: only rollback may follow */
    poisoned /* the state is lost, nothing may follow */
};

/* What the model's functions are called by. They may call an evaluation from within one, and nothing else. */
enum class Call { none, evaluation, step };

/*
 * MT_OK when the step is in one of the two phases; they may be the same. Else, and while a call of the same
 * mt_torch is under way, MT_ESTATE.
 */
mt_status check_phase(const char *function, const mt_torch &torch, Phase one, Phase other);

/* The state is lost, for the reason that the error line gives; returns status. */
mt_status poison(mt_torch &torch, mt_status status);

/* Where the next chunk's saved tensors wait, or NULL. On the CPU no rung of an accelerator's. */
std::shared_ptr<Offload> offload_of(const mt_torch &torch);

/* Buffers, and parameters that the forward pass writes to, as the step or the marked chunk finds them. */
void keep_state(mt_torch &torch, WrittenParameters::When when);

/* Whether each parameter that trains is a finite number. A pass over them. */
bool has_finite_parameters(const mt_torch &torch);

/* As they were then. Allocates nothing; throws Failure where the state is lost. */
void put_back_state(mt_torch &torch, WrittenParameters::When when);

/* Parameters, buffers, optimiser state and the loss scaler's by name. */
std::vector<Named> state_of(const mt_torch &torch);

/*
 * Gradients and optimiser state for another set of slots. All memory is there before anything changes; unless
 * keep() is called, all is as it was when the object goes. Between steps.
 */
class Resettled {
public:
    Resettled(mt_torch &torch, const std::vector<bool> &placed);
    ~Resettled();
    Resettled(const Resettled &) = delete;
    Resettled &operator=(const Resettled &) = delete;
    void keep() { is_kept_ = true; }

private:
    void swap();

    mt_torch &torch_;
    Places places_;
    std::vector<Optimizer::Moment> moments_;
    bool is_kept_ = false;
};

/* What a batch's chunks depend on beside their size and its saver: samples' shape, what is frozen. */
mt_shape shape_in(const mt_torch &torch, const mt_torch_batch &batch);

} // namespace memtrain::shim

struct mt_torch {
    mt_model *model = nullptr;
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    memtrain::shim::Device device = c10::Device(c10::kCPU);
    std::string device_name;
    memtrain::shim::Device home = c10::Device(c10::kCPU); /* where it is without MT_RUNG_CPU */

    std::vector<memtrain::shim::Group> groups;
    std::unique_ptr<memtrain::shim::Flat> flat;
    std::unique_ptr<memtrain::shim::Optimizer> optimizer;   /* refers to flat */
    std::optional<memtrain::shim::Scaler> scaler;           /* with MT_FLOAT16 */
    std::unique_ptr<memtrain::shim::SharedTraining> shared; /* with other processes, or none */
    memtrain::shim::RngState rng;                           /* as begin found them */
    memtrain::shim::BufferState buffers;
    memtrain::shim::WrittenParameters written;
    memtrain::shim::WrittenBuffers written_buffers;
    size_t parameter_bytes = 0; /* frozen parameters included, mapped ones not */
    uint64_t key = 0;           /* mt_backend_info.model; 0: nobody has asked for it */
    bool has_pointwise = false; /* among them are weights of 1x1 convolutions */

    memtrain::shim::Phase phase = memtrain::shim::Phase::idle;
    memtrain::shim::Call call = memtrain::shim::Call::none; /* that is under way */
    std::string poison;                                     /* what lost the state */
    memtrain::shim::Canary canary;
    memtrain::shim::Pending pending; /* figures of chunks of the step that were not waited for */
    std::unique_ptr<memtrain::shim::StagingSlots> staging; /* of batches to its home, or none */

    mt_torch_batch batch = MT_TORCH_BATCH_INIT; /* of the current step, borrowed */
    size_t samples = 0;
    double share = 0.0; /* sum of the weights that its chunks had in the end */

    bool marked = false;     /* the next chunk runs apart, or has and failed */
    bool fresh = false;      /* no chunk has run since begin */
    bool looked = false;     /* a training chunk has run in which NormWatch has looked */
    bool normalises = false; /* and it has found an operator ... */
    std::vector<const void *> statistics; /* ... which was given tensors that lie here */
    bool met_batch = false;               /* the first batch's memory has been looked at */
    bool whole =
        false; /* one marked chunk has had all samples: its gradients lie where they were made */
    memtrain::shim::RngState chunk_rng; /* as mark found them, unless it was fresh */
    memtrain::shim::BufferState chunk_buffers;
    memtrain::shim::CachedStep cached; /* of a model with embeddings, as the next */
    memtrain::shim::CachedEvaluation evaluation;
    int threads = 0;            /* before MT_RUNG_MINIMAL; 0: it is off */
    bool checkpointing = false; /* all segments are computed again */
    std::unique_ptr<memtrain::shim::SegmentChoice> segments; /* those that are otherwise, or none */
    uint64_t shape = 0;                                      /* of the last step, see shape_in */
    int amp = MT_DTYPE_NONE;                                 /* autocast of the forward pass */
    std::shared_ptr<memtrain::shim::Offload> offload;        /* or none */
    bool offloading = false;

    std::unique_ptr<memtrain::shim::cpu::Arena, memtrain::shim::cpu::CloseArena>
        arena; /* or none */

    mt_event_sink sink = {nullptr, nullptr};
    size_t watched_peak = 0; /* where no allocator of ours counts: highest since reset_peak */

    /*
     * What the gradients are to be divided by, the scale of the loss aside: the weights of the chunks, where the
     * model has told its units with its losses; else their sum is 1. 0: none has had a unit.
     */
    double divisor() const { return model->loss_units ? share : 1.0; }

    memtrain::shim::Placement placement() const {
        return {device, options.channels_last != 0, false,
                device.is_cpu() ? nullptr : staging.get()};
    }

    /* Parameters, gradients, optimiser state and buffers: what is there between steps. */
    size_t resident_bytes() const {
        size_t gradient_bytes = flat->holds_gradients() ? flat->bytes() : 0;
        return parameter_bytes + gradient_bytes + optimizer->bytes() +
               2 * (buffers.bytes() + written.bytes());
    }
};

namespace memtrain::shim {

/* While there is one the model's functions may run. */
class Calling {
public:
    explicit Calling(mt_torch &torch, Call call = Call::step) noexcept
        : torch_(torch), before_(torch.call) {
        torch.call = call;
    }
    ~Calling() { torch_.call = before_; }
    Calling(const Calling &) = delete;
    Calling &operator=(const Calling &) = delete;

private:
    mt_torch &torch_;
    Call before_;
};

} // namespace memtrain::shim
#endif
