/*
 * check_shim_scaler.cpp - half precision with a loss scaler: the update is that of the gradient without the
 * scale, what is not finite changes nothing, and the scale is a part of the transaction and of the state.
 */
#include <cmath>
#include <cstdio>
#include <limits>
#include <unistd.h>

#include <ATen/ops/isfinite.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <memtrain/safetensors.h>
#include <memtrain/trainer.h>

#include "check_shim.hpp"

using namespace check_shim;

namespace {

const mt_optimizer optimizers[] = {MT_SGD, MT_ADAM, MT_ADAMW};
constexpr double huge = 4294967296.0; /* a scale that no gradient of the network bears */

/* CUDA's model has the scalars of an update on its device. */
const char *const devices[] = {"cpu", "sim:cuda"};

mt_torch_options half(mt_optimizer optimizer, double clip_norm = 0.0, double scale_start = 0.0) {
    mt_torch_options options = options_of(optimizer, clip_norm);
    options.amp = MT_FLOAT16;
    options.scale_start = scale_start;
    return options;
}

NetOptions no_norm() {
    NetOptions options;
    options.norm = false;
    return options;
}

/* One step that must go through. */
mt_apply_result train(const Trainer &trainer, const Batch &batch) {
    mt_apply_result applied = apply_result();
    ck_ok(mt_train_step(trainer.torch, batch.get(), nullptr, &applied));
    return applied;
}

/* One update whatever the loss is, which mt_train_step would look at. */
mt_status update(const Trainer &trainer, const Batch &batch, mt_apply_result &applied) {
    mt_chunk_result chunk = {};
    chunk.size = sizeof chunk;
    ck_ok(mt_begin(trainer.torch, batch.get()));
    ck_ok(mt_accumulate(trainer.torch, 0, batch.get()->count, 1.0, &chunk));
    mt_status status = mt_apply(trainer.torch, &applied);
    std::string line = mt_last_error();
    if (status != MT_OK) ck_ok(mt_rollback(trainer.torch));
    return mt_set_error(status, "%s", line.c_str());
}

/* Everything of the state but the scale and random numbers. */
std::string contents(const Trainer &trainer) {
    std::string bytes;
    ck_ok(mt_torch_visit_state(
        trainer.torch,
        [](void *user, const char *name, mt_tensor *handle) {
            const at::Tensor tensor = memtrain::tensor(handle).cpu().contiguous();
            if (strcmp(name, "amp.scaler") == 0) return MT_OK;
            static_cast<std::string *>(user)->append(static_cast<const char *>(tensor.data_ptr()),
                                                     tensor.nbytes());
            return MT_OK;
        },
        &bytes));
    return bytes;
}

void spoil(const Batch &batch, float value) {
    *memtrain::tensor(batch.images()).mutable_data_ptr<float>() = value;
}

/* Gone with the object. */
struct TemporaryFile {
    char path[32] = "/tmp/check_scaler.XXXXXX";
    TemporaryFile() {
        int file = mkstemp(path);
        ck_assert_int_ge(file, 0);
        close(file);
    }
    ~TemporaryFile() { remove(path); }
};

/* Halves the scale until a step goes through; the number of steps that did not. */
int settle(const Trainer &trainer, const Batch &batch) {
    int skipped = 0;
    while (train(trainer, batch).skipped) skipped++;
    return skipped;
}

/* The loop as PyTorch's documentation has it: scaled loss, gradients divided, an optimiser of libtorch's. */
struct Hand {
    std::shared_ptr<Net> net;
    std::unique_ptr<torch::optim::Optimizer> optimizer;

    Hand(const mt_torch_options &o) {
        ck_ok(mt_torch_seed(7));
        net = std::make_shared<Net>(no_norm());
        if (o.optimizer == MT_SGD)
            optimizer = std::make_unique<torch::optim::SGD>(
                net->parameters(),
                torch::optim::SGDOptions(o.lr).momentum(o.momentum).weight_decay(o.weight_decay));
        else if (o.optimizer == MT_ADAM)
            optimizer = std::make_unique<torch::optim::Adam>(
                net->parameters(), torch::optim::AdamOptions(o.lr).weight_decay(o.weight_decay));
        else
            optimizer = std::make_unique<torch::optim::AdamW>(
                net->parameters(), torch::optim::AdamWOptions(o.lr).weight_decay(o.weight_decay));
    }
    void step(const Batch &batch, double scale) {
        struct Call {
            Net *net;
            const Batch *batch;
            at::Tensor loss;
        } call = {net.get(), &batch, {}};
        ck_ok(mt_amp_autocast(
            "cpu", MT_FLOAT16,
            [](void *user) {
                Call &c = *static_cast<Call *>(user);
                at::Tensor logits = c.net->forward(memtrain::tensor(c.batch->images()));
                c.loss = at::cross_entropy_loss(logits, memtrain::tensor(c.batch->labels()));
                return MT_OK;
            },
            &call));
        optimizer->zero_grad();
        (call.loss * scale).backward();
        for (const at::Tensor &parameter : net->parameters())
            if (parameter.grad().defined()) parameter.mutable_grad().div_(scale);
        optimizer->step();
    }
};

} // namespace

/* Forward in half precision, parameters and gradients in float32, the loss near the one without. */
TEST_LOOP("scaler", trains, 2) {
    double losses[2];
    for (int amp = 0; amp < 2; amp++) {
        c10::ScalarType seen = c10::kByte;
        mt_torch_options options = amp ? half(MT_ADAMW) : options_of(MT_ADAMW);
        options.device = devices[_i];
        NetOptions plain;
        plain.dropout = false;
        Trainer trainer(options, plain, [&](Net &net) {
            seen = net.linear(at::ones({1, 72}, device_of(net))).scalar_type();
        });
        Batch batch(8);
        mt_chunk_result chunk = chunk_result();
        for (int i = 0; i < 5; i++) ck_ok(step(trainer, batch, {4, 4}, &chunk));
        losses[amp] = chunk.loss_sum;
        ck_assert(seen == (amp ? c10::kHalf : c10::kFloat));
        ck_assert_double_eq(mt_torch_scale(trainer.torch), amp ? 65536.0 : 0.0);
        for (const at::Tensor &parameter : trainer.net->parameters()) {
            ck_assert(parameter.scalar_type() == c10::kFloat);
            ck_assert(parameter.grad().scalar_type() == c10::kFloat);
        }
    }
    ck_assert_double_eq_tol(losses[1] / losses[0], 1.0, 0.05);
}

/* As in a loop by hand. Behind BatchNorm a bias has no gradient but rounding, which Adam makes large. */
TEST_LOOP("scaler", as_by_hand, 6) {
    mt_torch_options options = half(optimizers[_i % 3], 0.0, 1024.0);
    options.device = devices[_i / 3];
    Trainer trainer(options, no_norm());
    Hand hand(options);
    Batch batch(8);
    ck_ok(mt_torch_seed(3));
    for (int i = 0; i < 5; i++) ck_assert(!train(trainer, batch).skipped);
    ck_ok(mt_torch_seed(3));
    for (int i = 0; i < 5; i++) hand.step(batch, 1024.0);
    auto ours = trainer.net->parameters(), theirs = hand.net->parameters();
    for (size_t i = 0; i < ours.size(); i++)
        ck_assert_double_lt((ours[i] - theirs[i]).abs().max().item().toDouble(), 1e-6);
}

/* Reported and clipped is the norm without the scale: with plain SGD the update is as long as the limit. */
TEST_LOOP("scaler", clips_without_the_scale, 2) {
    mt_torch_options options = half(MT_SGD, 0.01);
    options.device = devices[_i];
    options.momentum = options.weight_decay = 0.0;
    options.lr = 1.0;
    Trainer trainer(options);
    Batch batch(8);
    std::vector<at::Tensor> before;
    for (const at::Tensor &p : trainer.net->parameters()) before.push_back(p.detach().clone());
    mt_apply_result applied = train(trainer, batch);
    double sum = 0.0;
    auto after = trainer.net->parameters();
    for (size_t i = 0; i < after.size(); i++)
        sum += (after[i].detach() - before[i]).to(at::kDouble).pow(2).sum().item().toDouble();
    ck_assert_double_eq_tol(std::sqrt(sum), 0.01, 1e-5);

    options.amp = MT_DTYPE_NONE;
    options.clip_norm = 1e6;
    Trainer plain(options);
    double norm = train(plain, batch).grad_norm;
    ck_assert_double_gt(norm, 0.1);
    ck_assert_double_eq_tol(applied.grad_norm / norm, 1.0, 0.02);
}

/* A scale that is too large is halved until it is not; nothing else has changed. */
TEST_LOOP("scaler", skips_until_it_fits, 6) {
    mt_torch_options options = half(optimizers[_i % 3], _i % 2 ? 0.1 : 0.0, huge);
    options.device = devices[_i / 3];
    Trainer trainer(options);
    Batch batch(8);
    std::string before = contents(trainer);
    double scale = huge;
    int skipped = 0;
    for (; train(trainer, batch).skipped; skipped++) {
        ck_assert(contents(trainer) == before);
        ck_assert_double_eq(mt_torch_scale(trainer.torch), scale /= 2);
    }
    ck_assert_int_gt(skipped, 5);
    ck_assert_int_lt(skipped, 40);
    ck_assert(contents(trainer) != before);
    ck_assert_double_eq(mt_torch_scale(trainer.torch), scale);
    /* The optimiser counts updates, not steps. */
    for (const at::Tensor &p : trainer.net->parameters())
        ck_assert(at::isfinite(p).all().item().toBool());
}

/* Doubled after so many updates in a row; a skipped one starts the count again. */
TEST("scaler", grows) {
    mt_torch_options options = half(MT_SGD, 0.0, 16.0);
    options.scale_growth_interval = 3;
    Trainer trainer(options);
    Batch batch(8), bad(8);
    spoil(bad, std::numeric_limits<float>::infinity());
    const struct {
        bool good;
        double then;
    } steps[] = {{true, 16},  {true, 16}, {true, 32}, {true, 32}, {true, 32},
                 {false, 16}, {true, 16}, {true, 16}, {true, 32}, {false, 16}};
    for (const auto &s : steps) {
        mt_apply_result applied = apply_result();
        ck_ok(update(trainer, s.good ? batch : bad, applied));
        ck_assert_int_eq(applied.skipped, !s.good);
        ck_assert_double_eq(mt_torch_scale(trainer.torch), s.then);
    }
}

/* What no scale helps: down to the floor, then an error that says so; a good batch goes on. */
TEST_LOOP("scaler", not_finite_at_all, 2) {
    mt_torch_options options = half(MT_ADAMW, 0.0);
    options.device = devices[_i];
    Trainer trainer(options);
    Batch batch(8), bad(8);
    spoil(bad, std::numeric_limits<float>::quiet_NaN());
    train(trainer, batch);
    std::string before = contents(trainer);
    for (int i = 0; i < 100; i++) {
        mt_apply_result applied = apply_result();
        mt_status status = update(trainer, bad, applied);
        if (i < 32) {
            ck_ok(status);
            ck_assert(applied.skipped);
            continue;
        }
        ck_refused(status, MT_ESTATE, "not finite");
        ck_assert_double_eq(mt_torch_scale(trainer.torch), 1.0 / 65536);
    }
    ck_assert(contents(trainer) == before);
    ck_assert(!train(trainer, batch).skipped);
}

/* Each allocation fails in turn: the step is taken back, scale included, and then goes as without. */
TEST_LOOP("state", every_allocation_fails, 12) {
    mt_torch_options options = half(optimizers[_i % 3], 0.1, _i < 6 ? 1024.0 : huge);
    options.device = devices[_i / 3 % 2];
    std::string first, second;
    auto two_steps = [&](const Trainer &trainer, const Batch &batch) {
        ck_ok(step(trainer, batch, {3, 5}));
        first = trainer.hash();
        ck_ok(step(trainer, batch, {3, 5}));
        second = trainer.hash();
    };
    Batch batch(8);
    {
        Trainer clean(options);
        two_steps(clean, batch);
    }
    std::string expected_first = first, expected_second = second;
    uint64_t failed = 1;
    for (uint64_t n = 1; failed; n++) {
        Trainer trainer(options);
        ck_ok(step(trainer, batch, {3, 5}));
        ck_assert(trainer.hash() == expected_first);
        ck_ok(mt_inject_oom(n, 0));
        mt_status status = step(trainer, batch, {3, 5});
        mt_injected(nullptr, &failed);
        ck_ok(mt_inject_oom(0, 0));
        if (!failed) {
            ck_ok(status);
            break;
        }
        ck_assert_uint_lt(n, 2000);
        if (status != MT_OK) {
            ck_status(status, MT_EDEVMEM);
            mt_status rolled = mt_rollback(trainer.torch);
            if (rolled != MT_OK) ck_status(rolled, MT_ESTATE); /* begin itself had failed */
            ck_assert(trainer.hash() == expected_first);
            ck_ok(step(trainer, batch, {3, 5}));
        }
        ck_assert(trainer.hash() == expected_second);
        n += n > 40 ? 6 : 0;
    }
}

/* Unscaling, clipping and the update take no memory of the CPU. */
TEST_LOOP("scaler", apply_allocates_nothing, 3) {
    for (int skip = 0; skip < 2; skip++) {
        Trainer trainer(half(optimizers[_i], 0.1, skip ? huge : 1024.0));
        Batch batch(8);
        mt_chunk_result chunk = chunk_result();
        mt_apply_result applied = apply_result();
        uint64_t requests = 1, failed = 1;
        ck_ok(mt_begin(trainer.torch, batch.get()));
        ck_ok(mt_accumulate(trainer.torch, 0, 8, 1.0, &chunk));
        ck_ok(mt_inject_oom(0, 0));
        ck_ok(mt_apply(trainer.torch, &applied));
        mt_injected(&requests, &failed);
        if (suite_on_cpu()) ck_assert_uint_eq(requests, 0);
        ck_assert_int_eq(applied.skipped, skip);
    }
}

/* A run that goes on from a file has the scale, and the updates counted towards the next one. */
TEST_LOOP("state", resumes, 3) {
    TemporaryFile file;
    const char *path = file.path;
    mt_torch_options options = half(optimizers[_i], 0.1, huge);
    mt_torch_save_options saving = MT_TORCH_SAVE_OPTIONS_INIT;
    saving.keep = 0;
    options.scale_growth_interval = 4;
    Batch batch(8);
    std::string saved, saved_contents, expected;
    double scale;
    {
        Trainer trainer(options);
        settle(trainer, batch);
        for (int i = 0; i < 2; i++) train(trainer, batch);
        saved = trainer.hash();
        saved_contents = contents(trainer);
        scale = mt_torch_scale(trainer.torch);
        ck_ok(mt_torch_save(trainer.torch, path, &saving));
        for (int i = 0; i < 6; i++) train(trainer, batch);
        expected = trainer.hash();
    }
    Trainer trainer(options);
    ck_ok(mt_torch_load(trainer.torch, path, nullptr, 0));
    ck_assert_double_eq(mt_torch_scale(trainer.torch), scale);
    ck_assert(contents(trainer) == saved_contents);
    ck_assert(trainer.hash() == saved);
    for (int i = 0; i < 6; i++) train(trainer, batch);
    ck_assert(trainer.hash() == expected);
}

/* Files of runs without a scaler load into those with one, and the other way round. */
TEST("state", resumes_across_precisions) {
    TemporaryFile file;
    const char *path = file.path;
    mt_torch_save_options saving = MT_TORCH_SAVE_OPTIONS_INIT;
    saving.keep = 0;
    mt_torch_options with = half(MT_ADAMW, 0.0, 512.0), without = options_of(MT_ADAMW);
    Batch batch(8);
    for (int i = 0; i < 2; i++) {
        std::string before;
        {
            Trainer from(i ? with : without);
            train(from, batch);
            before = contents(from);
            ck_ok(mt_torch_save(from.torch, path, &saving));
        }
        Trainer to(i ? without : with);
        ck_ok(mt_torch_load(to.torch, path, nullptr, 0));
        ck_assert(contents(to) == before);
        ck_assert_double_eq(mt_torch_scale(to.torch), i ? 0.0 : 512.0);
    }
}

/* A trainer's report has the steps that were skipped, and its policy goes on. */
TEST("scaler", through_a_trainer) {
    Trainer trainer(half(MT_ADAMW, 0.0, huge));
    mt_backend seam = seam_of(trainer);
    mt_trainer *driver = nullptr;
    mt_step_report report = {};
    Batch batch(8);
    report.size = sizeof report;
    ck_ok(mt_trainer_new(&seam, nullptr, &driver));
    std::string before = contents(trainer);
    int skipped = 0;
    for (int i = 0; i < 40; i++) {
        ck_ok(mt_trainer_step(driver, batch.get(), &report));
        skipped += report.skipped;
        std::string now = contents(trainer);
        ck_assert_int_eq(report.skipped, now == before);
        before = now;
    }
    ck_assert_int_gt(skipped, 5);
    ck_assert_int_lt(skipped, 40);
    mt_trainer_free(driver);
}

/* The rung turns bfloat16 on and off, where no precision was asked for. */
TEST("scaler", rung) {
    c10::ScalarType seen = c10::kByte;
    Trainer trainer(options_of(MT_ADAMW), {}, [&](Net &net) {
        seen = net.linear(at::ones({1, 72}, device_of(net))).scalar_type();
    });
    mt_backend seam = seam_of(trainer);
    mt_backend_info info = {};
    Batch batch(8);
    info.size = sizeof info;
    ck_ok(seam.describe(seam.self, &info));
    ck_assert(info.rungs & MT_RUNG_BIT(MT_RUNG_AMP));
    for (int on : {1, 0, 1}) {
        ck_ok(seam.set_rung(seam.self, MT_RUNG_AMP, on));
        for (int i = 0; i < 4; i++) train(trainer, batch);
        ck_assert(seen == (on ? c10::kBFloat16 : c10::kFloat));
        ck_assert_double_eq(mt_torch_scale(trainer.torch), 0.0);
    }
    for (mt_dtype dtype : {MT_BFLOAT16, MT_FLOAT16}) {
        mt_torch_options options = options_of(MT_ADAMW);
        options.amp = dtype;
        Trainer other(options);
        seam = seam_of(other);
        ck_ok(seam.describe(seam.self, &info));
        ck_assert(!(info.rungs & MT_RUNG_BIT(MT_RUNG_AMP)));
        ck_status(seam.set_rung(seam.self, MT_RUNG_AMP, 1), MT_ENOTSUP);
    }
}

/* A run on the rung has the bits of one that had bfloat16 from the start. */
TEST("scaler", rung_bits) {
    mt_torch_options options = options_of(MT_ADAMW);
    Batch batch(8);
    std::string hashes[2];
    for (int i = 0; i < 2; i++) {
        options.amp = i ? MT_BFLOAT16 : MT_DTYPE_NONE;
        Trainer trainer(options);
        mt_backend seam = seam_of(trainer);
        if (!i) ck_ok(seam.set_rung(seam.self, MT_RUNG_AMP, 1));
        for (int k = 0; k < 6; k++) train(trainer, batch);
        hashes[i] = trainer.hash();
    }
    ck_assert(hashes[0] == hashes[1]);
}

TEST("scaler", no_handle) {
    ck_assert_double_eq(mt_torch_scale(nullptr), 0.0);
}

int main() {
    if (suite_on_card() && suite_on_mps()) {
        suite_skip("shim_scaler", "MPS takes bfloat16 alone, which needs no scaler");
        return EXIT_SUCCESS;
    }
    return suite_run_named("shim_scaler");
}
