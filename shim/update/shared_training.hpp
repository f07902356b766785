/*
 * shared_training.hpp - what processes that train one model have in common: the same model and weights at the start,
 * and sums of gradients. Made from the caller's mt_process_group.
 */
#ifndef MEMTRAIN_SHIM_SHARED_TRAINING_HPP
#define MEMTRAIN_SHIM_SHARED_TRAINING_HPP

#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include <c10/core/Event.h>

#include <memtrain/processes.h>
#include <memtrain/torch.h>

#include "pinned.hpp"
#include "tensor.hpp"

namespace memtrain::shim {

class Flat;

class SharedTraining {
public:
    explicit SharedTraining(const mt_process_group &group);

    /* Adds up over all processes, in place. Throws Failure. */
    void sum(double *values, size_t n);

    /* The same of a tensor. Other memory than floats and doubles of the host goes through a buffer. */
    void sum(const at::Tensor &tensor);

    /*
     * Throws Failure unless models have the same names, shapes and dtypes everywhere, and these options the same
     * numbers.
     */
    void compare(const std::vector<Named> &list, const mt_torch_options &options);

    /* Throws Failure with that line unless all processes have the same number. */
    void compare_number(uint64_t number, mt_status status, const char *line);

    /* The same of the numbers in the tensors. */
    void compare_values(const std::vector<Named> &list);

    /* Runs body on all; where it throws on one, that one throws it, and the others Failure with MT_EPEER. */
    template <class Body> void all_or_none(Body &&body) {
        std::exception_ptr reason;
        try {
            body();
        } catch (...) {
            reason = std::current_exception();
        }
        tell(reason);
    }

    /* Gives all processes the values of rank 0. */
    void spread(const std::vector<Named> &list);

    /*
     * The gradient of all processes, in the place of this one's. A parameter that got one on any process has got
     * one on each. Allocates nothing on the CPU.
     */
    void sum_gradients(Flat &flat);

private:
    void sum(float *values, size_t n);
    void tell(const std::exception_ptr &reason);
    bool is_equal(uint64_t number);
    template <class Number> void sum_slices(const at::Tensor &row, std::vector<Number> &buffer);
    template <class Number> void sum_pinned(const at::Tensor &row);

    mt_process_group group_;
    std::vector<float> floats_;
    std::vector<double> doubles_;
    Pinned pinned_[2];
    std::optional<c10::Event> sent_; /* back to the card: the last piece */
    std::vector<double> received_;   /* by slot: of how many processes */
};

/* Throws Failure unless the group can be that of an mt_torch. */
void check_group(const char *function, const mt_process_group &group);

} // namespace memtrain::shim
#endif
