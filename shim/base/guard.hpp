/*
 * guard.hpp - the only place where C++ exceptions end.
 *
 * Every public function that touches libtorch runs its body in guard(). What was thrown becomes a
 * status and one error line; grad mode, device and the thread's evidence of refused memory are put
 * back. Nothing here knows what the body does.
 */
#ifndef MEMTRAIN_SHIM_GUARD_HPP
#define MEMTRAIN_SHIM_GUARD_HPP

#include <cstdint>
#include <exception>
#include <optional>
#include <type_traits>

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <memtrain/status.h>

#include "device.hpp"

namespace memtrain::shim {

/*
 * Thrown by our own code once the error line is set; the guard returns its status as it is. It keeps the
 * line, since libtorch's engine may carry it to another thread; what it carries are std::exceptions.
 */
class Failure : public std::exception {
public:
    explicit Failure(mt_status status) noexcept;
    mt_status status() const noexcept { return status_; }
    const char *what() const noexcept override { return line_; }

private:
    mt_status status_;
    char line_[512];
};

/* Sets the error line (printf format) and throws Failure. */
[[noreturn]] void fail(mt_status status, const char *format, ...) MT_PRINTF(2, 3);

/* Throws Failure for a status that is not MT_OK; the line is set already. */
void check(mt_status status);

/* What has refused a request for memory since the guarded call began: our allocator of the host (on this thread), or a card's. */
enum class Evidence { none, host, card };

/*
 * What tells of refusals: the allocators, which lie above this file and register themselves. Until they have, nothing was
 * refused. All three are of the calling thread, and none throws.
 */
struct Witness {
    uint64_t (*host_refusals)() noexcept;
    int64_t (*card_ooms)(const Device &) noexcept; /* 0 where none is counted */
    sim::Card *(*swap_card)(
        sim::Card *) noexcept; /* tensors count against it; returns the one before */
};
void register_witness(const Witness &witness) noexcept;

/* typed: the exception's type says that memory ran out. */
mt_status classify(Evidence evidence, bool typed, const char *text) noexcept;

/* Inside a catch block: status and error line of the exception in flight. */
mt_status describe_exception() noexcept;

/* Whether it is of memory, or of a card that serves nobody, and not of what was asked of it. */
bool is_of_card(const std::exception &error) noexcept;

/*
 * State of the thread that a guarded call puts back. With a card that has an allocator of libtorch's, makes it the current one;
 * with one or its model, watches its count of failed allocations; with a simulated card, makes what
 * the thread allocates count against it. Scopes nest; the outermost one starts the evidence.
 */
class Scope {
public:
    explicit Scope(const Device &device) noexcept;
    ~Scope();
    Scope(const Scope &) = delete;
    Scope &operator=(const Scope &) = delete;

private:
    bool grad_mode_;
    std::optional<c10::InferenceMode> normal_; /* of what is made here some is written to later */
    bool on_card_;                             /* a simulated one */
    sim::Card *card_before_ = nullptr;
    c10::WarningUtils::WarningHandlerGuard warnings_; /* libtorch's go to mt_log */
    std::optional<c10::DeviceGuard> device_;
    Device watched_before_;
    int64_t ooms_before_;
};

/* body returns mt_status or nothing. */
template <class Body> mt_status guard(const Device &device, Body &&body) noexcept {
    Scope scope(device);
    try {
        if constexpr (std::is_void_v<decltype(body())>) {
            body();
            return MT_OK;
        } else {
            return body();
        }
    } catch (...) {
        return describe_exception();
    }
}

template <class Body> mt_status guard(Body &&body) noexcept {
    return guard(c10::Device(c10::kCPU), body);
}

} // namespace memtrain::shim
#endif
