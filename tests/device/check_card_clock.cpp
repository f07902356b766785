/*
 * check_card_clock.cpp - what the test device itself promises of streams, events and its clock: what is beside each other, who
 * forgot to wait, kernels that are late, memory that another stream, or MPS, still reads, and what is of one card of two.
 */
#include <cstdlib>
#include <functional>
#include <string>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "card_suite.hpp"

using namespace card_suite;

namespace {

/* Two streams of the card, a tensor of 1 MiB on it, and one in pinned memory. */
struct Streams {
    c10::Device device{suite_device()};
    c10::impl::VirtualGuardImpl guard{device.type()};
    c10::Stream side = c10::Stream(c10::Stream::DEFAULT, device);
    at::Tensor there, pinned = at::ones({MiB / 4});
    Streams() {
        ck_ok(mt_torch_init(nullptr));
        side = guard.getStreamFromGlobalPool(device);
        there = at::zeros({MiB / 4}, at::device(device));
        pinned = pinned.pin_memory();
        guard.synchronizeDevice(0);
    }
    at::Tensor copied() const {
        c10::StreamGuard on(side);
        return pinned.to(device, /*non_blocking=*/true);
    }
    uint64_t time() const {
        guard.synchronizeDevice(0);
        mt_card_clock clock = {};
        mt_card_read_clock(&clock);
        return clock.host;
    }
};

} // namespace

/* A kernel and a copy of another stream take their time beside each other, and one after the other where an event says so. */
TEST_IF(!suite_on_mps(), "the library uses one stream of MPS", suite_device(),
        streams_beside_each_other) {
    const mt_card_costs costs = {1, 1000, 800, 10};
    Streams streams;
    mt_card_start_clock(&costs);
    at::Tensor copied = streams.copied();
    streams.there.add_(1);
    ck_assert_uint_eq(streams.time(), 1 + 1000 + 10);

    mt_card_start_clock(&costs);
    copied = streams.copied();
    c10::Event event(streams.device.type());
    event.record(streams.side);
    event.block(streams.guard.getStream(streams.device));
    copied.add_(1);
    ck_assert(!event.query());
    ck_assert_uint_eq(streams.time(), 800 + 1000 + 10);
    ck_assert(event.query());
    ck_assert_double_eq(copied[0].item().toDouble(), 2.0);
}

/* A stream that has not waited for what another one was given finds nothing there yet, and the test device says so. */
TEST_IF(!suite_on_mps(), "the library uses one stream of MPS", suite_device(), forgotten_events) {
    std::string words;
    Streams streams;
    at::Tensor copied = streams.copied();
    try {
        copied.add_(1);
    } catch (const c10::Error &error) {
        words = error.what();
    }
    ck_contains(words.c_str(), "has not waited for it");
}

/* Nor may a stream write to what another one is still reading. After an event that is over it may. */
TEST_IF(!suite_on_mps(), "the library uses one stream of MPS", suite_device(), forgotten_readers) {
    for (bool has_event : {false, true}) {
        std::string words;
        Streams streams;
        at::Tensor host = at::zeros({MiB / 4}).pin_memory();
        {
            c10::StreamGuard on(streams.side);
            host.copy_(streams.there, /*non_blocking=*/true);
        }
        if (has_event) {
            c10::Event event(streams.device.type());
            event.record(streams.side);
            event.block(streams.guard.getStream(streams.device));
        }
        try {
            streams.there.add_(1);
        } catch (const c10::Error &error) {
            words = error.what();
        }
        ck_assert_int_eq(words.find("has not waited for it") == std::string::npos, has_event);
        streams.guard.synchronizeDevice(0);
    }
}

namespace {

/* Kernels that make 2 of ones: in new memory, in place, elsewhere, in lists, and where a tensor grows. */
const std::function<at::Tensor(const at::Tensor &)> kernels[] = {
    [](const at::Tensor &ones) { return ones.add(1); },
    [](const at::Tensor &ones) { return ones.add_(1); },
    [](const at::Tensor &ones) { return ones.fill_(2); },
    [](const at::Tensor &ones) {
        ones.view({2, -1}).t().masked_fill_(ones.view({2, -1}).t() == 1, 2);
        return ones;
    },
    [](const at::Tensor &ones) {
        at::Tensor other = at::zeros_like(ones);
        return at::add_out(other, ones, ones);
    },
    [](const at::Tensor &ones) {
        at::Tensor part = ones.narrow(0, 16, 48), half = part.mul(0.5), rest = at::ones_like(ones);
        rest.narrow(0, 16, 48).copy_(half);
        at::_foreach_add_({ones, part}, {rest, half}); /* two of the same memory */
        return ones;
    },
    [](const at::Tensor &ones) {
        at::Tensor two = ones.narrow(0, 0, 1).add(1);
        two.resize_({2});
        return two.narrow(0, 0, 1).expand({64});
    },
    [](const at::Tensor &ones) { return ones.copy_(ones.add(1)); },
    [](const at::Tensor &ones) {
        at::Tensor mean = at::zeros_like(ones);
        at::native_batch_norm(at::ones({2, ones.size(0)}, ones.options()).add_(1), {}, {}, mean,
                              ones, /*training=*/true, /*momentum=*/1, /*eps=*/1e-5);
        return mean;
    },
};

} // namespace

/* What a kernel has written is there for another stream once that has waited for an event, or the host for the kernel. */
TEST_LOOP_IF(!suite_on_mps(), "the library uses one stream of MPS", suite_device(),
             kernels_are_late, LENGTH(kernels)) {
    enum { NOBODY, STREAM, HOST, HOST_FOR_EVENT, KERNEL, WAYS };
    mt_card_let_race(1);
    for (int waits = NOBODY; waits < WAYS; waits++) {
        Streams streams;
        c10::Stream main = streams.guard.getStream(streams.device);
        at::Tensor ones = at::ones({64}, at::device(streams.device));
        at::Tensor host = at::zeros({64}).pin_memory();
        at::Tensor result = kernels[_i](ones);
        c10::Event event(streams.device.type());
        event.record(main);
        if (waits == STREAM) event.block(streams.side);
        if (waits == HOST) streams.guard.synchronizeStream(main);
        if (waits == HOST_FOR_EVENT) event.synchronize();
        if (waits == KERNEL) streams.there.add_(1);
        {
            c10::StreamGuard on(streams.side);
            host.copy_(result, /*non_blocking=*/true);
        }
        streams.guard.synchronizeStream(streams.side);
        ck_assert_msg((host == 2).all().item().toBool() == (waits != NOBODY), "way %d: %g", waits,
                      host[0].item().toDouble());
        ck_assert((result == 2).all().item().toBool());
    }
}

/* Memory that was given back has its bytes until its stream is through, though somebody else may have it by then. */
TEST_IF(!suite_on_mps(), "the library uses one stream of MPS", suite_device(),
        memory_that_is_used_again) {
    Streams streams;
    at::Tensor host = at::zeros({MiB / 4}).pin_memory();
    c10::StreamGuard on(streams.side);
    at::Tensor first = at::ones({MiB / 4}, at::device(streams.device));
    streams.guard.synchronizeStream(streams.side);
    host.copy_(first, /*non_blocking=*/true);
    const void *before = first.const_data_ptr();
    first = at::Tensor();
    first = at::empty({MiB / 8}, at::device(streams.device));
    ck_assert_ptr_eq(first.const_data_ptr(), before);
    streams.guard.synchronizeStream(streams.side);
    ck_assert((host == 1).all().item().toBool());
}

/* Nobody waits for it before the process ends. */
TEST(suite_device(), work_at_the_end) {
    Streams streams;
    streams.there.add_(1);
    (void)streams.copied();
}

/* Memory that another stream uses is given to nobody until that one is through, where it was said to be used there. */
TEST_IF(!suite_on_mps(), "the library uses one stream of MPS", suite_device(),
        memory_that_another_stream_uses) {
    for (bool is_told : {true, false}) {
        mt_card_let_race(!is_told);
        const mt_card_costs costs = {0, 1000, 800, 0};
        Streams streams;
        at::Tensor host = at::zeros({MiB / 4}).pin_memory();
        c10::Event event(streams.device.type());
        mt_card_start_clock(&costs);
        streams.there.fill_(3);
        event.record(streams.guard.getStream(streams.device));
        event.block(streams.side);
        {
            c10::StreamGuard on(streams.side);
            host.copy_(streams.there, /*non_blocking=*/true);
        }
        if (is_told)
            streams.guard.recordDataPtrOnStream(streams.there.storage().data_ptr(), streams.side);
        const void *before = streams.there.const_data_ptr();
        streams.there = at::Tensor();
        streams.there = at::zeros({MiB / 4}, at::device(streams.device));
        ck_assert_int_eq(streams.there.const_data_ptr() == before, !is_told);
        ck_assert_uint_eq(streams.time(), 2000); /* of two kernels, the copy beside the second */
        ck_assert_int_eq(host[0].item().toDouble() == 3.0, is_told);
    }
}

namespace {

/* Two cards, of which the thread is on the first, and numbers on each. */
struct Cards {
    c10::Device first{std::string(suite_device()) + ":0"},
        second{std::string(suite_device()) + ":1"};
    c10::impl::VirtualGuardImpl guard{first.type()};
    at::Tensor here, there;
    Cards() {
        setenv("MT_TEST_CARDS", "2", 1);
        ck_ok(mt_torch_init(nullptr));
        here = at::ones({4}, at::device(first));
        there = at::ones({4}, at::device(second));
        for (c10::DeviceIndex i : {0, 1}) guard.synchronizeDevice(i);
    }
};

} // namespace

/* Who waits for another card than the one that copies finds nothing yet. */
TEST_IF(!suite_on_mps(), "there is one MPS device", suite_device(), waits_for_another_card) {
    Cards cards;
    at::Tensor host = at::zeros({4}).pin_memory();
    host.copy_(cards.there, /*non_blocking=*/true);
    cards.guard.synchronizeDevice(0);
    cards.guard.synchronizeStream(cards.guard.getStream(cards.first));
    (void)cards.here.add_(1)[0].item();
    ck_assert_double_ne(host[0].item().toDouble(), 1.0);
    cards.guard.synchronizeDevice(1);
    ck_assert_double_eq(host[0].item().toDouble(), 1.0);
}

/* A stream of one card does not order those of another. */
TEST_IF(!suite_on_mps(), "there is one MPS device", suite_device(), events_of_another_card) {
    for (bool is_right : {false, true}) {
        std::string words;
        Cards cards;
        c10::Stream side = cards.guard.getStreamFromGlobalPool(cards.first);
        cards.here.add_(1);
        cards.there.add_(1);
        c10::Event event(cards.first.type());
        event.record(cards.guard.getStream(is_right ? cards.first : cards.second));
        event.block(side);
        c10::StreamGuard on(side);
        try {
            ck_assert_double_eq(cards.here.sum().item().toDouble(), 8.0);
        } catch (const c10::Error &error) {
            words = error.what();
        }
        ck_assert_int_eq(words.find("has not waited for it") == std::string::npos, is_right);
    }
}

/* A thread has a current stream of each card, and a kernel runs on that of its tensors. */
TEST_IF(!suite_on_mps(), "there is one MPS device", suite_device(), streams_of_each_card) {
    const mt_card_costs costs = {0, 1000, 0, 0};
    Cards cards;
    c10::Stream side = cards.guard.getStreamFromGlobalPool(cards.first);
    c10::Event of_first(cards.first.type());
    of_first.record(side);
    std::string words;
    try {
        of_first.record(cards.guard.getStream(cards.second));
    } catch (const c10::Error &error) {
        words = error.what();
    }
    ck_contains(words.c_str(), "does not match recording stream's device index");
    c10::StreamGuard on(side);
    ck_assert(cards.guard.getStream(cards.first) == side);
    ck_assert(cards.guard.getStream(cards.second) == cards.guard.getDefaultStream(cards.second));
    mt_card_start_clock(&costs);
    cards.there.add_(1);
    cards.here.add_(1);
    mt_card_clock clock = {};
    cards.guard.synchronizeStream(cards.guard.getDefaultStream(cards.second));
    mt_card_read_clock(&clock);
    ck_assert_uint_eq(clock.host, 1000); /* of two kernels beside each other */
    cards.guard.synchronizeDevice(0);
}

/* What is copied from card to card needs no event: both are in order. */
TEST_IF(!suite_on_mps(), "there is one MPS device", suite_device(), copies_between_cards) {
    Cards cards;
    cards.here.add_(2);
    at::Tensor copy = cards.here.to(cards.second, /*non_blocking=*/true);
    cards.here.zero_();
    copy.add_(1);
    ck_assert_double_eq(copy.sum().item().toDouble(), 16.0);
    cards.there.add_(1);
    cards.there.copy_(cards.here.add_(5));
    ck_assert_double_eq(cards.there.sum().item().toDouble(), 20.0);
}

/* The test device tells who gives memory back that MPS still reads, or hands it what would be a temporary tensor. */
TEST_IF(suite_on_mps(), "MPS alone reads the host's memory where it lies", suite_device(),
        memory_that_mps_still_reads) {
    ck_ok(mt_torch_init(nullptr));
    at::Tensor rows = at::ones({4, 2});
    auto sent = [](const at::Tensor &from) {
        return from.to(c10::Device(suite_device()), from.scalar_type(), /*non_blocking=*/true);
    };
    ck_assert_int_eq(signal_of([&] { (void)sent(rows.t()); }), SIGABRT);
    ck_assert_int_eq(signal_of([&] {
                         at::Tensor there = sent(rows.clone());
                         there.add_(1);
                     }),
                     SIGABRT);
    ck_assert_int_eq(signal_of([&] { (void)sent(rows).add_(1); }), 0);
}

int main(int, char **argv) {
    return card_main("card_clock", argv);
}
