/*
 * check_shim_kept.cpp - what a step that is taken back puts back beside gradients: buffers whose elements share
 * memory, and parameters that the model's own code writes to.
 */
#include <map>
#include <string>

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "owned.hpp"

using namespace check_shim;

namespace {

/* A linear layer, and what a test adds to it. */
struct Own : nn::Module {
    nn::Linear layer{192, 5};
    at::Tensor mask;    /* a row that is repeated */
    at::Tensor windows; /* rows that overlap */
    at::Tensor key;     /* a parameter that does not train */

    Own() { register_module("layer", layer); }
};

using Code = std::function<void(Own &)>;

/* An Own that trains; change is run in each forward pass, without a graph. */
struct Run : Owned {
    std::shared_ptr<Own> net;

    Run(const mt_torch_options &options, const Code &make, const Code &change,
        bool in_segment = false) {
        auto describe = [&] {
            net = std::make_shared<Own>();
            make(*net);
            return memtrain::model(net, {}, [=](Own &own, const memtrain::Tensors &batch) {
                auto forward = [&own, change](at::Tensor x) {
                    {
                        c10::NoGradGuard no_grad;
                        change(own);
                    }
                    x = x.flatten(1);
                    if (own.mask.defined()) x = x * own.mask.select(0, 0);
                    if (own.key.defined()) x = x * own.key.select(0, 0).detach().clone();
                    return own.layer(x);
                };
                at::Tensor out =
                    in_segment ? memtrain::checkpoint(forward, batch[0]) : forward(batch[0]);
                return memtrain::Output{at::cross_entropy_loss(out, batch[1]), {}};
            });
        };
        Owned::make(describe, options);
    }
};

void make_overlapping(Own &own) {
    own.mask = own.register_buffer("mask", at::ones({1, 192}).expand({4, 192}));
    own.windows =
        own.register_buffer("windows", at::arange(9).to(at::kFloat).as_strided({4, 3}, {2, 1}));
}

void change_overlapping(Own &own) {
    own.mask.select(0, 1).mul_(1.25);
    own.windows.select(0, 2).add_(1);
}

/* ---- ways of writing to a parameter -------------------------------------------------------------------- */

void make_key(Own &own) {
    own.key = own.register_parameter("key", at::ones({5, 192}), false);
}

const struct Way {
    const char *name;
    Code make, change;
} ways[] = {
    {"key", make_key, [](Own &own) { own.key.mul_(0.9).add_(own.layer->weight, 0.1); }},
    {"key", make_key,
     [](Own &own) { own.key.variable_data().mul_(0.9).add_(own.layer->weight, 0.1); }},
    {"key", make_key, [](Own &own) { own.key.set_data(own.key * 0.9 + own.layer->weight * 0.1); }},
    {"key", make_key, [](Own &own) { own.key.select(0, 0).add_(own.layer->weight.select(0, 1)); }},
    {"key", make_key,
     [](Own &own) {
         std::vector<at::Tensor> list = {own.key};
         at::_foreach_mul_(list, 1.5);
     }},
    {"key", make_key, [](Own &own) { at::mul_out(own.key, own.key, own.layer->weight); }},
    {"key",
     [](Own &own) {
         own.key = own.register_parameter("key", at::ones({1, 192}).expand({5, 192}), false);
     },
     [](Own &own) { own.key.select(0, 3).mul_(1.5); }},
    {"layer.weight", [](Own &) {}, [](Own &own) { own.layer->weight.mul_(0.5); }},
    {"layer.bias", [](Own &) {}, [](Own &own) { own.layer->bias.variable_data().add_(1); }},
};

/* ---- steps ----------------------------------------------------------------------------------------- */

/* One step in chunks of 3 and 5. What fails is taken back and tried again: the chunk where one is marked, or all. */
int steps_tried(const Run &run, const Batch &batch, bool marked) {
    const size_t sizes[] = {3, 5};
    for (int tried = 1;; tried++) {
        mt_status status = mt_begin(run.torch, batch.get());
        size_t first = 0;
        for (size_t i = 0; i < 2 && status == MT_OK; i++) {
            mt_chunk_result result = chunk_result();
            do {
                if (status != MT_OK) {
                    ck_ok(mt_rewind(run.torch));
                    tried++;
                }
                status = marked ? mt_mark(run.torch) : MT_OK;
                if (status != MT_OK) break;
                status = mt_accumulate(run.torch, first, sizes[i],
                                       static_cast<double>(sizes[i]) / 8, &result);
            } while (marked && status == MT_EDEVMEM);
            first += sizes[i];
        }
        mt_apply_result applied = apply_result();
        if (status == MT_OK) status = mt_apply(run.torch, &applied);
        if (status == MT_OK) return tried;
        ck_status(status, MT_EDEVMEM);
        (void)!mt_rollback(run.torch); /* a begin that failed has nothing to take back */
    }
}

/* Three steps; in the one with that number the n-th request for memory fails. Whether it did. */
bool train(const Run &run, bool marked, int bad = -1, uint64_t n = 0) {
    Batch batch(8);
    uint64_t failed = 0;
    for (int i = 0; i < 3; i++) {
        if (i == bad) ck_ok(mt_inject_oom(n, 0));
        int tried = steps_tried(run, batch, marked);
        if (i != bad) continue;
        mt_injected(nullptr, &failed);
        ck_ok(mt_inject_oom(0, 0));
        ck_assert_int_eq(tried > 1, failed != 0);
    }
    return failed != 0;
}

/* Each request of the first and of the second step fails in turn: the state is that of a run without a fault. */
void fail_each(const mt_torch_options &options, const Code &make, const Code &change) {
    for (bool marked : {false, true}) {
        Run plain(options, make, change);
        train(plain, marked);
        std::string expected = plain.hash();
        for (int bad : {0, 1}) {
            uint64_t n = 1;
            for (bool failed = true; failed; n++) {
                Run run(options, make, change);
                failed = train(run, marked, bad, n);
                ck_assert_msg(run.hash() == expected, "request %d of step %d", (int)n, bad);
            }
            ck_assert_uint_gt(n, 10);
        }
    }
}

std::vector<std::string> warnings;

void keep_warnings(void *, mt_log_level level, const char *line) {
    if (level == MT_LOG_WARNING) warnings.emplace_back(line);
}

/* So large a scale that the first updates are skipped. */
mt_torch_options skipping() {
    mt_torch_options options = options_of(MT_SGD);
    options.amp = MT_FLOAT16;
    options.scale_start = 4294967296.0;
    return options;
}

/* Of an Own to which make has added something: what mt_torch_new says. */
mt_status new_own(Owned &owned, const Code &make) {
    mt_torch_options options = options_of(MT_SGD);
    ck_ok(memtrain::make_model(&owned.model, [&] {
        auto net = std::make_shared<Own>();
        make(*net);
        return memtrain::model(net, {}, [](Own &own, const memtrain::Tensors &batch) {
            at::Tensor out = own.layer(batch[0].flatten(1));
            return memtrain::Output{at::cross_entropy_loss(out, batch[1]), {}};
        });
    }));
    return mt_torch_new(owned.model, &options, &owned.torch);
}

} // namespace

/* ---- evaluation ------------------------------------------------------------------------------------ */

/* A chunk of an evaluation that fails is taken back as one of a step is: what it wrote to, it has written once in the end. */
TEST_LOOP("evaluation", written_in_an_evaluation, 2 * LENGTH(ways)) {
    const bool trained = _i % 2;
    const Way &way = ways[_i / 2];
    mt_torch_options options = options_of(MT_SGD);
    auto evaluate = [&](const Run &run, uint64_t n) {
        Batch batch(8);
        if (trained) ck_ok(run.train_step(batch.get()));
        auto chunks = [&] {
            for (size_t first = 0; first < 8;) {
                mt_chunk_result result = chunk_result();
                mt_status status = mt_evaluate(run.torch, batch.get(), first, 4, &result);
                if (status != MT_EDEVMEM) ck_ok(status);
                first += status == MT_OK ? 4 : 0;
            }
            return MT_OK;
        };
        return with_fault(n, chunks).failed != 0;
    };
    Run plain(options, way.make, way.change);
    evaluate(plain, 0);
    std::string expected = plain.hash();
    uint64_t n = 1;
    for (bool failed = true; failed; n++) {
        Run run(options, way.make, way.change);
        failed = evaluate(run, n);
        ck_assert_msg(run.hash() == expected, "request %d", static_cast<int>(n));
    }
    ck_assert_uint_gt(n, 5);
}

/* ---- buffers --------------------------------------------------------------------------------------- */

TEST("buffers", shared_elements) {
    fail_each(options_of(MT_ADAMW), make_overlapping, change_overlapping);
}

/* libtorch gives each element memory of its own on the way to another device. */
static bool are_apart(const char *test) {
    if (suite_on_card()) suite_skip(test, "elements share no memory on a card");
    return suite_on_card();
}

/* The memory is not made larger by what keeps it. */
TEST("buffers", shared_elements_cost_their_memory) {
    if (are_apart("shared_elements_cost_their_memory")) return;
    Run run(options_of(MT_SGD), make_overlapping, change_overlapping);
    ck_assert_uint_eq(info_of(seam_of(run.torch)).buffer_bytes, (192 + 4 * 3) * sizeof(float));
}

/* What a skipped update leaves as it was. */
TEST("buffers", shared_elements_of_a_skipped_step) {
    if (has_no_scaler("shared_elements_of_a_skipped_step")) return;
    Run run(skipping(), make_overlapping, change_overlapping);
    Batch batch(8);
    mt_apply_result applied = apply_result();
    at::Tensor before = run.net->mask.clone(), windows = run.net->windows.clone();
    ck_ok(run.train_step(batch.get(), &applied));
    ck_assert_int_eq(applied.skipped, 1);
    ck_assert(at::equal(run.net->mask, before));
    ck_assert(at::equal(run.net->windows, windows));
}

/* They count once where a segment is run again. */
TEST("buffers", shared_elements_in_a_segment) {
    if (are_apart("shared_elements_in_a_segment")) return;
    mt_torch_options options = options_of(MT_SGD);
    options.checkpointing = MT_CHECKPOINTING_ON;
    Run run(options, make_overlapping, change_overlapping, true);
    Batch batch(8);
    ck_ok(run.train_step(batch.get()));
    ck_assert_double_eq(run.net->mask[3][5].item().toDouble(), 1.25);
}

TEST("buffers", shared_elements_in_files) {
    if (are_apart("shared_elements_in_files")) return;
    File file;
    Run run(options_of(MT_ADAMW), make_overlapping, change_overlapping);
    Batch batch(8);
    ck_ok(run.train_step(batch.get()));
    std::string saved = run.hash();
    ck_ok(mt_torch_save(run.torch, file.path(), nullptr));
    ck_ok(run.train_step(batch.get()));
    ck_assert(run.hash() != saved);
    ck_ok(mt_torch_load(run.torch, file.path(), nullptr, 0));
    ck_assert(run.hash() == saved);
    ck_assert_int_eq(run.net->mask.stride(0), 0);
}

/* A file whose rows differ has no place in rows that are one: refused, and nothing is lost. */
TEST("buffers", different_elements_in_files) {
    if (are_apart("different_elements_in_files")) return;
    File file;
    for (bool weights : {false, true})
        for (bool of_mask : {false, true}) {
            auto make_dense = [of_mask](Own &own) {
                make_overlapping(own);
                (of_mask ? own.mask : own.windows)
                    .set_data((of_mask ? own.mask : own.windows).clone());
            };
            auto change_dense = [of_mask](Own &own) {
                (of_mask ? own.mask : own.windows).select(0, 0).add_(1);
            };
            Run run(options_of(MT_ADAMW), make_overlapping, change_overlapping);
            Run dense(options_of(MT_ADAMW), make_dense, change_dense);
            Batch batch(8);
            ck_ok(dense.train_step(batch.get()));
            ck_ok(mt_torch_save(dense.torch, file.path(), nullptr));
            mt_weights_options lax = MT_WEIGHTS_OPTIONS_INIT;
            lax.strict = 0;
            std::string before = run.hash();
            ck_refused(weights ? mt_model_load_weights(run.model, file.path(), &lax)
                               : mt_torch_load(run.torch, file.path(), nullptr, 0),
                       MT_EINVAL, of_mask ? "'mask'" : "'windows'");
            ck_contains(mt_last_error(), "share memory");
            ck_assert(run.hash() == before);
            ck_ok(run.train_step(batch.get()));
        }
}

/* To the CPU and back, and rolled back there. */
TEST("buffers", shared_elements_move) {
    mt_torch_options options = options_of(MT_ADAMW);
    options.device = "sim:cuda";
    for (int way = 0; way < 2; way++) {
        Run run(options, way ? ways[0].make : make_overlapping,
                way ? ways[0].change : change_overlapping);
        Batch batch(8);
        mt_backend backend = seam_of(run.torch);
        for (int on : {1, 0}) {
            ck_ok(run.train_step(batch.get()));
            std::string before = run.hash();
            ck_ok(backend.set_rung(backend.self, MT_RUNG_CPU, on));
            ck_assert(run.hash() == before);
            if (!way) ck_assert_int_eq(run.net->mask.stride(0), 0);
            ck_status(with_fault(4, [&] { return run.train_step(batch.get()); }).status,
                      MT_EDEVMEM);
            ck_assert(run.hash() == before);
        }
    }
}

static at::Tensor matrix() {
    return at::ones({3, 4});
}

/* Each kind of tensor is kept, or refused by its name before anything is trained. */
TEST("buffers", kinds_of_buffers) {
    const struct {
        const char *name;
        at::Tensor (*make)();
        bool kept;
    } rows[] = {
        {"sparse", [] { return matrix().to_sparse(); }, false},
        {"csr", [] { return matrix().to_sparse_csr(); }, false},
        {"quantised", [] { return at::quantize_per_tensor(matrix(), 0.1, 0, c10::kQInt8); }, false},
        {"complex128", [] { return at::ones({3}).to(c10::kComplexDouble); }, false},
        {"meta", [] { return matrix().to(c10::kMeta); }, false},
        {"complex", [] { return matrix().to(c10::kComplexFloat); }, true},
        {"empty",
         [] {
             return at::zeros({0, 4});
         },
         true},
        {"scalar",
         [] {
             return at::ones({}).expand({2, 2});
         },
         true},
        {"half", [] { return at::ones({3}).to(c10::kHalf); }, true},
        {"bool", [] { return at::ones({3}).to(c10::kBool); }, true},
    };
    ck_ok(mt_torch_init(nullptr));
    for (const auto &row : rows)
        for (bool parameter : {false, true}) {
            Owned owned;
            mt_status status = new_own(owned, [&](Own &own) {
                if (parameter)
                    own.register_parameter(row.name, row.make(), false);
                else
                    own.register_buffer(row.name, row.make());
            });
            if (!row.kept) {
                ck_refused(status, MT_ENOTSUP, row.name);
                continue;
            }
            Batch batch(8);
            auto step = [&] { return owned.train_step(batch.get()); };
            ck_ok(status);
            ck_status(with_fault(2, step).status, MT_EDEVMEM);
            ck_ok(step());
        }
}

/* ---- tensors that share memory ---------------------------------------------------------------------- */

namespace {

const struct {
    const char *name; /* NULL: accepted */
    Code make;
} sharing[] = {
    {"'v'", [](Own &own) { own.register_buffer("v", own.layer->weight.detach()); }},
    {"'v'", [](Own &own) { own.register_parameter("v", own.layer->weight.detach(), false); }},
    {"'v'", [](Own &own) { own.register_parameter("v", own.layer->weight.detach().t()); }},
    {"'v'", [](Own &own) { own.register_parameter("v", own.layer->weight.detach().select(0, 1)); }},
    {"'v'",
     [](Own &own) { /* every second column, and one of them */
                    own.register_buffer("v", own.layer->weight.detach().slice(1, 3, 8, 2));
     }},
    {"'other'",
     [](Own &own) {
         own.register_parameter("other", at::zeros({5, 192})).set_data(own.layer->weight.data());
     }},
    {nullptr, [](Own &own) { own.register_parameter("same", own.layer->weight); }},
    {nullptr, [](Own &own) { own.register_module("twice", own.layer); }},
    {nullptr, [](Own &own) { own.register_buffer("v", own.layer->weight.detach().clone()); }},
    {nullptr,
     [](Own &own) { /* columns of one matrix, which have no element in common */
                    at::Tensor both = at::zeros({5, 384});
                    own.layer->weight.set_data(both.narrow(1, 0, 192));
                    own.register_parameter("right", both.narrow(1, 192, 192).detach());
     }},
    {nullptr,
     [](Own &own) { /* neither trains */
                    at::Tensor one = own.register_buffer("one", at::zeros({4}));
                    own.register_buffer("view", one.narrow(0, 0, 2));
     }},
};

} // namespace

/* A parameter that trains moves, and no other tensor with it; the same tensor is one under any names. */
TEST_LOOP("buffers", shared_memory, LENGTH(sharing)) {
    Owned owned;
    Batch batch(8);
    mt_status status = new_own(owned, sharing[_i].make);
    if (!sharing[_i].name) {
        ck_ok(status);
        ck_ok(owned.train_step(batch.get()));
        return;
    }
    ck_refused(status, MT_EINVAL, "'layer.weight'");
    ck_contains(mt_last_error(), sharing[_i].name);
    ck_contains(mt_last_error(), "share memory and are two tensors");
}

/* ---- parameters ------------------------------------------------------------------------------------ */

TEST_LOOP("written", every_allocation_fails, LENGTH(ways)) {
    fail_each(options_of(MT_ADAMW), ways[_i].make, ways[_i].change);
}

/* Frozen by a group, not by the model. */
TEST("written", frozen_by_a_group) {
    mt_parameter_group group = MT_PARAMETER_GROUP_INIT;
    group.pattern = "key";
    group.frozen = 1;
    mt_torch_options options = options_of(MT_ADAMW);
    options.groups = &group;
    options.group_count = 1;
    fail_each(
        options,
        [](Own &own) {
            own.key = own.register_parameter("key", at::ones({5, 192}));
        },
        ways[0].change);
}

/* One line, once, that names it. */
TEST_LOOP("written", is_told, LENGTH(ways)) {
    mt_set_log(keep_warnings, nullptr);
    Run run(options_of(MT_SGD), ways[_i].make, ways[_i].change);
    train(run, false);
    train(run, true);
    ck_assert_uint_eq(warnings.size(), 1);
    ck_contains(warnings[0].c_str(), ("'" + std::string(ways[_i].name) + "'").c_str());
    ck_contains(warnings[0].c_str(), "once a chunk");
}

/* What nobody writes to costs no copy and no word. */
TEST("written", others_cost_nothing) {
    mt_set_log(keep_warnings, nullptr);
    for (int way = 0; way < 2; way++) {
        Run run(
            options_of(MT_ADAMW), make_key, way ? ways[0].change : [](Own &) {});
        train(run, true);
        ck_assert_uint_eq(info_of(seam_of(run.torch)).buffer_bytes,
                          way ? 5 * 192 * sizeof(float) : 0);
        ck_assert_uint_eq(warnings.size(), way);
    }
}

/* The first write comes in a later step: found by the version, from then on kept. In one that fails it is told. */
TEST("written", begins_late) {
    for (bool fails : {false, true}) {
        bool on = false;
        Run run(options_of(MT_SGD), make_key, [&on](Own &own) {
            if (on) own.key.mul_(0.5);
        });
        Batch batch(8);
        ck_ok(run.train_step(batch.get()));
        on = true;
        if (!fails) {
            ck_ok(run.train_step(batch.get()));
            std::string before = run.hash();
            ck_ok(mt_inject_oom(5, 0));
            ck_status(run.train_step(batch.get()), MT_EDEVMEM);
            ck_assert(run.hash() == before);
            continue;
        }
        ck_ok(mt_inject_oom(5, 0));
        ck_refused(run.train_step(batch.get()), MT_ESTATE, "'key'");
        ck_refused(run.train_step(batch.get()), MT_ESTATE, "'key'");
    }
}

/* A step that half precision skips leaves it as it was. */
TEST_LOOP("written", skipped_step, LENGTH(ways)) {
    if (has_no_scaler("skipped_step")) return;
    Run run(skipping(), ways[_i].make, ways[_i].change);
    Batch batch(8);
    mt_apply_result applied = apply_result();
    for (int i = 0; i < 2; i++) {
        at::Tensor key = run.net->key.defined() ? run.net->key : run.net->layer->weight;
        at::Tensor before = key.clone();
        ck_ok(run.train_step(batch.get(), &applied));
        ck_assert_int_eq(applied.skipped, 1);
        ck_assert(at::equal(key, before));
    }
}

/* A segment that is run again would write twice. */
TEST_LOOP("written", not_in_a_segment, LENGTH(ways)) {
    mt_torch_options options = options_of(MT_SGD);
    for (bool on : {true, false}) {
        options.checkpointing = on ? MT_CHECKPOINTING_ON : MT_CHECKPOINTING_AUTO;
        Run run(options, ways[_i].make, ways[_i].change, true);
        Batch batch(8);
        std::string before = run.hash();
        mt_status status = run.train_step(batch.get());
        if (!on) {
            ck_ok(status);
            continue;
        }
        ck_assert_int_ne(status, MT_OK); /* by way of an exception of the model's */
        ck_contains(mt_last_error(), "writes to a parameter");
        ck_assert(run.hash() == before);
    }
}

SUITE("shim_kept")
