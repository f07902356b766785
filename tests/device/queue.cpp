/*
 * queue.cpp - streams and events: what is under way on a card, in which order it is done, and what time it is.
 *
 * What a kernel writes, and a copy that nobody waits for, is work of its stream, and done as late as events allow: when a kernel
 * of its stream starts, or one of a stream that has waited for it, or when the host waits. So who forgets an event sees what
 * was there before. And a stream that touches what another one has written, or memory that it was given, without an event
 * after that is told so. A host that writes to what a copy reads, and has not waited for that, is told so when it waits.
 *
 * Each card has streams of its own. Who waits for a card, or for a stream, waits for no other one.
 */
#include "card.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

namespace card {
namespace {

using Work = std::function<void()>;
using Points = std::map<Stream, uint64_t>; /* how much of each stream is known to be over */

struct Line {
    std::deque<Work> work;
    uint64_t given = 0, done = 0; /* of work */
    uint64_t operations = 0;      /* kernels and copies */
    uint64_t ready = 0;           /* on the clock: when it has done what it was given */
    Points after;                 /* what it has waited for */
};

struct Recorded : Event {
    Points after;
    uint64_t clock = 0; /* that its time is of */
};

/* What an operation has read of a card, and is there once the host has waited for that. */
struct Arrival {
    Point reader;
    Work work;
};

/* Memory of the host that an operation reads. */
struct Source {
    Point reader;
    const unsigned char *begin;
    size_t bytes;
    uint64_t sum; /* of its bytes when the operation was given */
};

std::recursive_mutex mutex; /* of all below */
/* What nobody has waited for is there when the process ends: it is left alone. */
auto &lines = *new std::map<Stream, Line>;
auto &arrivals = *new std::vector<Arrival>;
Points host_after; /* what the host has waited for */
std::vector<Source> sources;

mt_card_costs costs = {};
mt_card_clock now = {};
uint64_t clocks = 0; /* that were started */
uint64_t engines[most_cards][2] =
    {}; /* when copies to the host, and those to the card, are through */

using Lock = std::lock_guard<std::recursive_mutex>;

void merge(Points &into, const Points &other) {
    for (const auto &[stream, point] : other) into[stream] = std::max(into[stream], point);
}

void run_up_to(Line &line, uint64_t last) {
    while (line.done < last) {
        Work work = std::move(line.work.front());
        line.work.pop_front();
        line.done++;
        work();
    }
}

/* As CUDA does after an illegal access, and XPU with a lost card: whatever is asked for says so, to the end of the process. */
void check_whole() {
    TORCH_CHECK(!counters.broken,
                is_xpu ? "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)"
                       : "CUDA error: an illegal memory access was encountered");
}

uint64_t ready_now(const Line &line) {
    return std::max(line.ready, now.host);
}

void wait_till(uint64_t time) {
    now.host = std::max(now.host, time) + costs.wait;
}

bool has_waited_for(const Point &point) {
    return host_after[point.stream] >= point.operation;
}

void arrive() {
    std::vector<Arrival> list, others;
    for (Arrival &one : arrivals)
        (has_waited_for(one.reader) ? list : others).push_back(std::move(one));
    arrivals = std::move(others);
    for (Arrival &one : list) one.work();
}

/* FNV-1a, by Fowler, Noll and Vo. */
uint64_t sum_of(const unsigned char *begin, size_t bytes) {
    uint64_t sum = 0xcbf29ce484222325;
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ begin[i]) * 0x100000001b3;
    return sum;
}

/* The host has waited. */
void check_sources() {
    bool is_whole = true;
    auto is_through = [&](const Source &source) {
        if (!has_waited_for(source.reader)) return false;
        is_whole = is_whole && sum_of(source.begin, source.bytes) == source.sum;
        return true;
    };
    sources.erase(std::remove_if(sources.begin(), sources.end(), is_through), sources.end());
    TORCH_CHECK(is_whole,
                "test device: the host has written to pinned memory before it knew that a "
                "copy from there was through");
}

Recorded record(Stream stream) {
    Line &line = lines[stream];
    Recorded event;
    static_cast<Event &>(event) = {stream, line.given, ready_now(line)};
    event.after = line.after;
    event.clock = clocks;
    event.after[stream] = line.operations;
    return event;
}

Recorded &of(void *event) {
    return *static_cast<Recorded *>(event);
}

/* What was recorded before the clock was started is over at its time 0. */
uint64_t time_of(const Recorded &event) {
    return event.clock == clocks ? event.time : 0;
}

void is_over(const Recorded &event) {
    run_up_to(lines[event.stream], event.work);
    merge(host_after, event.after);
    arrive();
    check_sources();
}

std::string name_of(const Stream &stream) {
    return std::to_string(stream.id) + " of card " + std::to_string(stream.card);
}

} // namespace

void later(Work work) {
    Lock lock(mutex);
    Line &line = lines[current_stream()];
    line.work.push_back(std::move(work));
    line.given++;
}

void when_waited_for(const Point &point, Work copy) {
    Lock lock(mutex);
    arrivals.push_back({point, std::move(copy)});
}

void start() {
    check_whole();
    Lock lock(mutex);
    Line &line = lines[current_stream()];
    run_up_to(line, line.given);
}

uint64_t given_to(Stream stream) {
    Lock lock(mutex);
    return lines[stream].given;
}

bool has_done(Stream stream, uint64_t work) {
    Lock lock(mutex);
    return lines[stream].done >= work;
}

void wait(c10::DeviceIndex card) {
    counters.waits++;
    check_whole();
    Lock lock(mutex);
    uint64_t ready = 0;
    for (auto &[stream, line] : lines) {
        if (stream.card != card) continue;
        run_up_to(line, line.given);
        ready = std::max(ready, line.ready);
        merge(host_after, record(stream).after);
    }
    arrive();
    wait_till(ready);
    check_sources();
}

void wait(Stream stream) {
    counters.waits++;
    check_whole();
    Lock lock(mutex);
    Recorded event = record(stream);
    is_over(event);
    wait_till(event.time);
}

/* ---- events ---- */

void record(void **event, Stream stream) {
    Lock lock(mutex);
    if (!*event) *event = new Recorded;
    of(*event) = record(stream);
}

void destroy(void *event) {
    delete static_cast<Recorded *>(event);
}

void block(void *event, Stream stream) {
    if (!event) return;
    Lock lock(mutex);
    Line &line = lines[stream];
    const Recorded &other = of(event);
    line.ready = std::max(line.ready, time_of(other));
    merge(line.after, other.after);
    line.work.push_back([from = other.stream, last = other.work] { run_up_to(lines[from], last); });
    line.given++;
}

bool is_over(void *event) {
    if (!event) return true;
    Lock lock(mutex);
    if (time_of(of(event)) > now.host) return false;
    is_over(of(event));
    return true;
}

void wait_for(void *event) {
    if (!event || is_over(event)) return;
    counters.event_waits++;
    check_whole();
    Lock lock(mutex);
    wait_till(time_of(of(event)));
    is_over(of(event));
}

bool is_idle(Stream stream) {
    Lock lock(mutex);
    Recorded event = record(stream);
    return is_over(&event);
}

/* ---- memory of several streams ---- */

Point point_of(Stream stream) {
    Lock lock(mutex);
    return {stream, lines[stream].operations};
}

bool is_after(Stream stream, const Point &point) {
    Lock lock(mutex);
    if (stream == point.stream) return true;
    Points &after = lines[stream].after;
    return std::max(after[point.stream], host_after[point.stream]) >= point.operation;
}

void check_order(const Point &written) {
    Stream mine = current_stream();
    TORCH_CHECK(is_after(mine, written), "test device: stream ", name_of(mine),
                " touches memory of stream ", name_of(written.stream),
                " and has not waited for it");
}

void follow(Stream stream, Stream other) {
    if (stream == other) return;
    Lock lock(mutex);
    Recorded event = record(other);
    block(&event, stream);
}

void still_read(const void *begin, size_t bytes) {
    Lock lock(mutex);
    auto *first = static_cast<const unsigned char *>(begin);
    sources.push_back({point_of(current_stream()), first, bytes, sum_of(first, bytes)});
}

void no_longer_read(const void *begin, size_t bytes) {
    Lock lock(mutex);
    auto *first = static_cast<const unsigned char *>(begin);
    auto is_gone = [=](const Source &source) {
        return source.begin >= first && source.begin < first + bytes;
    };
    sources.erase(std::remove_if(sources.begin(), sources.end(), is_gone), sources.end());
}

/* ---- the clock ---- */

void charge_kernel() {
    Lock lock(mutex);
    Line &line = lines[current_stream()];
    line.operations++;
    line.ready = ready_now(line) + costs.kernel;
    now.kernels += costs.kernel;
    now.host += costs.launch;
}

void charge_copy(bool to_card, size_t bytes) {
    Lock lock(mutex);
    Line &line = lines[current_stream()];
    uint64_t cost = bytes * costs.copy_of_mib / (size_t{1} << 20);
    uint64_t &engine = engines[current()][to_card];
    line.operations++;
    line.ready = engine = std::max(ready_now(line), engine) + cost;
    (to_card ? now.to_card : now.to_host) += cost;
    now.host += costs.launch;
}

} // namespace card

extern "C" void mt_card_start_clock(const mt_card_costs *costs) {
    card::Lock lock(card::mutex);
    card::costs = costs ? *costs : mt_card_costs{};
    card::now = {};
    card::clocks++;
    for (auto &of_card : card::engines)
        for (uint64_t &engine : of_card) engine = 0;
    for (auto &[stream, line] : card::lines) line.ready = 0;
}

extern "C" void mt_card_read_clock(mt_card_clock *out) {
    card::Lock lock(card::mutex);
    *out = card::now;
}

extern "C" void mt_card_pass(uint64_t time) {
    card::Lock lock(card::mutex);
    card::now.host += time;
}
