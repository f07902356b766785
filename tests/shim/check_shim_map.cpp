/*
 * check_shim_map.cpp - frozen weights that are views of mapped files: the bits of loaded ones, what is held and read
 * ahead, memory that runs out anywhere, and files that are wrong or change.
 */
#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/normalization.h>

#include <memtrain/safetensors.h>
#include <memtrain/torch_map.hpp>

#include "owned.hpp"
#include "model_faults.hpp"
#include "networks/batches.hpp"

using namespace check_shim;
using memtrain::Tensors;

namespace {

constexpr int64_t width = 24, block_count = 3;
constexpr size_t block_numbers = width * width + 3 * width; /* of a block */

std::string folder;

std::string in_folder(const std::string &name) {
    return folder + "/" + name;
}

void make_folder() {
    char name[] = "/tmp/check_map.XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(name));
    folder = name;
}

void remove_folder() {
    for (const char *name : {"w", "w.json", "w1", "w2", "w3", "c", "c.1", "other"})
        std::remove(in_folder(name).c_str());
    ck_assert_int_eq(rmdir(folder.c_str()), 0);
}

/* ---- a network of frozen blocks, with adapters that train between them ---- */

struct FrozenBlockImpl : nn::Module {
    nn::LayerNorm norm;
    nn::Linear linear;

    FrozenBlockImpl()
        : norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})))),
          linear(register_module("linear", nn::Linear(width, width))) {
        for (at::Tensor &parameter : parameters()) parameter.set_requires_grad(false);
    }
    at::Tensor forward(const at::Tensor &x) {
        return x + at::dropout(linear(norm(x)).tanh(), 0.2, is_training());
    }
};
TORCH_MODULE(FrozenBlock);

enum Way { PLAIN, FROZEN };

struct AdaptedImpl : nn::Module {
    at::Tensor prompt; /* before the first block: its gradient passes through all of them */
    std::vector<FrozenBlock> blocks;
    std::vector<nn::Linear> adapters;
    nn::Linear head;
    Way way;
    std::function<void()> within; /* called inside of each block */

    explicit AdaptedImpl(Way w) : head(nn::Linear(width, 3)), way(w) {
        prompt = register_parameter("prompt", at::randn({width}));
        for (int64_t i = 0; i < block_count; i++) {
            const std::string number = std::to_string(i);
            blocks.push_back(register_module("block" + number, FrozenBlock()));
            adapters.push_back(register_module("adapter" + number, nn::Linear(width, width)));
        }
        register_module("head", head);
    }
    at::Tensor forward(at::Tensor x) {
        x = x + prompt;
        for (size_t i = 0; i < blocks.size(); i++) {
            auto block = blocks[i];
            auto run = [block, this](const Tensors &in) mutable {
                if (within) within();
                return Tensors{block(in[0])};
            };
            x = way == PLAIN ? block(x) : memtrain::frozen_block(run, {x}, 1, {block.ptr()})[0];
            x = x + adapters[i](x);
        }
        return head(x);
    }
};
TORCH_MODULE(Adapted);

struct Setting {
    Way way = FROZEN;
    bool load = false;
    int amp = MT_DTYPE_NONE;
    int offload = MT_OFFLOAD_NEVER;
    const char *path = "w";
    int drop = MT_MAP_DROP_AUTO;
};

mt_map_options map_options(int strict = 1) {
    mt_map_options options = MT_MAP_OPTIONS_INIT;
    options.strict = strict;
    return options;
}

/* The file of that name in the folder. */
mt_status map(mt_model *model, const char *name, const mt_map_options &options) {
    return mt_model_map_weights(model, in_folder(name).c_str(), &options);
}

mt_map_stats stats_of(const mt_model *model) {
    mt_map_stats stats = MT_MAP_STATS_INIT;
    ck_ok(mt_model_map_stats(model, &stats));
    return stats;
}

/* The model, with the file's weights unless path is NULL, and its optimiser. */
struct Run : Owned {
    Adapted net{nullptr};
    networks::TensorBatch batch = made_up();

    explicit Run(const Setting &setting) {
        ck_ok(new_model(setting.way, &model, &net));
        mt_map_options options = map_options(0);
        options.load = setting.load;
        options.drop = setting.drop;
        if (setting.path) ck_ok(map(model, setting.path, options));
        mt_torch_options torch_options = options_of(MT_ADAMW, 1.0);
        torch_options.device = "cpu";
        torch_options.lr = 1e-2;
        torch_options.amp = static_cast<mt_dtype>(setting.amp);
        torch_options.offload = setting.offload;
        ck_ok(mt_torch_new(model, &torch_options, &torch));
    }

    static void prepare() {
        start();
        ck_ok(mt_torch_seed(11));
    }

    static networks::TensorBatch made_up() {
        prepare();
        at::Tensor i = at::arange(8 * width, at::kFloat), n = at::arange(8);
        return networks::TensorBatch(
            {((i * 37 + 11).remainder(101) / 50 - 1).view({8, width}), n.remainder(3)});
    }

    static mt_status new_model(Way way, mt_model **out, Adapted *out_net) {
        return memtrain::make_model(out, [&] {
            Adapted made(way);
            if (out_net) *out_net = made;
            return memtrain::model(made.ptr(), {}, [](AdaptedImpl &n, const Tensors &b) {
                return memtrain::Output{at::cross_entropy_loss(n.forward(b[0]), b[1]), {}};
            });
        });
    }

    mt_status step(const std::vector<size_t> &sizes, std::string *losses = nullptr) {
        mt_apply_result applied = apply_result();
        mt_status status = mt_begin(torch, batch.get());
        size_t first = 0;
        for (size_t size : sizes) {
            mt_chunk_result result = chunk_result();
            if (status != MT_OK) break;
            status = mt_accumulate(torch, first, size, static_cast<double>(size) / 8.0, &result);
            first += size;
            if (losses) losses->append(reinterpret_cast<char *>(&result.loss_sum), sizeof(double));
        }
        return status == MT_OK ? mt_apply(torch, &applied) : status;
    }

    /* What trains, and what the blocks give. */
    std::map<std::string, std::string> state() const {
        std::map<std::string, std::string> bytes;
        for (const auto &item : net->named_parameters())
            if (item.value().requires_grad()) bytes[item.key()] = raw_bytes(item.value());
        return bytes;
    }

    mt_map_stats stats() const { return stats_of(model); }
};

/* A model without weights of a file. */
struct Fresh : Owned {
    Adapted net{nullptr};
    Fresh() {
        Run::prepare();
        ck_ok(Run::new_model(FROZEN, &model, &net));
    }
    mt_status map(const char *name, const mt_map_options &options) const {
        return ::map(model, name, options);
    }
    void refuses(const char *name, const mt_map_options &options, mt_status expected,
                 const char *word) const {
        ck_refused(map(name, options), expected, word);
        ck_assert_uint_eq(stats_of(model).tensors, 0);
    }
};

/* ---- files ---- */

using Content = std::map<std::string, at::Tensor>;

void write_file(const char *name, const Content &content) {
    std::vector<mt_safetensors_tensor> list;
    for (const auto &[key, tensor] : content) {
        mt_st_dtype dtype = tensor.scalar_type() == at::kFloat  ? MT_ST_F32
                            : tensor.scalar_type() == at::kHalf ? MT_ST_F16
                            : tensor.scalar_type() == at::kLong ? MT_ST_I64
                            : tensor.scalar_type() == at::kBool ? MT_ST_BOOL
                                                                : MT_ST_BF16;
        list.push_back({key.c_str(), dtype, static_cast<size_t>(tensor.dim()),
                        tensor.sizes().data(), tensor.nbytes(), tensor.data_ptr()});
    }
    ck_ok(mt_safetensors_save(in_folder(name).c_str(), list.data(), list.size(), nullptr));
}

/* Other numbers than a new network has, in that type. */
Content frozen_weights(at::ScalarType dtype) {
    Content content;
    Run::prepare();
    ck_ok(mt_torch_seed(99));
    Adapted net(PLAIN);
    for (const auto &item : net->named_parameters())
        if (!item.value().requires_grad())
            content[item.key()] = (item.value() + 0.1 * at::randn_like(item.value())).to(dtype);
    return content;
}

void write_text(const char *name, const std::string &text) {
    std::ofstream(in_folder(name), std::ios::binary) << text;
}

std::string text_of(const char *name) {
    std::ifstream file(in_folder(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

/* A file a block, and an index. */
void write_shards(at::ScalarType dtype) {
    Content parts[block_count];
    std::string map;
    for (const auto &[name, tensor] : frozen_weights(dtype)) {
        const int i = name[5] - '0';
        parts[i][name] = tensor;
        map += (map.empty() ? "" : ", ") + ("\"" + name) + "\": \"w" + std::to_string(i + 1) + "\"";
    }
    for (int i = 0; i < block_count; i++)
        write_file(("w" + std::to_string(i + 1)).c_str(), parts[i]);
    write_text("w.json",
               "{\"metadata\": {\"total_size\": 1.5e3, \"of\": [1, {\"a\": null}, \"]\"]},\n "
               "\"weight_map\": {" +
                   map + "}}");
}

constexpr at::ScalarType dtypes[] = {at::kFloat, at::kHalf, at::kBFloat16};

/* ---- the same bits ---- */

struct Result {
    std::string losses;
    std::map<std::string, std::string> state;
};

Result train(const Setting &setting) {
    Result result;
    Run run(setting);
    ck_ok(run.step({3, 5}, &result.losses));
    ck_ok(run.step({8}, &result.losses));
    ck_ok(run.step({2, 2, 4}, &result.losses));
    mt_chunk_result evaluated = chunk_result();
    ck_ok(mt_evaluate(run.torch, run.batch.get(), 0, 8, &evaluated));
    result.losses.append(reinterpret_cast<char *>(&evaluated.loss_sum), sizeof(double));
    result.state = run.state();
    return result;
}

void check_equal(const Result &a, const Result &b, const char *what) {
    ck_assert_msg(a.losses == b.losses, "%s: other losses", what);
    ck_assert_uint_eq(a.state.size(), 2 * block_count + 3);
    for (const auto &[name, bytes] : a.state)
        ck_assert_msg(bytes == b.state.at(name), "%s: other bits in %s", what, name.c_str());
}

TEST_LOOP("bits", mapped_is_loaded, 2 * LENGTH(dtypes)) {
    const at::ScalarType dtype = dtypes[_i % LENGTH(dtypes)];
    const int amp = _i / LENGTH(dtypes) ? MT_BFLOAT16 : MT_DTYPE_NONE;
    write_file("w", frozen_weights(dtype));
    const Result plain = train({PLAIN, true, amp});
    check_equal(train({FROZEN, true, amp}), plain, "loaded, in frozen blocks");
    check_equal(train({FROZEN, false, amp}), plain, "mapped");
    const Result random = train({PLAIN, true, amp, MT_OFFLOAD_NEVER, nullptr});
    ck_assert(random.losses != plain.losses); /* the file matters */
}

TEST_LOOP("bits", shards_are_one_file, LENGTH(dtypes)) {
    write_file("w", frozen_weights(dtypes[_i]));
    write_shards(dtypes[_i]);
    const Result whole = train({FROZEN, false});
    check_equal(train({FROZEN, false, MT_DTYPE_NONE, MT_OFFLOAD_NEVER, "w.json"}), whole, "shards");
    check_equal(train({FROZEN, true, MT_DTYPE_NONE, MT_OFFLOAD_NEVER, "w.json"}), whole, "loaded");
    Run run({FROZEN, false, MT_DTYPE_NONE, MT_OFFLOAD_NEVER, "w.json"});
    ck_assert_uint_eq(run.stats().files, block_count);
}

/* What waits for the backward pass waits elsewhere; weights are not among it. */
TEST("bits", offload_is_the_same) {
    write_file("w", frozen_weights(at::kBFloat16));
    check_equal(train({FROZEN, false, MT_DTYPE_NONE, MT_OFFLOAD_FILE}), train({FROZEN, false}),
                "offload");
}

/* ---- what is held ---- */

TEST_LOOP("held", no_budget_counts_it, LENGTH(dtypes)) {
    const at::ScalarType dtype = dtypes[_i];
    const uint64_t numbers = block_count * block_numbers;
    write_file("w", frozen_weights(dtype));
    Run loaded({FROZEN, true}), mapped({FROZEN, false});
    mt_backend_info with = info_of(seam_of(loaded.torch)), without = info_of(seam_of(mapped.torch));
    ck_assert_uint_eq(with.parameter_bytes - without.parameter_bytes, 4 * numbers);
    ck_assert(with.model != without.model); /* what one has learnt is not the other's */
    mt_map_stats stats = mapped.stats();
    ck_assert_uint_eq(stats.tensors, 4 * block_count);
    ck_assert_uint_eq(stats.mapped_bytes, numbers * c10::elementSize(dtype));
    ck_assert_uint_eq(stats.loaded_bytes, 0);
    ck_assert_uint_eq(loaded.stats().loaded_bytes, 4 * numbers);
    ck_assert_uint_eq(loaded.stats().mapped_bytes, 0);
    const size_t before = cpu_memory().allocated_bytes;
    ck_ok(mapped.step({8}));
    ck_assert_uint_eq(cpu_memory().allocated_bytes, before); /* casts are gone */
    const uint64_t cast = dtype == at::kFloat ? 0 : 4 * block_numbers;
    ck_assert_uint_eq(mapped.stats().most_cast_bytes, cast);
    for (const auto &item : mapped.net->named_parameters())
        if (!item.value().requires_grad()) ck_assert(item.value().scalar_type() == dtype);
}

/* One number, expanded: a network that is larger than the memory can be made. */
TEST("held", a_place_without_memory) {
    write_file("w", frozen_weights(at::kBFloat16));
    for (int load = 0; load < 2; load++) {
        Fresh fresh;
        const Adapted &net = fresh.net;
        for (const auto &item : net->named_parameters())
            if (!item.value().requires_grad())
                item.value().set_data(at::zeros({1}).expand(item.value().sizes()));
        const size_t before = cpu_memory().allocated_bytes;
        mt_map_options options = map_options(0);
        options.load = load;
        ck_ok(fresh.map("w", options));
        const size_t numbers = block_count * block_numbers * 4, now = cpu_memory().allocated_bytes;
        ck_assert(load ? now > before + numbers / 2 : now <= before);
        ck_assert(net->blocks[1]->linear->weight.is_contiguous());
    }
}

/* In the order of the last pass: forward, and backward in the other direction. */
TEST("held", blocks_are_read_ahead) {
    write_file("w", frozen_weights(at::kHalf));
    Run run({FROZEN, false});
    const uint64_t bytes = 2 * block_numbers;
    ck_ok(run.step({8}));
    mt_map_stats first = run.stats();
    ck_assert_uint_eq(first.blocks, 2 * block_count);
    ck_assert_uint_ge(first.given_back_bytes, 2 * block_count * bytes);
    ck_assert_uint_eq(first.read_ahead_bytes, 0); /* nobody knew */
    ck_ok(run.step({8}));
    ck_ok(run.step({8}));
    mt_map_stats third = run.stats();
    ck_ok(run.step({8}));
    mt_map_stats fourth = run.stats();
    /* All but the turn and the next pass's first block, which are the block that has just been there. */
    ck_assert_uint_ge(fourth.read_ahead_bytes - third.read_ahead_bytes,
                      2 * (block_count - 1) * bytes);
}

size_t resident() {
    mt_resident now = MT_RESIDENT_INIT;
    ck_ok(mt_device_resident("cpu", &now));
    return now.resident_bytes;
}

/* Where memory is too short for the files, a pass gives back what the heap keeps for nothing, before it reads ahead. */
TEST_LOOP("held", a_pass_needs_the_heap_s_pages, 2) {
    const size_t pieces = 1000, bytes = size_t{100} << 10;
    write_file("w", frozen_weights(at::kHalf));
    Setting setting;
    setting.drop = _i ? MT_MAP_DROP_ALWAYS : MT_MAP_DROP_NEVER;
    Run run(setting);
    ck_ok(run.step({8}));
    std::vector<std::vector<char>> kept;
    for (size_t i = 0; i <= pieces; i++) kept.emplace_back(bytes, 'x');
    kept.erase(kept.begin(), kept.end() - 1); /* the last one holds the end of the heap */
    const size_t before = resident();
    ck_ok(run.step({8}));
    const size_t after = resident(), half = pieces * bytes / 2;
    ck_assert_msg(_i ? after + half < before : after + half > before, "%zu, then %zu", before,
                  after);
}

/* ---- memory runs out ---- */

TEST_LOOP("faults", every_request_of_a_step_fails, 2) {
    write_file("w", frozen_weights(at::kBFloat16));
    Run run({FROZEN, false});
    model_faults::every_allocation_fails(
        {run.torch, seam_of(run.torch), run.batch.get(), {2, 3, 3}, "cpu"}, 3, _i, "map");
}

TEST_LOOP("faults", every_request_of_a_call_fails, 2) {
    mt_map_options options = map_options(0);
    write_file("w", frozen_weights(at::kBFloat16));
    Fresh fresh;
    const Adapted &net = fresh.net;
    options.load = _i;
    std::map<std::string, std::string> before;
    for (const auto &item : net->named_parameters()) before[item.key()] = raw_bytes(item.value());
    uint64_t failed = 1, n = 0;
    while (failed) {
        Tried tried = with_fault(++n, [&] { return fresh.map("w", options); });
        failed = tried.failed;
        ck_assert_msg(tried.status == (failed ? MT_EDEVMEM : MT_OK), "request %d: %s",
                      static_cast<int>(n), mt_last_error());
        for (const auto &item : net->named_parameters())
            if (failed) ck_assert(raw_bytes(item.value()) == before[item.key()]);
    }
    ck_assert_uint_ge(n, _i ? 4 * block_count : 1); /* views need none */
    ck_assert(raw_bytes(net->blocks[0]->linear->weight) != before["block0.linear.weight"]);
}

/* ---- the state ---- */

TEST("state", a_checkpoint_goes_on) {
    write_file("w", frozen_weights(at::kBFloat16));
    const std::string path = in_folder("c");
    std::string at_end;
    {
        Run run({FROZEN, false});
        ck_ok(run.step({4, 4}));
        ck_ok(mt_torch_save(run.torch, path.c_str(), nullptr));
        ck_ok(run.step({4, 4}));
        at_end = run.hash();
    }
    mt_safetensors *file = nullptr;
    size_t index = 0;
    ck_ok(mt_safetensors_open(path.c_str(), &file));
    ck_ok(mt_safetensors_find(file, "adapter1.weight", &index));
    ck_status(mt_safetensors_find(file, "block1.linear.weight", &index), MT_EINVAL);
    mt_safetensors_free(file);
    Run other({FROZEN, false});
    ck_ok(other.step({8}));
    ck_ok(mt_torch_load(other.torch, path.c_str(), nullptr, 0));
    ck_ok(other.step({4, 4}));
    ck_assert(other.hash() == at_end);
}

TEST("state", weights_are_saved_and_not_overwritten) {
    const Content content = frozen_weights(at::kBFloat16);
    write_file("w", content);
    Run run({FROZEN, false});
    const std::string path = in_folder("other");
    ck_ok(mt_model_save_weights(run.model, path.c_str()));
    ck_refused(mt_model_load_weights(run.model, path.c_str(), nullptr), MT_ESTATE,
               "'block0.norm.weight', which is mapped");
    mt_weights_options options = MT_WEIGHTS_OPTIONS_INIT;
    options.strict = 0;
    options.skip = "block";
    ck_ok(mt_model_load_weights(run.model, path.c_str(), &options));
    ck_assert(raw_bytes(run.net->blocks[2]->linear->weight) ==
              raw_bytes(content.at("block2.linear.weight")));
}

/* The mapping is there as long as a tensor is. */
TEST("state", a_tensor_outlives_the_model) {
    const Content content = frozen_weights(at::kBFloat16);
    write_file("w", content);
    at::Tensor weight;
    {
        Run run({FROZEN, false});
        weight = run.net->blocks[1]->linear->weight;
    }
    ck_assert(raw_bytes(weight) == raw_bytes(content.at("block1.linear.weight")));
}

/* ---- wrong requests and files ---- */

TEST("wrong", options_are_checked) {
    const struct {
        void (*set)(mt_map_options &);
        const char *word;
    } rows[] = {
        {[](mt_map_options &o) { o.size = 1; }, "options"},
        {[](mt_map_options &o) { o.strict = 2; }, "options->strict is 2"},
        {[](mt_map_options &o) { o.load = -1; }, "options->load is -1"},
        {[](mt_map_options &o) { o.trained = 2; }, "options->trained is 2"},
        {[](mt_map_options &o) { o.drop = 3; }, "options->drop is 3"},
    };
    write_file("w", frozen_weights(at::kFloat));
    Fresh fresh;
    const std::string path = in_folder("w");
    ck_status(mt_model_map_weights(nullptr, path.c_str(), nullptr), MT_EINVAL);
    ck_status(mt_model_map_weights(fresh.model, nullptr, nullptr), MT_EINVAL);
    for (const auto &row : rows) {
        mt_map_options options = map_options();
        row.set(options);
        fresh.refuses("w", options, MT_EINVAL, row.word);
    }
    mt_map_stats stats = MT_MAP_STATS_INIT;
    ck_status(mt_model_map_stats(nullptr, &stats), MT_EINVAL);
    ck_status(mt_model_map_stats(fresh.model, nullptr), MT_EINVAL);
    ck_status(mt_model_check_mapped(nullptr), MT_EINVAL);
    ck_ok(mt_model_check_mapped(fresh.model));
}

TEST("wrong", names_have_prefixes) {
    Content content;
    for (const auto &[name, tensor] : frozen_weights(at::kHalf))
        if (name.rfind("block1.", 0) == 0) content["base." + name.substr(7)] = tensor;
    write_file("w", content);
    Fresh fresh;
    mt_map_options options = map_options();
    options.prefix = "base.";
    fresh.refuses("w", options, MT_EINVAL, "missing there: prompt");
    options.model_prefix = "block1.";
    ck_ok(fresh.map("w", options));
    ck_assert(raw_bytes(fresh.net->blocks[1]->linear->bias) ==
              raw_bytes(content["base.linear.bias"]));
    Fresh other;
    options.skip = "linear.";
    ck_ok(other.map("w", options));
    ck_assert_uint_eq(stats_of(other.model).tensors, 2);
}

TEST("wrong", files_that_do_not_fit) {
    const Content good = frozen_weights(at::kFloat);
    mt_map_options options = map_options();
    Fresh fresh;
    options.strict = 0;
    fresh.refuses("w", options, MT_EIO, "w'");
    Content other = good;
    other["block1.linear.weight"] = at::zeros({width, width + 1});
    write_file("w", other);
    fresh.refuses("w", options, MT_EINVAL,
                  "block1.linear.weight (F32 [24,25] there, F32 [24,24] here)");
    other["block1.linear.weight"] = at::zeros({width, width}, at::kLong);
    write_file("w", other);
    fresh.refuses("w", options, MT_EINVAL, "block1.linear.weight (I64 [24,24] there");
    write_file("w", {{"x", at::zeros({3})}});
    fresh.refuses("w", options, MT_EINVAL, "no tensor under a name");
    other = good;
    other["x"] = at::zeros({3});
    write_file("w", other);
    options.strict = 1;
    fresh.refuses("w", options, MT_EINVAL, "not in the model: x");
    fresh.refuses("w", options, MT_EINVAL, "missing there: prompt, adapter0.weight");
    write_file("w", good);
    std::string text = text_of("w");
    write_text("w", text.substr(0, text.size() - 5)); /* cut off */
    options.strict = 0;
    fresh.refuses("w", options, MT_EINVAL, "no safetensors file");
    write_text("w", "");
    fresh.refuses("w", options, MT_EINVAL, "no safetensors file");
}

/* A mask and a counter are read as they are; a norm's count of batches may be missing. */
TEST("wrong", what_is_no_float_is_read) {
    Content content = frozen_weights(at::kHalf);
    content["mask"] = at::eye(3).to(at::kBool);
    content["count"] = at::full({2}, int64_t{1} << 40);
    content["layers.0.rotary_emb.inv_freq"] = at::ones({4}); /* of old files of Llama's */
    write_file("w", content);
    Fresh fresh, other;
    (void)fresh.net->register_buffer("mask", at::zeros({3, 3}, at::kBool));
    (void)fresh.net->register_buffer("count", at::zeros({2}, at::kLong));
    (void)fresh.net->register_buffer("num_batches_tracked", at::ones({}, at::kLong));
    (void)other.net->register_buffer("mask", at::zeros({3, 3}, at::kBool));
    mt_map_options options = map_options(0);
    ck_ok(fresh.map("w", options));
    ck_assert(at::equal(fresh.net->named_buffers()["mask"], content["mask"]));
    ck_assert(at::equal(fresh.net->named_buffers()["count"], content["count"]));
    ck_assert_int_eq(fresh.net->named_buffers()["num_batches_tracked"].item<int64_t>(), 1);
    content["mask"] = at::zeros({3, 3}, at::kLong);
    write_file("w", content);
    other.refuses("w", options, MT_EINVAL, "mask (I64 [3,3] there, BOOL [3,3] here)");
}

TEST("wrong", what_trains_is_refused_or_loaded) {
    Content content = frozen_weights(at::kBFloat16);
    content["adapter1.weight"] = at::ones({width, width}, at::kBFloat16) / 8;
    content["head.bias"] = at::ones({3}, at::kBFloat16);
    write_file("w", content);
    Fresh fresh;
    mt_map_options options = map_options(0);
    fresh.refuses("w", options, MT_EINVAL, "these parameters train");
    fresh.refuses("w", options, MT_EINVAL, "adapter1.weight, head.bias; accepted");
    options.trained = MT_MAP_TRAINED_LOAD;
    ck_ok(fresh.map("w", options));
    const at::Tensor &adapter = fresh.net->adapters[1]->weight;
    ck_assert(adapter.requires_grad() && adapter.scalar_type() == at::kFloat);
    ck_assert_float_eq(adapter[3][3].item<float>(), 0.125f);
    mt_map_stats stats = stats_of(fresh.model);
    ck_assert_uint_eq(stats.tensors, 4 * block_count);
    ck_assert_uint_eq(stats.loaded_bytes, 4 * (width * width + 3));
}

TEST("wrong", indices_that_are_wrong) {
    const struct {
        const char *text, *word;
    } cases[] = {
        {"", "'{' is expected"},
        {"[]", "'{' is expected"},
        {"{}", "no \"weight_map\""},
        {"{\"weight_map\": {}}", "no \"weight_map\""},
        {"{\"weight_map\": {\"a\": 3}}", "a string is expected"},
        {"{\"weight_map\": {\"a\": \"w1\"}", "is no index"},
        {"{\"weight_map\": {\"a\": \"w1\"}} x", "is no index"},
        {"{\"weight_map\": {\"a\": \"w1\", \"a\": \"w1\"}}", "two files"},
        {"{\"weight_map\": {\"a\": \"../w1\"}}", "'/'"},
        {"{\"metadata\": [1, 2, \"weight_map\": {\"a\": \"w1\"}}", "is no index"},
        {"{\"weight_map\": {\"block0.linear.bias\": \"absent\"}}", "absent"},
        {"{\"weight_map\": {\"block1.linear.bias\": \"w1\"}}", "which does not have it"},
        {"{\"weight_map\": {\"block0.linear.bias\": \"w1\", \"x\": \"w\"}}", "is in "},
        {"{\"weight_map\": {\"block0.linear.bias\": \"w1\"}}", "leaves out 'block0."},
    };
    mt_map_options options = map_options(0);
    write_shards(at::kHalf);
    write_file("w", frozen_weights(at::kHalf));
    Fresh fresh;
    for (const auto &one : cases) {
        write_text("w.json", one.text);
        mt_status status = fresh.map("w.json", options);
        ck_assert_msg(status == MT_EINVAL || status == MT_EIO, "%s: %s", one.text, mt_last_error());
        ck_contains(mt_last_error(), one.word);
    }
}

TEST("wrong", an_index_that_is_a_folder) {
    ck_assert_int_eq(mkdir(in_folder("folder.json").c_str(), 0700), 0);
    Fresh fresh;
    fresh.refuses("folder.json", map_options(0), MT_EIO, "cannot read the index '");
    ck_assert_int_eq(rmdir(in_folder("folder.json").c_str()), 0);
}

/* Of a whole file that the index does not name the network's tensors are missing, and named. */
TEST("wrong", an_index_without_a_file) {
    write_shards(at::kHalf);
    std::string first;
    for (const auto &[name, tensor] : frozen_weights(at::kHalf))
        if (name[5] == '0') first += (first.empty() ? "\"" : ", \"") + name + "\": \"w1\"";
    write_text("w.json", "{\"weight_map\": {" + first + "}}");
    mt_map_options options = map_options(1);
    options.skip = "adapter";
    Fresh fresh;
    fresh.refuses("w.json", options, MT_EINVAL, "block1.");
}

TEST("wrong", shards_that_are_wrong) {
    mt_map_options options = map_options(0);
    write_shards(at::kHalf);
    Fresh fresh;
    std::string text = text_of("w2");
    write_text("w2", text.substr(0, text.size() - 1));
    fresh.refuses("w.json", options, MT_EINVAL, "w2' is no safetensors file");
    std::remove(in_folder("w2").c_str());
    fresh.refuses("w.json", options, MT_EIO, "w2'");
    write_text("w2", text);
    ck_ok(fresh.map("w.json", options));
}

TEST("wrong", a_model_in_use_and_a_card) {
    write_file("w", frozen_weights(at::kHalf));
    mt_map_options options = map_options(0);
    Run run({FROZEN, false});
    ck_refused(map(run.model, "w", options), MT_ESTATE, "before mt_torch_new");
    Fresh fresh;
    mt_torch *torch = nullptr;
    mt_torch_options torch_options = MT_TORCH_OPTIONS_INIT;
    torch_options.device = "sim:cuda";
    ck_ok(fresh.map("w", options));
    ck_refused(mt_torch_new(fresh.model, &torch_options, &torch), MT_ENOTSUP, "mapped weights");
}

std::vector<std::string> logged;

void keep_line(void *user, mt_log_level level, const char *text) {
    (void)user;
    if (level == MT_LOG_WARNING) logged.emplace_back(text);
}

/* A header of a length that no type divides: legal, and of no use for views. One line tells it. */
TEST("wrong", bytes_that_are_not_aligned) {
    Content content = frozen_weights(at::kFloat);
    const at::Tensor bias = content["block0.linear.bias"], other = content["block1.linear.bias"];
    std::string header =
        "{\"block0.linear.bias\":{\"dtype\":\"F32\",\"shape\":[24],\"data_offsets\":[0,96]},"
        "\"block1.linear.bias\":{\"dtype\":\"F32\",\"shape\":[24],\"data_offsets\":[96,192]}}";
    while (header.size() % 4 != 1) header += ' ';
    std::string text(8, '\0');
    text[0] = static_cast<char>(header.size());
    write_text("w", text + header + raw_bytes(bias) + raw_bytes(other));
    Fresh fresh;
    mt_map_options options = map_options(0);
    mt_set_log(keep_line, nullptr);
    ck_ok(fresh.map("w", options));
    mt_set_log(nullptr, nullptr);
    mt_map_stats stats = stats_of(fresh.model);
    ck_assert_uint_eq(stats.tensors, 0);
    ck_assert_uint_eq(stats.loaded_bytes, 192);
    ck_assert(raw_bytes(fresh.net->blocks[0]->linear->bias) == raw_bytes(bias));
    ck_assert(raw_bytes(fresh.net->blocks[1]->linear->bias) == raw_bytes(other));
    ck_assert_uint_eq(logged.size(), 1);
    ck_contains(logged[0].c_str(), "are loaded: 2, the first is 'block0.linear.bias' in '");
}

/* ---- files that change ---- */

void set_time(const char *name, time_t seconds) {
    struct timespec times[2] = {{seconds, 0}, {seconds, 0}};
    ck_assert_int_eq(utimensat(AT_FDCWD, in_folder(name).c_str(), times, 0), 0);
}

/* Each way of a change, and its word. */
const struct {
    const char *word;
    void (*change)();
} changes[] = {
    {"was written to", [] { set_time("w", 1000); }},
    {"bytes and has", [] { std::ofstream(in_folder("w"), std::ios::app) << "x"; }},
    {"bytes and has", [] { ck_assert_int_eq(truncate(in_folder("w").c_str(), 0), 0); }},
};
TEST_LOOP("change", a_change_is_told, LENGTH(changes)) {
    write_file("w", frozen_weights(at::kBFloat16));
    Run run({FROZEN, false});
    ck_ok(run.step({8}));
    const std::string before = run.hash();
    ck_ok(mt_model_check_mapped(run.model));
    changes[_i].change();
    ck_refused(run.step({8}), MT_EIO, changes[_i].word);
    ck_contains(mt_last_error(), "/w' has changed");
    ck_ok(mt_rollback(run.torch));
    ck_assert(run.hash() == before);
    ck_status(mt_model_check_mapped(run.model), MT_EIO);
}

TEST("change", a_file_that_is_replaced_stays) {
    const Content content = frozen_weights(at::kBFloat16);
    write_file("w", content);
    const Result whole = train({FROZEN, false});
    Run run({FROZEN, false});
    write_text("other", "nothing");
    ck_assert_int_eq(rename(in_folder("other").c_str(), in_folder("w").c_str()), 0);
    std::string losses;
    ck_ok(run.step({3, 5}, &losses));
    ck_assert(whole.losses.compare(0, losses.size(), losses) == 0);
}

/* Between the look at the file and the first number. Put right again, it is still not what it was. */
TEST("change", a_page_that_is_gone) {
    write_file("w", frozen_weights(at::kFloat));
    const std::string text = text_of("w");
    Run run({FROZEN, false});
    ck_ok(run.step({8}));
    const std::string before = run.hash();
    run.net->within = [&] {
        ck_assert_int_eq(truncate(in_folder("w").c_str(), 0), 0);
        run.net->within = nullptr;
    };
    ck_refused(run.step({8}), MT_EIO, "has changed");
    ck_ok(mt_rollback(run.torch));
    ck_assert(run.hash() == before);
    struct stat info;
    ck_assert_int_eq(stat(in_folder("w").c_str(), &info), 0);
    ck_assert_int_eq(info.st_size, 0);
}

/* Addresses that are none of ours end the process as before. */
START_TEST(other_bus_errors_pass) {
    write_file("w", frozen_weights(at::kFloat));
    Run run({FROZEN, false});
    raise(SIGBUS);
}
END_TEST

/* ---- frozen blocks alone ---- */

TEST("blocks", ops_are_checked) {
    static int destroyed;
    mt_frozen_ops ops = MT_FROZEN_OPS_INIT;
    ck_ok(mt_torch_init(nullptr));
    ck_status(mt_frozen(nullptr, nullptr, nullptr, 0, nullptr, 0), MT_EINVAL);
    ops.destroy = [](void *) { destroyed++; };
    ck_refused(mt_frozen(&ops, nullptr, nullptr, 0, nullptr, 0), MT_EINVAL, "ops->run");
    ops.run = [](void *, mt_tensor *const *, size_t, mt_tensor *const *, size_t) { return MT_OK; };
    ck_refused(mt_frozen(&ops, nullptr, nullptr, 0, nullptr, 0), MT_EINVAL,
               "ops->visit_parameters");
    ops.visit_parameters = [](void *, mt_visit_fn, void *) {
        return mt_set_error(MT_EINVAL, "no list");
    };
    ck_refused(mt_frozen(&ops, nullptr, nullptr, 0, nullptr, 0), MT_EINVAL, "no list");
    ck_assert_int_eq(destroyed, 3);
}

TEST("blocks", no_gradient_no_graph) {
    Run::prepare();
    FrozenBlock block;
    at::Tensor x = at::randn({2, width});
    ck_assert(!memtrain::frozen(block, x).requires_grad());
    ck_assert(memtrain::frozen(block, x.set_requires_grad(true)).requires_grad());
}

} // namespace

int main() {
    for (const char *name : {"bits", "held", "faults", "state", "wrong", "change"})
        tcase_add_checked_fixture(suite_case_named(name), make_folder, remove_folder);
    tcase_add_unchecked_fixture(suite_case_named("signals"), make_folder, remove_folder);
    tcase_add_test_raise_signal(suite_case_named("signals"), other_bus_errors_pass, SIGBUS);
    return suite_run_named("shim_map");
}
