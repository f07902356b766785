/*
 * state_file.cpp - the whole state in one file, and back: parameters, buffers, optimiser state and random
 * number generators under the names that the state's hash has, and in the metadata the rest.
 */
#include "torch_state.hpp"

#include <cmath>
#include <cstring>
#include <locale>
#include <mutex>
#include <optional>
#include <sstream>
#include <unordered_set>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "arguments.hpp"
#include "device_memory.hpp"
#include "guard.hpp"
#include "hash.hpp"
#include "tensor_file.hpp"

namespace memtrain::shim {
namespace {

constexpr char version[] = "1"; /* of what is in such a file */

const char *optimizer_name(const mt_torch &torch) {
    switch (number_of(torch.options.optimizer)) {
    case MT_SGD:
        return "sgd";
    case MT_ADAM:
        return "adam";
    default:
        return "adamw";
    }
}

/* A number that reads back bit-equal, whatever locale the program has set. */
std::string text_of(double value) {
    std::ostringstream text;
    text.imbue(std::locale::classic());
    text.precision(17);
    text << value;
    return text.str();
}

/* ---- saving ---- */

Texts texts_of(const mt_torch &torch, const std::vector<Named> &list, const char *extra) {
    char hash[65];
    sha256(list, hash);
    return {
        {"format", "pt"}, /* what Python's readers look for */
        {"memtrain.checkpoint", version},
        {"memtrain.version", mt_version_string()},
        {"memtrain.torch", mt_torch_version()},
        {"memtrain.device", torch.device_name},
        {"memtrain.optimizer", optimizer_name(torch)},
        {"memtrain.lr", text_of(torch.optimizer->lr())},
        {"memtrain.state_sha256", hash},
        {"memtrain.extra", extra ? extra : ""},
    };
}

void save(const mt_torch &torch, const char *path, const mt_torch_save_options &options) {
    c10::NoGradGuard no_grad;
    std::vector<Named> list = state_of(torch);
    append_rng(torch.device, list);
    sort_by_name(list);
    save_tensors(path, list, texts_of(torch, list, options.extra), options.keep != 0);
}

/* ---- loading ---- */

/* What a file says beside the tensors. */
struct Rest {
    double lr;
    const char *hash, *extra;
};

const char *text_in(const TensorFile &file, const char *path, const char *key) {
    const char *text = file.metadata(key);
    if (!text)
        fail(MT_EINVAL, "mt_torch_load: '%.200s' is no checkpoint: it has no '%s'", path, key);
    return text;
}

/* A number above 0. */
double number_in(const TensorFile &file, const char *path, const char *key) {
    double value = 0.0;
    std::istringstream text(text_in(file, path, key));
    text.imbue(std::locale::classic());
    if (!(text >> value) || !text.eof() || !(value > 0.0) || std::isinf(value))
        fail(MT_EINVAL, "mt_torch_load: '%.200s': %s is '%.40s'; accepted: a number above 0", path,
             key, file.metadata(key));
    return value;
}

Rest rest_of(const mt_torch &torch, const TensorFile &file, const char *path, size_t room) {
    const char *found = text_in(file, path, "memtrain.checkpoint");
    if (std::strcmp(found, version) != 0)
        fail(MT_EINVAL, "mt_torch_load: '%.200s' is a checkpoint of version %.20s; accepted: %s",
             path, found, version);
    found = text_in(file, path, "memtrain.optimizer");
    if (std::strcmp(found, optimizer_name(torch)) != 0)
        fail(MT_EINVAL, "mt_torch_load: '%.200s' is of a run with the optimiser %.20s, not %s",
             path, found, optimizer_name(torch));
    Rest rest = {number_in(file, path, "memtrain.lr"), text_in(file, path, "memtrain.state_sha256"),
                 text_in(file, path, "memtrain.extra")};
    if (room && std::strlen(rest.extra) >= room)
        fail(MT_EINVAL, "mt_torch_load: capacity is %zu; the extra text of '%.200s' needs %zu",
             room, path, std::strlen(rest.extra) + 1);
    return rest;
}

bool is_rng(const std::string &name) {
    return name.rfind("rng.", 0) == 0;
}

/* The generator of another device cannot go on with this one's numbers. */
bool is_of_device(const std::string &name) {
    return is_rng(name) && name != "rng.cpu";
}

/* What a run may do without: a generator that it does not have, a loss scaler of another precision. */
bool is_optional(const std::string &name) {
    return is_of_device(name) || name == Scaler::name;
}

void warn(const char *path, const std::string &name, const char *what) {
    mt_log(MT_LOG_WARNING, "'%.200s' %s %s: the run does not go on with the same %s", path, what,
           name.c_str(), name == Scaler::name ? "loss scale" : "random numbers");
}

/*
 * Which parameters have optimiser state in the file: memory for them is there afterwards, whatever is frozen now.
 * Those that train have theirs all the same, which begins anew.
 */
struct Layout {
    std::vector<bool> placed;              /* by slot */
    std::vector<size_t> anew;              /* slots */
    std::unordered_set<std::string> names; /* of their state */
};

/* In a file without any optimiser state that is a difference, like another. */
Layout layout_of(const mt_torch &torch, const TensorFile &file) {
    const std::vector<Slot> &slots = torch.flat->slots();
    std::unordered_set<std::string> there;
    Layout now{torch.flat->placed(), {}, {}}, layout;
    bool some = false;
    for (size_t i = 0; i < file.count(); i++) there.insert(file.entry(i).name);
    for (size_t i = 0; i < slots.size(); i++) {
        bool is_saved = false;
        std::vector<std::string> names = torch.optimizer->state_names(i);
        for (const std::string &name : names) is_saved |= there.count(name) > 0;
        some |= is_saved;
        layout.placed.push_back(is_saved || !slots[i].frozen);
        if (is_saved || slots[i].frozen) continue;
        layout.anew.push_back(i);
        layout.names.insert(names.begin(), names.end());
    }
    return some ? layout : now;
}

void warn_of_anew(const mt_torch &torch, const Layout &layout, const char *path) {
    if (layout.anew.empty()) return;
    mt_log(
        MT_LOG_WARNING,
        "'%.200s' has no optimiser state of %zu parameters that train here, '%.100s' is the first: "
        "they were frozen when it was saved, and begin without",
        path, layout.anew.size(), torch.flat->slots()[layout.anew[0]].name.c_str());
}

/* Both lists are sorted by the bytes of the names. */
std::vector<Match> match(const std::vector<Named> &list, const TensorFile &file, const char *path,
                         const Layout &layout) {
    std::vector<Match> matches;
    Differences differences;
    size_t here = 0, there = 0;
    while (here < list.size() || there < file.count()) {
        int order = here == list.size()     ? 1
                    : there == file.count() ? -1
                                            : list[here].name.compare(file.entry(there).name);
        const std::string name = order > 0 ? file.entry(there).name : list[here].name;
        if (order < 0 && is_optional(name))
            warn(path, name, "does not have");
        else if (order > 0 && is_optional(name))
            warn(path, name, "is of a run with");
        else if (order < 0 && !layout.names.count(name))
            differences.add_missing(name);
        else if (order > 0)
            differences.add_unexpected(name);
        else if (order == 0 && !file.fits(there, list[here].tensor))
            differences.add_different(name, file.description(there),
                                      description_of(list[here].tensor));
        else if (order == 0)
            matches.push_back({list[here].tensor, there});
        here += order <= 0;
        there += order >= 0;
    }
    differences.check("mt_torch_load", path);
    return matches;
}

void check_hash(const TensorFile &file, const char *path, const char *expected, Staging &staging) {
    char found[65];
    StateHash hash;
    file.read_through(&hash, staging);
    hash.finish(found);
    if (std::strcmp(found, expected) != 0)
        fail(MT_EINVAL,
             "mt_torch_load: '%.200s' is damaged: its tensors are not those that were saved", path);
}

/* A generator and the state that it shall have. */
struct Generator {
    at::Generator generator;
    at::Tensor state;
};

/* Reads the generators' states and tries each on a copy of its generator. */
std::vector<Generator> read_generators(const std::vector<Match> &matches, const TensorFile &file,
                                       c10::Device device, Staging &staging) {
    std::vector<Generator> list;
    for (const Match &match : matches) {
        std::string name = file.entry(match.index).name;
        if (!is_rng(name)) continue;
        c10::Device where = is_of_device(name) ? device : c10::Device(c10::kCPU);
        at::Generator generator = at::globalContext().defaultGenerator(where);
        file.read(match.index, match.tensor, staging);
        generator.clone().set_state(match.tensor);
        list.push_back({generator, match.tensor});
    }
    return list;
}

void set_generators(std::vector<Generator> &list) {
    for (Generator &item : list) {
        std::lock_guard<std::mutex> lock(item.generator.mutex());
        item.generator.set_state(item.state);
    }
}

/* The scaler's state, read and checked; undefined: there is none to set. */
at::Tensor read_scaler(const std::vector<Match> &matches, const TensorFile &file,
                       Staging &staging) {
    for (const Match &match : matches) {
        if (std::strcmp(file.entry(match.index).name, Scaler::name) != 0) continue;
        file.read(match.index, match.tensor, staging);
        Scaler::check_state(match.tensor);
        return match.tensor;
    }
    return {};
}

/* Whatever it throws has not changed anything, unless *out_changing is set. */
void load(mt_torch &torch, const char *path, char *extra, size_t capacity, bool *out_changing) {
    c10::NoGradGuard no_grad;
    Staging staging;
    TensorFile file(path);
    Rest rest = rest_of(torch, file, path, extra ? capacity : 0);
    Layout layout = layout_of(torch, file);
    std::optional<Resettled> resettled;
    if (layout.placed != torch.flat->placed()) resettled.emplace(torch, layout.placed);
    std::vector<Named> list = state_of(torch);
    append_rng(torch.device, list);
    sort_by_name(list);
    std::vector<Match> matches = match(list, file, path, layout);
    check_hash(file, path, rest.hash, staging);
    for (const Match &match : matches) file.check_shared("mt_torch_load", path, match);
    std::vector<Generator> generators = read_generators(matches, file, torch.device, staging);
    at::Tensor scaler = read_scaler(matches, file, staging);
    *out_changing = true;
    if (resettled) resettled->keep();
    if (scaler.defined()) torch.scaler->set_state(scaler);
    set_generators(generators);
    for (const Match &match : matches)
        if (!is_rng(file.entry(match.index).name)) file.read(match.index, match.tensor, staging);
    for (size_t slot : layout.anew) torch.optimizer->reset(slot);
    synchronize(torch.device);
    warn_of_anew(torch, layout, path);
    torch.optimizer->set_lr(rest.lr);
    if (extra) std::memcpy(extra, rest.extra, std::strlen(rest.extra) + 1);
}

/* The state is as good as new, also where it had been lost. */
void revive(mt_torch &torch) {
    if (torch.phase != Phase::poisoned) return;
    torch.flat->clear_gradients();
    torch.marked = false;
    torch.phase = Phase::idle;
}

} // namespace
} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_torch_save(mt_torch *torch, const char *path,
                                   const mt_torch_save_options *options) {
    static const char name[] = "mt_torch_save";
    mt_torch_save_options own = MT_TORCH_SAVE_OPTIONS_INIT;
    MT_RETURN_IF_FAILED(check_handle(torch, MT__KIND_TORCH, name, "torch"));
    MT_RETURN_IF_FAILED(check_not_null(path, name, "path"));
    if (options) {
        MT_RETURN_IF_FAILED(check_sized(options, name, "options"));
        copy_in(own, options);
    }
    MT_RETURN_IF_FAILED(check_phase(name, *torch, Phase::idle, Phase::idle));
    return guard(torch->device, [&] { save(*torch, path, own); });
}

extern "C" mt_status mt_torch_load(mt_torch *torch, const char *path, char *extra,
                                   size_t capacity) {
    static const char name[] = "mt_torch_load";
    MT_RETURN_IF_FAILED(check_handle(torch, MT__KIND_TORCH, name, "torch"));
    MT_RETURN_IF_FAILED(check_not_null(path, name, "path"));
    if (extra && !capacity)
        return mt_set_error(MT_EINVAL, "%s: capacity is 0; accepted: at least 1", name);
    MT_RETURN_IF_FAILED(check_phase(name, *torch, Phase::idle, Phase::poisoned));
    bool changing = false;
    mt_status status = guard(torch->device, [&] {
        load(*torch, path, extra, capacity, &changing);
        revive(*torch);
    });
    return status == MT_OK || !changing ? status : poison(*torch, status);
}
