/*
 * device.c - picks the device and sets its budget; see device.h.
 */
#include "device.h"
#include "cores.h"
#include "processes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static int is_cpu(const ex_device *device) {
    return strcmp(device->name, "cpu") == 0;
}

static int is_simulated(const ex_device *device) {
    return strncmp(device->name, "sim", 3) == 0;
}

/* Once, by one of several processes that have fewer cards than they are. */
static void tell_shared(const ex_flags *flags, const char *type, size_t cards) {
    if (ex_processes_is_first())
        mt_log(MT_LOG_WARNING,
               "%lld processes of this machine see %zu %s device%s: several share one, and "
               "--budget is for each, unless each is shown another one",
               (long long)flags->sharing, cards, type, cards == 1 ? "" : "s");
}

/* The same where all have the card that --device names. */
static void tell_named(const ex_flags *flags, const char *name) {
    if (ex_processes_is_first())
        mt_log(MT_LOG_WARNING,
               "--device: %lld processes of this machine share '%s', and --budget is for each%s",
               (long long)flags->sharing, name,
               strchr(name, ':') ? "; a type without a number gives each a card of its own" : "");
}

const char *ex_device_auto(void) {
    static const char *const cards[] = {"cuda", "xpu", "mps"};
    static char other[64];
    for (size_t i = 0; i < EX_ROWS(cards); i++)
        if (mt_device_check(cards[i]) == MT_OK) return cards[i];
    for (size_t i = 1; mt_device_here(i, other, sizeof other) == MT_OK; i++) {
        other[strcspn(other, ":")] = '\0';
        if (mt_device_check(other) == MT_OK) return other;
    }
    return "cpu";
}

/* Whether it is a card whose part of libtorch is a library of its own, or may be. */
static int wants_cards(const char *name) {
    return strcmp(name, "auto") == 0 || strncmp(name, "cuda", 4) == 0 ||
           strncmp(name, "xpu", 3) == 0;
}

/*
 * Of several processes of one machine each takes the card of its number. Where there are fewer, as launchers have it that show
 * each process one of its own, numbers begin anew. Without any the name stays, of which mt_device_check says what is wrong.
 */
static mt_status pick_card(const ex_flags *flags, const char *type, ex_device *device) {
    size_t cards, number = (size_t)flags->card;
    mt_status status = mt_device_count(type, &cards);
    if (status != MT_OK || !cards) return status;
    if (cards < (size_t)flags->sharing) {
        tell_shared(flags, type, cards);
        number %= cards;
        device->sharers = ((size_t)flags->sharing + cards - 1) / cards;
    }
    snprintf(device->card, sizeof device->card, "%s:%zu", type, number);
    device->name = device->card;
    return MT_OK;
}

/* Whether it is a type of cards that have numbers. */
static int is_numbered_type(const ex_device *device) {
    return !is_cpu(device) && !is_simulated(device) && strcmp(device->name, "mps") != 0 &&
           !strchr(device->name, ':');
}

/* auto takes the first that can be used; a device named by the user must be one that can. */
static mt_status pick(const ex_flags *flags, ex_device *device) {
    const char *name = flags->device;
    if (strcmp(name, "auto") == 0) name = ex_device_auto();
    device->name = name;
    if (is_numbered_type(device) && mt_device_check(name) == MT_OK && flags->processes > 1) {
        mt_status status = pick_card(flags, name, device);
        if (status != MT_OK) return status;
    } else if (flags->sharing > 1 && !is_cpu(device) && !is_simulated(device) &&
               mt_device_check(name) == MT_OK) {
        tell_named(flags, name);
        device->sharers = (size_t)flags->sharing;
    }
    if (mt_device_check(device->name) == MT_OK) return MT_OK;
    return mt_set_error(MT_EINVAL, "--device: '%s' cannot be used here: %s", device->name,
                        mt_last_error());
}

/* OMP_NUM_THREADS, of whose numbers the first counts; no limit where it is not set. */
static int64_t wanted_threads(void) {
    const char *text = getenv("OMP_NUM_THREADS");
    long number = text ? strtol(text, NULL, 10) : 0;
    return number > 0 ? number : INT64_MAX;
}

/* One thread per core that this process may use; processes of one machine share its cores. */
static mt_status set_threads(const ex_flags *flags, int earlier, int *out) {
    int64_t cores = ex_cores_read().usable / flags->sharing;
    if (cores > wanted_threads()) cores = wanted_threads();
    int64_t flag = flags->threads;
    if (flag && earlier && flag != earlier)
        return mt_set_error(
            MT_EINVAL, "--threads: '%lld' is not accepted; accepted: %d, as in the %s, or auto",
            (long long)flag, earlier, flags->resume ? "run of --resume" : "trace of --replay");
    *out = flag ? (int)flag : earlier ? earlier : cores > 0 ? (int)cores : 1;
    return mt_torch_set_threads(*out);
}

/* What a fraction is a fraction of: what is free, and on a GPU what this process holds already. */
static mt_status measure_room(const ex_flags *flags, ex_device *device) {
    if (is_cpu(device)) {
        mt_host_memory host = MT_HOST_MEMORY_INIT;
        mt_status status = mt_host_memory_read(NULL, &host);
        device->room_bytes =
            least(host.available_bytes, host.cgroup_room_bytes) / (size_t)flags->sharing;
        return status;
    }
    mt_memory memory = MT_MEMORY_INIT;
    mt_status status = mt_device_memory(device->name, &memory);
    device->room_bytes = memory.free_bytes + memory.reserved_bytes;
    if (device->sharers > 1) device->room_bytes /= device->sharers;
    return status;
}

/* The budget as it is now. */
static mt_status read_device(ex_device *device) {
    mt_memory memory = MT_MEMORY_INIT;
    mt_status status = mt_device_memory(device->name, &memory);
    device->budget_bytes = memory.budget_bytes;
    return status;
}

/* What the device would take by itself is of all there is; on a card a process has its part of that. */
static mt_status read_auto(const ex_flags *flags, ex_device *device, size_t *bytes) {
    char all[32];
    int is_share = is_cpu(device) && flags->sharing > 1;
    if (device->sharers > 1) {
        mt_status status = mt_device_set_budget(device->name, 0);
        if (status == MT_OK) status = read_device(device);
        *bytes = device->budget_bytes / device->sharers;
        snprintf(device->budget_from, sizeof device->budget_from,
                 "--budget auto: of %s for %zu processes",
                 mt_format_size(device->budget_bytes, all, sizeof all), device->sharers);
        return status;
    }
    if (strcmp(device->name, "mps") == 0)
        snprintf(device->budget_from, sizeof device->budget_from,
                 "--budget auto: of what Metal recommends");
    else
        snprintf(device->budget_from, sizeof device->budget_from,
                 "--budget auto: of %s that are free%s",
                 mt_format_size(device->room_bytes, all, sizeof all),
                 is_share ? " for each process" : "");
    return is_share ? mt_parse_size("0.9", device->room_bytes, bytes) : MT_OK;
}

static mt_status read_budget(const ex_flags *flags, ex_device *device, const char *text,
                             size_t *bytes) {
    *bytes = 0;
    if (!text || strcmp(text, "auto") == 0) return read_auto(flags, device, bytes);
    snprintf(device->budget_from, sizeof device->budget_from, "--budget %.40s", text);
    if (mt_parse_size(text, device->room_bytes, bytes) == MT_OK && *bytes) return MT_OK;
    return mt_set_error(MT_EINVAL,
                        "--budget: '%s' is not accepted; accepted: a size such as 600MiB, 8GB%s, "
                        "or auto",
                        text, device->room_bytes ? ", 0.95 or 80% (of what is there)" : "");
}

/* A simulated card of that size, on MPS the recommended working set; its budget is the default. */
static mt_status simulate(ex_device *device, size_t *bytes) {
    mt_sim_options options = MT_SIM_OPTIONS_INIT;
    int is_mps = strcmp(device->name, "sim:mps") == 0;
    if (!is_simulated(device)) return MT_OK;
    if (!*bytes) { /* a default card; what is free on MPS is a figure of the host's */
        if (is_mps) device->room_bytes = 0;
        snprintf(device->budget_from, sizeof device->budget_from,
                 "--budget auto: of a simulated card of the default size");
        return MT_OK;
    }
    if (is_mps)
        options.recommended_bytes = *bytes;
    else
        options.total_bytes = *bytes;
    device->card_bytes = device->room_bytes = *bytes;
    *bytes = 0;
    return mt_device_simulate(device->name, &options);
}

static mt_status set_budget(const ex_flags *flags, ex_device *device, const char *text) {
    size_t bytes;
    mt_status status = measure_room(flags, device);
    if (status == MT_OK) status = read_budget(flags, device, text, &bytes);
    if (status == MT_OK) status = simulate(device, &bytes);
    if (status == MT_OK) status = mt_device_set_budget(device->name, bytes);
    if (status == MT_OK) status = read_device(device);
    if (status == MT_OK && device->room_bytes && bytes > device->room_bytes)
        mt_log(MT_LOG_WARNING, "%s is more than what is free: the system may swap or stop the run",
               device->budget_from);
    if (status == MT_OK && is_cpu(device) && !mt_torch_enforces_budget())
        mt_log(MT_LOG_WARNING, "the budget is watched, not enforced: libtorch keeps its allocator");
    return status;
}

static mt_status check_offload_dir(const char *folder) {
    if (!folder || access(folder, W_OK) == 0) return MT_OK;
    return mt_set_error(MT_EINVAL, "--offload-dir: cannot write to '%s': %s", folder,
                        strerror(errno));
}

mt_status ex_device_follow(const ex_flags *flags, ex_device *device) {
    char limit[32];
    mt_status status = read_device(device);
    device->resident_binds = flags->budget_resident && status == MT_OK &&
                             (!device->own_bytes || device->budget_bytes < device->own_bytes);
    if (device->resident_binds)
        snprintf(device->budget_from, sizeof device->budget_from, "--budget-resident %s",
                 mt_format_size(flags->budget_resident, limit, sizeof limit));
    return status;
}

mt_status ex_device_open(const ex_flags *flags, const char *budget, int replayed, ex_device *out) {
    mt_torch_init_options init = MT_TORCH_INIT_OPTIONS_INIT;
    memset(out, 0, sizeof *out);
    init.cuda = wants_cards(flags->device);
    mt_status status = check_offload_dir(flags->offload_dir);
    if (status == MT_OK) status = mt_torch_init(&init);
    if (status == MT_OK) status = pick(flags, out);
    if (status == MT_OK) status = ex_flags_check_device(flags, out->name);
    if (status == MT_OK) status = set_threads(flags, replayed, &out->threads);
    if (status == MT_OK) status = mt_torch_seed((uint64_t)flags->seed);
    if (status != MT_OK) return status;
    const char *otherwise = is_cpu(out) ? budget : NULL;
    status = set_budget(flags, out, flags->budget ? flags->budget : otherwise);
    out->own_bytes = out->budget_bytes;
    if (status != MT_OK || !flags->budget_resident) return status;
    status = mt_device_set_resident_budget(out->name, flags->budget_resident);
    return status == MT_OK ? ex_device_follow(flags, out) : status;
}

mt_status ex_device_torch(const ex_flags *flags, ex_device *device, const mt_torch_options *wanted,
                          mt_model *model, mt_torch **out) {
    mt_torch_options options = *wanted;
    options.device = device->name;
    mt_status status = mt_torch_new(model, &options, out);
    int may_fall_back =
        (flags->fallback & MT_RUNG_BIT(MT_RUNG_CPU)) && !is_cpu(device) && flags->processes == 1;
    if (status != MT_EDEVMEM || !may_fall_back) return status;
    snprintf(device->left, sizeof device->left, "%s", mt_last_error());
    mt_log(MT_LOG_WARNING, "--fallback: going on on the CPU: %s", device->left);
    device->name = options.device = "cpu";
    device->card_bytes = 0;
    status = set_budget(flags, device, NULL);
    return status == MT_OK ? mt_torch_new(model, &options, out) : status;
}
