/* queue.cpp - copies that are under way, and waiting. */
#include "card.hpp"

#include <mutex>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

namespace card {
namespace {

using Copies = std::vector<std::function<void()>>;

std::recursive_mutex mutex;
Copies to_cards, to_host;

void run(Copies &copies) {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    Copies list;
    list.swap(copies);
    for (auto &copy : list) copy();
}

/* As CUDA does after an illegal access: whatever is asked for says so, to the end of the process. */
void check_whole() {
    TORCH_CHECK(!counters.broken, "CUDA error: an illegal memory access was encountered");
}

} // namespace

void before_next_kernel(std::function<void()> copy) {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    to_cards.push_back(std::move(copy));
}

void when_waited_for(std::function<void()> copy) {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    to_host.push_back(std::move(copy));
}

void start() {
    check_whole();
    run(to_cards);
}

void wait() {
    counters.waits++;
    start();
    run(to_host);
}

} // namespace card
