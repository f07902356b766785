/*
 * check_shim_weights.cpp - parameters and buffers alone, in files of this library and of others: by name, in part, of other types.
 */
#include <memory>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <memtrain/safetensors.h>

#include "check_shim.hpp"
#include "saved_files.hpp"

using namespace check_shim;

namespace {

mt_weights_options lenient() {
    mt_weights_options options = MT_WEIGHTS_OPTIONS_INIT;
    options.strict = 0;
    return options;
}

/* Parameters and buffers as one number, for a comparison. */
std::string weights_of(const Net &net) {
    std::string all;
    for (const auto &list : {net.parameters(), net.buffers()})
        for (const at::Tensor &tensor : list) {
            at::Tensor plain = tensor.detach().to(at::kCPU).contiguous();
            all.append(static_cast<const char *>(plain.const_data_ptr()), plain.nbytes());
        }
    return all;
}

/* Writes tensors under names, in the place of Python. */
void write_tensors(const std::vector<std::pair<std::string, at::Tensor>> &list) {
    std::vector<mt_safetensors_tensor> tensors;
    auto type_of = [](const at::Tensor &tensor) {
        switch (tensor.scalar_type()) {
        case at::kHalf:
            return MT_ST_F16;
        case at::kBFloat16:
            return MT_ST_BF16;
        case at::kDouble:
            return MT_ST_F64;
        case at::kLong:
            return MT_ST_I64;
        default:
            return MT_ST_F32;
        }
    };
    for (const auto &item : list)
        tensors.push_back({item.first.c_str(), type_of(item.second),
                           static_cast<size_t>(item.second.dim()), item.second.sizes().data(),
                           item.second.nbytes(), item.second.const_data_ptr()});
    ck_ok(mt_safetensors_save(path.c_str(), tensors.data(), tensors.size(), nullptr));
}

} // namespace

TEST("weights", weights_by_name) {
    std::string weights;
    {
        Trainer trainer(options_number(3));
        train(trainer, 0, 2);
        weights = weights_of(*trainer.net);
        ck_ok(mt_model_save_weights(trainer.model, path.c_str()));
    }
    ck_assert(!is_there(previous));
    Trainer trainer(options_number(3));
    ck_assert(weights_of(*trainer.net) != weights);
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), nullptr));
    ck_assert(weights_of(*trainer.net) == weights);
    train(trainer, 0, 1); /* in place: the flat blocks have them */
    ck_assert(weights_of(*trainer.net) != weights);

    /* from a checkpoint of the whole state */
    ck_ok(save(trainer));
    mt_weights_options options = lenient();
    weights = weights_of(*trainer.net);
    train(trainer, 1, 1);
    ck_refused(mt_model_load_weights(trainer.model, path.c_str(), nullptr), MT_EINVAL,
               "not in the model: optimizer.exp_avg.conv1.bias");
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), &options));
    ck_assert(weights_of(*trainer.net) == weights);
}

/* channels_last in memory, row-major in the file. */
TEST("weights", strided_weights) {
    Trainer trainer(options_number(0));
    mt_safetensors *file;
    size_t index;
    float read[8 * 3 * 3 * 3];
    c10::NoGradGuard no_grad;
    at::Tensor weight = trainer.net->conv1->weight;
    at::Tensor values = at::arange(8 * 27, at::kFloat).reshape({8, 3, 3, 3});
    weight.set_data(values.contiguous(at::MemoryFormat::ChannelsLast));
    ck_assert(!weight.is_contiguous());
    ck_ok(mt_model_save_weights(trainer.model, path.c_str()));
    ck_ok(mt_safetensors_open(path.c_str(), &file));
    ck_ok(mt_safetensors_find(file, "conv1.weight", &index));
    ck_ok(mt_safetensors_read(file, index, 0, read, sizeof read));
    for (int i = 0; i < 8 * 27; i++) ck_assert_float_eq(read[i], static_cast<float>(i));
    mt_safetensors_free(file);
    weight.zero_();
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), nullptr));
    ck_assert(at::equal(weight, values));
    ck_assert(!weight.is_contiguous());
}

/* Columns of a matrix, rows larger than a piece, and many pieces. */
TEST("weights", large_strided_weights) {
    struct Odd : nn::Module {
        at::Tensor columns = register_buffer("columns", at::randn({3000, 2000}).t());
        at::Tensor wide = register_buffer("wide", at::randn({1200, 1100, 2}).permute({2, 1, 0}));
        at::Tensor part = register_buffer("part", at::randn({70, 70}).narrow(1, 3, 60));
        at::Tensor weight = register_parameter("weight", at::zeros({1}));
    };
    std::shared_ptr<Odd> net;
    mt_model *model;
    ck_ok(mt_torch_init(nullptr));
    ck_ok(memtrain::make_model(&model, [&] {
        net = std::make_shared<Odd>();
        return memtrain::model(net, {}, [](Odd &n, const memtrain::Tensors &) {
            return memtrain::Output{n.weight.sum(), {}};
        });
    }));
    std::vector<at::Tensor> before;
    for (at::Tensor &buffer : net->buffers()) before.push_back(buffer.clone());
    ck_ok(mt_model_save_weights(model, path.c_str()));
    for (at::Tensor &buffer : net->buffers()) buffer.zero_();
    ck_ok(mt_model_load_weights(model, path.c_str(), nullptr));
    for (size_t i = 0; i < before.size(); i++) {
        ck_assert(at::equal(net->buffers()[i], before[i]));
        ck_assert(!net->buffers()[i].is_contiguous());
    }
    mt_model_free(model);
}

TEST("weights", prefix_and_skip) {
    Trainer trainer(options_number(0));
    mt_weights_options options = lenient();
    at::Tensor ones = at::ones({5}), fives = at::full({8}, 5.0f), other = at::zeros({7, 72});
    write_tensors({{"module.linear.bias", ones},
                   {"module.norm.bias", fives},
                   {"module.head.bias", ones},
                   {"conv1.bias", fives}});
    options.prefix = "module.";
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), &options));
    ck_assert(at::equal(trainer.net->linear->bias.detach().cpu(), ones));
    ck_assert(at::equal(trainer.net->norm->bias.detach().cpu(), fives));
    ck_assert(!at::equal(trainer.net->conv1->bias.detach().cpu(), fives)); /* without the prefix */
    options.strict = 1;
    ck_refused(mt_model_load_weights(trainer.model, path.c_str(), &options), MT_EINVAL,
               "missing there: unused, conv1.weight, conv1.bias and 6 more");
    ck_contains(mt_last_error(), "not in the model: conv1.bias, head.bias");

    write_tensors({{"linear.weight", other}, {"norm.bias", at::ones({8})}});
    options = lenient();
    ck_refused(mt_model_load_weights(trainer.model, path.c_str(), &options), MT_EINVAL,
               "different: linear.weight (F32 [7,72] there, F32 [5,72] here)");
    options.skip = "linear.";
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), &options));
    ck_assert(at::equal(trainer.net->norm->bias.detach().cpu(), at::ones({8})));

    options.prefix = "none.";
    ck_refused(mt_model_load_weights(trainer.model, path.c_str(), &options), MT_EINVAL,
               "has no tensor under a name of the model's");
}

TEST_LOOP("weights", smaller_floats_are_widened, 2) {
    Trainer trainer(options_number(0));
    mt_weights_options options = lenient();
    at::Tensor thirds = at::full({8}, 1.0f / 3, _i ? at::kBFloat16 : at::kHalf);
    at::Tensor weight = at::randn({5, 72}).to(thirds.scalar_type());
    write_tensors({{"norm.bias", thirds}, {"linear.weight", weight}});
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), &options));
    ck_assert(at::equal(trainer.net->norm->bias.detach().cpu(), thirds.to(at::kFloat)));
    ck_assert(at::equal(trainer.net->linear->weight.detach().cpu(), weight.to(at::kFloat)));
}

/* A part of the model that a file has in part is likely another network's. */
TEST("weights", parts_that_are_missing_are_told) {
    std::string log;
    Trainer trainer(options_number(0));
    mt_weights_options options = lenient();
    write_tensors({{"linear.bias", at::ones({5})},
                   {"norm.bias", at::ones({8})},
                   {"norm.weight", at::ones({8})},
                   {"norm.running_mean", at::ones({8})},
                   {"norm.running_var", at::ones({8})}});
    mt_set_log(
        [](void *user, mt_log_level level, const char *line) {
            *static_cast<std::string *>(user) += std::to_string(level) + " " + line + "\n";
        },
        &log);
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), &options));
    mt_set_log(nullptr, nullptr);
    ck_contains(log.c_str(), (std::to_string(MT_LOG_WARNING) + " mt_model_load_weights: '" + path +
                              "' has 1 of 2 tensors of 'linear', the first that it lacks is "
                              "'linear.weight'")
                                 .c_str());
    ck_contains(log.c_str(), (std::to_string(MT_LOG_INFO) + " mt_model_load_weights: '" + path +
                              "' has nothing of conv1, ")
                                 .c_str());
    ck_assert(log.find("'norm'") == std::string::npos);
}

/* Of what a caller says that the file must have. What is not named may be missing. */
TEST("weights", required_names) {
    Trainer trainer(options_number(0));
    mt_weights_options options = lenient();
    std::string before = trainer.hash();
    write_tensors({{"linear.bias", at::ones({5})},
                   {"norm.bias", at::ones({8})},
                   {"norm.weight", at::ones({8})},
                   {"norm.running_mean", at::ones({8})},
                   {"norm.running_var", at::ones({8})}});
    options.required = "norm.,linear.";
    ck_refused(mt_model_load_weights(trainer.model, path.c_str(), &options), MT_EINVAL,
               "mt_model_load_weights: '");
    ck_contains(mt_last_error(), (path + "' lacks 1 of the 6 tensors of the model that begin with "
                                         "'norm.' or 'linear.', the first is 'linear.weight'; "
                                         "accepted: a file that has all of them")
                                     .c_str());
    options.required = "";
    ck_refused(mt_model_load_weights(trainer.model, path.c_str(), &options), MT_EINVAL,
               "tensors of the model, the first is 'unused'; accepted: ");
    ck_assert(trainer.hash() == before);
    options.required = "norm."; /* a count of batches may be missing */
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), &options));
    options.required = "norm.,linear."; /* what is left alone need not be there */
    options.skip = "linear.w,conv";
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), &options));
    options.required = "none.";
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), &options));
}

TEST("weights", several_other_names) {
    Trainer trainer(options_number(0));
    mt_weights_options options = lenient();
    options.required = "linear.bias,norm.bias";
    options.other_name = [](void *, const char *name, char *other, size_t capacity) {
        ck_assert_str_eq(other, "");
        std::snprintf(other, capacity, "a.%s,b.%s", name, name);
    };
    for (const char *first : {"a.", "b."}) {
        at::Tensor fives = at::full({5}, *first == 'a' ? 5.0f : 6.0f);
        write_tensors(
            {{first + std::string("linear.bias"), fives}, {"b.norm.bias", at::ones({8})}});
        ck_ok(mt_model_load_weights(trainer.model, path.c_str(), &options));
        ck_assert(at::equal(trainer.net->linear->bias.detach().cpu(), fives));
    }
    write_tensors(
        {{"a.linear.bias,b.linear.bias", at::zeros({5})}, {"b.norm.bias", at::ones({8})}});
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), &options)); /* a name with a comma */
    ck_assert(at::equal(trainer.net->linear->bias.detach().cpu(), at::zeros({5})));
}

/* It takes nothing from the budget, so that it cannot fail after the first tensors have changed. */
TEST("weights", widening_asks_for_no_memory) {
    Trainer trainer(options_number(0));
    mt_weights_options options = lenient();
    uint64_t requests = 0;
    at::Tensor ones = at::ones({8}, at::kHalf), weight = at::ones({5, 72}, at::kHalf);
    write_tensors({{"norm.bias", ones}, {"linear.weight", weight}});
    ck_ok(mt_inject_oom(1, 1));
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), &options));
    mt_injected(&requests, nullptr);
    ck_ok(mt_inject_oom(0, 0));
    ck_assert_uint_eq(requests, 0);
    ck_assert(at::equal(trainer.net->linear->weight.detach().cpu(), weight.to(at::kFloat)));
}

/* As in torch, of a file without a version. */
TEST("weights", a_count_of_batches_may_be_missing) {
    Trainer trainer(options_number(0)), other(options_number(0));
    std::vector<std::pair<std::string, at::Tensor>> rest;
    for (const auto &item : trainer.net->named_parameters())
        rest.emplace_back(item.key(), item.value().detach().cpu());
    for (const auto &item : trainer.net->named_buffers())
        if (item.key() != "norm.num_batches_tracked")
            rest.emplace_back(item.key(), item.value().cpu());
    write_tensors(rest);
    other.net->norm->num_batches_tracked.fill_(7);
    ck_ok(mt_model_load_weights(other.model, path.c_str(), nullptr));
    ck_assert_int_eq(other.net->norm->num_batches_tracked.item<int64_t>(), 7);
    ck_assert(at::equal(other.net->conv1->weight.cpu(), trainer.net->conv1->weight.cpu()));
    rest.emplace_back("layers.0.rotary_emb.inv_freq", at::ones({4})); /* of old files of Llama's */
    write_tensors(rest);
    ck_ok(mt_model_load_weights(other.model, path.c_str(), nullptr));
    rest.pop_back();
    rest.pop_back();
    write_tensors(rest);
    ck_refused(mt_model_load_weights(other.model, path.c_str(), nullptr), MT_EINVAL,
               "missing there: ");
}

TEST("weights", another_dtype) {
    Trainer trainer(options_number(0));
    mt_weights_options options = lenient();
    std::string before = trainer.hash();
    write_tensors({{"norm.bias", at::ones({8}, at::kDouble)}, {"linear.bias", at::ones({5})}});
    ck_refused(mt_model_load_weights(trainer.model, path.c_str(), &options), MT_EINVAL,
               "different: norm.bias (F64 [8] there, F32 [8] here)");
    write_tensors({{"norm.num_batches_tracked", at::ones({}, at::kHalf)}});
    ck_refused(mt_model_load_weights(trainer.model, path.c_str(), &options), MT_EINVAL,
               "different: norm.num_batches_tracked (F16 [] there, I64 [] here)");
    ck_assert(trainer.hash() == before);
    ck_status(mt_model_load_weights(trainer.model, temporary.c_str(), nullptr), MT_EIO);
    ck_status(mt_model_load_weights(trainer.model, nullptr, nullptr), MT_EINVAL);
    ck_status(mt_model_load_weights(nullptr, path.c_str(), nullptr), MT_EINVAL);
    ck_status(mt_model_save_weights(trainer.model, nullptr), MT_EINVAL);
    ck_status(mt_model_save_weights(nullptr, path.c_str()), MT_EINVAL);
    options.size = 0;
    ck_status(mt_model_load_weights(trainer.model, path.c_str(), &options), MT_EINVAL);
}

/* Written under both names; one of them is enough to read. */
TEST("weights", tied_weights) {
    struct Tied : nn::Module {
        nn::Linear in, out;
        Tied()
            : in(register_module("in", nn::Linear(4, 4))),
              out(register_module("out", nn::Linear(4, 4))) {
            out->weight = out->register_parameter("weight2", in->weight);
        }
    };
    std::shared_ptr<Tied> net;
    mt_model *model;
    mt_torch *torch;
    mt_safetensors *file;
    size_t index;
    char before[65], after[65];
    ck_ok(memtrain::make_model(&model, [&] {
        net = std::make_shared<Tied>();
        return memtrain::model(net, {}, [](Tied &n, const memtrain::Tensors &batch) {
            return memtrain::Output{n.out(n.in(batch[0].flatten(1).narrow(1, 0, 4))).sum(), {}};
        });
    }));
    ck_ok(mt_torch_new(model, nullptr, &torch));
    ck_ok(mt_model_save_weights(model, path.c_str()));
    ck_ok(mt_safetensors_open(path.c_str(), &file));
    ck_ok(mt_safetensors_find(file, "in.weight", &index));
    ck_ok(mt_safetensors_find(file, "out.weight2", &index));
    mt_safetensors_free(file);
    ck_ok(mt_model_load_weights(model, path.c_str(), nullptr));

    ck_ok(mt_torch_state_sha256(torch, before));
    ck_ok(mt_torch_save(torch, path.c_str(), nullptr));
    at::Tensor weight = net->in->weight, ones = at::ones({4, 4});
    {
        c10::NoGradGuard no_grad;
        weight.zero_();
    }
    ck_ok(mt_torch_load(torch, path.c_str(), nullptr, 0));
    ck_ok(mt_torch_state_sha256(torch, after));
    ck_assert_str_eq(before, after);

    write_tensors({{"out.weight2", ones},
                   {"in.bias", at::ones({4})},
                   {"out.bias", at::ones({4})},
                   {"out.weight", ones}});
    ck_ok(mt_model_load_weights(model, path.c_str(), nullptr));
    ck_assert(at::equal(weight.detach(), ones));
    ck_assert(net->out->weight.is_same(net->in->weight));
    mt_torch_free(torch);
    mt_model_free(model);
}

int main() {
    tcase_add_checked_fixture(suite_case_named("weights"), make_folder, remove_folder);
    return suite_run_named("shim_weights");
}
