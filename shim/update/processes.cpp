/*
 * processes.cpp - groups of processes over libtorch's Gloo: who is in them, how they meet, and their sums.
 */
#include <memtrain/processes.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "guard.hpp"
#include "init.hpp"

#if __has_include(<torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>)
#define USE_C10D_GLOO
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#endif

namespace memtrain::shim {
namespace {

constexpr char name_of[] = "mt_process_group_open";

/* What a group is made of; the strings outlive the environment's. */
struct Plan {
    int rank = 0, count = 1, port = 29500;
    std::string address = "127.0.0.1", network;
    double timeout_seconds = 1800;
    bool is_hosted = false; /* by torchrun, which has the store itself */
    std::string prefix;     /* of the keys there */
};

/* ---- what is asked for ------------------------------------------------------------------------- */

const char *variable(const char *name) {
    const char *value = std::getenv(name);
    return value && *value ? value : nullptr;
}

/* Throws Failure unless the variable is a whole number of that range. */
int number_in(const char *name, int least, int most) {
    const char *text = variable(name);
    if (!text) fail(MT_EINVAL, "%s: %s is not set, though WORLD_SIZE is", name_of, name);
    char *end;
    errno = 0;
    long value = std::strtol(text, &end, 10);
    if (*end || errno || value < least || value > most)
        fail(MT_EINVAL, "%s: %s is '%.50s'; accepted: %d to %d", name_of, name, text, least, most);
    return static_cast<int>(value);
}

Plan plan_of_environment() {
    Plan plan;
    const char *network = variable("GLOO_SOCKET_IFNAME");
    if (!variable("WORLD_SIZE")) return plan;
    plan.count = number_in("WORLD_SIZE", 1, INT_MAX);
    if (plan.count == 1 && !variable("RANK")) return plan;
    plan.rank = number_in("RANK", 0, plan.count - 1);
    if (plan.count == 1) return plan;
    plan.port = number_in("MASTER_PORT", 1, 65535);
    if (!variable("MASTER_ADDR"))
        fail(MT_EINVAL, "%s: MASTER_ADDR is not set, though WORLD_SIZE is", name_of);
    plan.address = variable("MASTER_ADDR");
    if (network) plan.network = network;
    const char *agent = variable("TORCHELASTIC_USE_AGENT_STORE");
    plan.is_hosted = agent && std::string(agent) == "True";
    const char *restart = variable("TORCHELASTIC_RESTART_COUNT");
    if (plan.is_hosted) plan.prefix = "/worker/attempt_" + std::string(restart ? restart : "0");
    return plan;
}

Plan plan_of(const mt_process_group_options &o) {
    Plan plan;
    if (o.count < 1)
        fail(MT_EINVAL, "%s: options->count is %d; at least 1 is accepted", name_of, o.count);
    if (o.rank < 0 || o.rank >= o.count)
        fail(MT_EINVAL, "%s: options->rank is %d; accepted: 0 to %d", name_of, o.rank, o.count - 1);
    if (!o.address || !*o.address)
        fail(MT_EINVAL, "%s: options->address is NULL or empty", name_of);
    if (o.port < 1 || o.port > 65535)
        fail(MT_EINVAL, "%s: options->port is %d; accepted: 1 to 65535", name_of, o.port);
    if (!(o.timeout_seconds >= 0) || o.timeout_seconds > 1e6)
        fail(MT_EINVAL, "%s: options->timeout_seconds is %g; accepted: 0 to 1e6", name_of,
             o.timeout_seconds);
    plan.rank = o.rank;
    plan.count = o.count;
    plan.address = o.address;
    plan.port = o.port;
    if (o.network) plan.network = o.network;
    if (o.timeout_seconds > 0) plan.timeout_seconds = o.timeout_seconds;
    return plan;
}

/* ---- Gloo -------------------------------------------------------------------------------------- */

#ifdef USE_C10D_GLOO

std::chrono::milliseconds timeout_of(const Plan &plan) {
    return std::chrono::milliseconds(std::llround(std::ceil(plan.timeout_seconds * 1000)));
}

/* Rank 0 listens, unless torchrun does, and keeps what the others have written until it leaves. */
c10::intrusive_ptr<c10d::Store> meet(const Plan &plan) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(plan.port);
    options.isServer = plan.rank == 0 && !plan.is_hosted;
    options.numWorkers = static_cast<size_t>(plan.count);
    options.waitWorkers = !plan.is_hosted;
    options.timeout = std::min(timeout_of(plan), std::chrono::milliseconds(300000));
    options.multiTenant = true;
    auto store = c10::make_intrusive<c10d::TCPStore>(plan.address, options);
    if (plan.prefix.empty()) return store;
    return c10::make_intrusive<c10d::PrefixStore>(plan.prefix, store);
}

bool is_this_machine(const std::string &address) {
    return address == "localhost" || address == "::1" || address.compare(0, 4, "127.") == 0;
}

auto device_of(const Plan &plan) {
    using Gloo = c10d::ProcessGroupGloo;
    if (!plan.network.empty()) return Gloo::createDeviceForInterface(plan.network);
    if (is_this_machine(plan.address)) return Gloo::createDeviceForHostname("127.0.0.1");
    return Gloo::createDefaultDevice();
}

struct Gloo {
    int rank, count;
    c10::intrusive_ptr<c10d::ProcessGroupGloo> group;

    explicit Gloo(const Plan &plan) : rank(plan.rank), count(plan.count) {
        auto options = c10d::ProcessGroupGloo::Options::create();
        options->devices.push_back(device_of(plan));
        options->timeout = timeout_of(plan);
        group =
            c10::make_intrusive<c10d::ProcessGroupGloo>(meet(plan), plan.rank, plan.count, options);
    }

    void sum(void *values, size_t n, c10::ScalarType type) {
        std::vector<at::Tensor> list{
            at::from_blob(values, {static_cast<int64_t>(n)}, at::dtype(type))};
        group->allreduce(list)->wait();
    }
};

/* Whatever has gone wrong between processes is no matter of this one's memory. */
template <class Body> mt_status between(int rank, int count, Body &&body) noexcept {
    mt_status status = guard(body);
    if (status == MT_OK || status == MT_EINVAL) return status;
    return mt_set_error(MT_EIO, "process %d of %d: the others are not to be reached: %s", rank,
                        count, mt_last_error());
}

mt_status sum_floats(void *self, float *values, size_t n) {
    Gloo &gloo = *static_cast<Gloo *>(self);
    return between(gloo.rank, gloo.count, [&] { gloo.sum(values, n, at::kFloat); });
}

mt_status sum_doubles(void *self, double *values, size_t n) {
    Gloo &gloo = *static_cast<Gloo *>(self);
    return between(gloo.rank, gloo.count, [&] { gloo.sum(values, n, at::kDouble); });
}

mt_status open(const Plan &plan, mt_process_group &group) {
    return between(plan.rank, plan.count, [&] {
        group.self = std::make_unique<Gloo>(plan).release();
        group.sum_floats = sum_floats;
        group.sum_doubles = sum_doubles;
        group.rank = plan.rank;
        group.count = plan.count;
    });
}

bool is_ours(const mt_process_group &group) {
    return group.sum_floats == sum_floats;
}

void close(const mt_process_group &group) {
    (void)guard([&] { delete static_cast<Gloo *>(group.self); });
}

#else

mt_status open(const Plan &, mt_process_group &) {
    return mt_set_error(MT_ENOTSUP, "%s: this libtorch was built without Gloo", name_of);
}

bool is_ours(const mt_process_group &) {
    return false;
}

void close(const mt_process_group &) {}

#endif

} // namespace
} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_process_group_open(const mt_process_group_options *options,
                                           mt_process_group *out) {
    mt_process_group_options own = MT_PROCESS_GROUP_OPTIONS_INIT;
    mt_process_group group = MT_PROCESS_GROUP_INIT;
    Plan plan;
    MT_RETURN_IF_FAILED(check_sized(out, name_of, "out"));
    hand_over(group, out);
    if (options) {
        MT_RETURN_IF_FAILED(check_sized(options, name_of, "options"));
        copy_in(own, options);
    }
    MT_RETURN_IF_FAILED(guard([&] { plan = options ? plan_of(own) : plan_of_environment(); }));
    if (plan.count == 1) return MT_OK;
    MT_RETURN_IF_FAILED(ensure_init());
    mt_log(MT_LOG_INFO, "process %d of %d meets the others at %s:%d", plan.rank, plan.count,
           plan.address.c_str(), plan.port);
    MT_RETURN_IF_FAILED(open(plan, group));
    hand_over(group, out);
    return MT_OK;
}

extern "C" void mt_process_group_close(mt_process_group *group) {
    const mt_process_group alone = MT_PROCESS_GROUP_INIT;
    if (!group || group->size < sizeof *group || !is_ours(*group)) return;
    close(*group);
    hand_over(alone, group);
}
