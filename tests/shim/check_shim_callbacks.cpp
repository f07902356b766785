/*
 * check_shim_callbacks.cpp - models whose functions do what they should not: hand on what is no tensor, fail
 * without a word, tell of names twice or of nothing to train, call the step that calls them; and what
 * libtorch warns of.
 */
#include <string>

#include <ATen/ops/full.h>
#include <c10/util/complex.h>

#include <memtrain/tensor.h>

#include "check_shim.hpp"

using namespace check_shim;

namespace {

/* A model in C; which of its functions misbehaves is a number. */
struct Odd {
    mt_tensor *weight = nullptr, *other = nullptr;
    mt_status (*visit)(Odd &odd, mt_visit_fn fn, void *user) = nullptr;
    mt_status fails = MT_OK;
    void (*calls)() = nullptr; /* in its loss */
};

Odd odd; /* of the test: each runs in a process of its own */

mt_status visit_parameters(void *, mt_visit_fn fn, void *user) {
    return odd.visit(odd, fn, user);
}

mt_status loss(void *, mt_tensor *const *, size_t, mt_tensor *out, mt_tensor *) {
    if (odd.fails != MT_OK) return odd.fails;
    if (odd.calls) odd.calls();
    at::Tensor weight = *static_cast<at::Tensor *>(mt_tensor_get(odd.weight));
    *static_cast<at::Tensor *>(mt_tensor_get(out)) = weight.sum();
    return MT_OK;
}

mt_tensor *parameter(bool is_trained = true) {
    mt_tensor *handle;
    ck_ok(mt_tensor_new(&handle));
    at::Tensor tensor = at::full({4}, 1.0);
    *static_cast<at::Tensor *>(mt_tensor_get(handle)) = tensor.set_requires_grad(is_trained);
    return handle;
}

mt_model *odd_model(mt_status (*visit)(Odd &, mt_visit_fn, void *)) {
    mt_model_ops ops = MT_MODEL_OPS_INIT;
    mt_model *model;
    ops.visit_parameters = visit_parameters;
    ops.loss = loss;
    odd.weight = parameter();
    odd.other = parameter();
    odd.visit = visit;
    ck_ok(mt_model_new(&ops, nullptr, nullptr, &model));
    return model;
}

mt_status only_weight(Odd &o, mt_visit_fn fn, void *user) {
    return fn(user, "weight", o.weight);
}

/* ---- what is handed on ---------------------------------------------------------------------------- */

const struct {
    mt_status (*visit)(Odd &, mt_visit_fn, void *);
    mt_status status;
    const char *says;
} visits[] = {
    {[](Odd &, mt_visit_fn fn, void *user) { return fn(user, "weight", nullptr); }, MT_EINVAL,
     "the model's visit function: weight is NULL"},
    {[](Odd &o, mt_visit_fn fn, void *user) { return fn(user, nullptr, o.weight); }, MT_EINVAL,
     "the model's visit function: name is NULL"},
    {[](Odd &o, mt_visit_fn fn, void *user) {
         mt_tensor_free(o.other);
         return fn(user, "other", o.other);
     },
     MT_EINVAL, "the model's visit function: other is not a live handle"},
    {[](Odd &o, mt_visit_fn fn, void *user) {
         mt_status status = fn(user, "weight", o.weight);
         return status == MT_OK ? fn(user, "weight", o.other) : status;
     },
     MT_EINVAL, "mt_torch_new: two parameters or buffers of the model have the name 'weight'"},
    {[](Odd &, mt_visit_fn, void *) { return MT_EUSER; }, MT_EUSER,
     "the model's visit_parameters has failed and does not say why: "},
    /* As a module does whose layers were not registered. */
    {[](Odd &, mt_visit_fn, void *) { return MT_OK; }, MT_EINVAL,
     "mt_torch_new: the model has no parameters; a module knows those of register_parameter "
     "and "
     "register_module"},
};

TEST_LOOP("models", what_is_visited, LENGTH(visits)) {
    mt_torch *torch;
    mt_model *model = odd_model(visits[_i].visit);
    mt_set_error(MT_EIO, "an older line");
    ck_refused(mt_torch_new(model, nullptr, &torch), visits[_i].status, visits[_i].says);
    ck_assert_ptr_null(torch);
    mt_model_free(model);
}

/* A parameter is freed while it is in use: every later call says so. */
TEST("models", freed_in_use) {
    char text[65];
    mt_torch *torch;
    mt_model *model = odd_model(only_weight);
    ck_ok(mt_torch_new(model, nullptr, &torch));
    mt_tensor_free(odd.weight);
    ck_refused(mt_torch_state_sha256(torch, text), MT_EINVAL, "weight is not a live handle");
    mt_torch_free(torch);
    mt_model_free(model);
}

/* The same tensor under one name twice, and an empty one, are nothing wrong. */
TEST("models", what_is_passed_over) {
    mt_torch *torch;
    mt_tensor *empty = nullptr;
    ck_ok(mt_tensor_new(&empty));
    mt_model *model = odd_model([](Odd &o, mt_visit_fn fn, void *user) {
        for (const char *name : {"weight", "tied"}) {
            mt_status status = fn(user, name, o.weight);
            if (status != MT_OK) return status;
        }
        return fn(user, "bias", o.other);
    });
    mt_tensor_free(odd.other);
    odd.other = empty;
    Batch batch(2);
    ck_ok(mt_torch_new(model, nullptr, &torch));
    ck_ok(mt_train_step(torch, batch.get(), nullptr, nullptr));
    mt_torch_free(torch);
    mt_model_free(model);
}

/* ---- steps ------------------------------------------------------------------------------------------ */

TEST("models", nothing_to_train) {
    mt_torch *torch;
    mt_chunk_result result = MT_CHUNK_RESULT_INIT;
    mt_model *model = odd_model(only_weight);
    mt_tensor_free(odd.weight);
    odd.weight = parameter(false);
    Batch batch(2);
    std::string log;
    mt_set_log([](void *user, mt_log_level,
                  const char *text) { *static_cast<std::string *>(user) += text; },
               &log);
    ck_ok(mt_torch_new(model, nullptr, &torch));
    mt_set_log(nullptr, nullptr);
    ck_contains(log.c_str(), "no parameter of the model requires a gradient");
    ck_ok(mt_evaluate(torch, batch.get(), 0, 2, &result));
    ck_refused(mt_train_step(torch, batch.get(), nullptr, nullptr), MT_EINVAL,
               "no parameter that requires a gradient");
    ck_contains(mt_last_error(), "requires_grad_");
    mt_torch_free(torch);
    mt_model_free(model);
}

TEST("models", fails_without_words) {
    mt_torch *torch;
    mt_model *model = odd_model(only_weight);
    Batch batch(2);
    ck_ok(mt_torch_new(model, nullptr, &torch));
    for (mt_status status : {MT_EUSER, MT_EIO}) {
        odd.fails = status;
        mt_set_error(MT_EINVAL, "an older line");
        ck_refused(mt_train_step(torch, batch.get(), nullptr, nullptr), status,
                   "the model's loss has failed and does not say why: ");
        ck_contains(mt_last_error(), mt_status_text(status));
    }
    odd.fails = MT_OK;
    ck_ok(mt_train_step(torch, batch.get(), nullptr, nullptr));
    mt_torch_free(torch);
    mt_model_free(model);
}

mt_torch *called;
int refusals;
std::string last_logged;

void is_refused(mt_status status) {
    ck_refused(status, MT_ESTATE, "called by a function that a step has called");
    refusals++;
}

/* Each would change the state below the step that is under way, or take a chunk into a chunk. */
void call_back() {
    Batch batch(2);
    mt_chunk_result chunk = MT_CHUNK_RESULT_INIT;
    mt_apply_result applied = MT_APPLY_RESULT_INIT;
    is_refused(mt_accumulate(called, 0, 2, 1.0, &chunk));
    is_refused(mt_train_step(called, batch.get(), nullptr, nullptr));
    is_refused(mt_mark(called));
    is_refused(mt_rewind(called));
    is_refused(mt_rollback(called));
    is_refused(mt_hold_gradients(called, 0));
    is_refused(mt_apply(called, &applied));
    is_refused(mt_torch_save(called, "unwritten", nullptr));
    is_refused(mt_torch_freeze(called, "*", 1));
    mt_torch_free(called);
    ck_contains(last_logged.c_str(), "mt_torch_free: called by a function that a step has called");
}

/* The step that was under way goes on as if nothing had been called, and later calls are free to come. */
TEST("models", calls_its_own_torch) {
    mt_chunk_result chunk = MT_CHUNK_RESULT_INIT;
    mt_log_fn keep = [](void *, mt_log_level, const char *text) { last_logged = text; };
    mt_model *model = odd_model(only_weight);
    Batch batch(2);
    odd.calls = call_back;
    mt_set_log(keep, nullptr);
    ck_ok(mt_torch_new(model, nullptr, &called));
    ck_ok(mt_train_step(called, batch.get(), nullptr, nullptr));
    ck_ok(mt_evaluate(called, batch.get(), 0, 2, &chunk));
    ck_assert_int_eq(refusals, 18);
    mt_set_log(nullptr, nullptr);
    mt_torch_free(called);
    mt_model_free(model);
}

/* ---- options and tensors ------------------------------------------------------------------------------ */

TEST("others", orders_that_are_none) {
    for (int number : {-1, 2}) {
        mt_torch *torch;
        mt_torch_options options = MT_TORCH_OPTIONS_INIT;
        options.channels_last = number;
        mt_model *model = odd_model(only_weight);
        ck_refused(mt_torch_new(model, &options, &torch), MT_EINVAL, "options->channels_last is ");
        mt_model_free(model);
    }
}

TEST("others", there_is_one_cpu) {
    ck_refused(mt_device_check("cpu:7"), MT_EINVAL, "'cpu:7' is no device; accepted: cpu");
    ck_ok(mt_device_check("cpu:0"));
    ck_ok(mt_device_check("cpu"));
    size_t count = 7;
    ck_ok(mt_device_count("cpu", &count));
    ck_assert_uint_eq(count, 1);
    ck_status(mt_device_count("cpu:0", &count), MT_EINVAL);
    ck_assert_uint_eq(count, 0);
    ck_assert_str_eq(mt_last_error(),
                     "mt_device_count: 'cpu:0' is one device; accepted: its type, 'cpu'");
    ck_refused(mt_device_count("toaster", &count), MT_EINVAL,
               "mt_device_count: 'toaster' is not the name of a device");
    ck_status(mt_device_count("xla", &count), MT_ENOTSUP);
    ck_status(mt_device_count(nullptr, &count), MT_EINVAL);
    ck_status(mt_device_count("cpu", nullptr), MT_EINVAL);
    ck_assert_str_eq(mt_last_error(), "mt_device_count: out is NULL");
}

/* All that are here, one after another: no test device is beside this suite. */
TEST("others", devices_one_after_another) {
    char name[64] = "x";
    ck_ok(mt_device_here(0, name, sizeof name));
    ck_assert_str_eq(name, "cpu");
    for (size_t i = 1; mt_device_here(i, name, sizeof name) == MT_OK; i++)
        ck_ok(mt_device_check(name));
    ck_assert_str_eq(name, "");
    ck_contains(mt_last_error(), "accepted: 0 to ");
    ck_refused(mt_device_here(SIZE_MAX, name, sizeof name), MT_EINVAL,
               "mt_device_here: number is 18446744073709551615; accepted: 0 to ");
    ck_refused(mt_device_here(0, name, 3), MT_EINVAL,
               "mt_device_here: size is 3; accepted: at least 4");
    ck_refused(mt_device_here(0, name, 0), MT_EINVAL,
               "mt_device_here: size is 0; accepted: at least 64");
    ck_refused(mt_device_here(0, nullptr, 64), MT_EINVAL, "mt_device_here: text is NULL");
}

TEST("others", complex_numbers) {
    float numbers[2];
    mt_tensor *handle;
    ck_ok(mt_tensor_new(&handle));
    *static_cast<at::Tensor *>(mt_tensor_get(handle)) =
        at::full({2}, c10::complex<double>(1, 2), at::kComplexFloat);
    ck_refused(mt_tensor_read(handle, MT_FLOAT32, numbers, sizeof numbers), MT_ENOTSUP,
               "aten::view_as_real");
    mt_tensor_free(handle);
}

/* ---- warnings ------------------------------------------------------------------------------------------ */

void keep(void *user, mt_log_level level, const char *text) {
    if (level == MT_LOG_WARNING) *static_cast<std::string *>(user) = text;
}

TEST("others", warnings_are_logged) {
    std::string logged;
    mt_torch *torch;
    mt_set_log(keep, &logged);
    odd.fails = MT_OK;
    mt_model *model = odd_model([](Odd &o, mt_visit_fn fn, void *user) {
        TORCH_WARN("mind the step");
        return fn(user, "weight", o.weight);
    });
    ck_ok(mt_torch_new(model, nullptr, &torch));
    ck_assert_str_eq(logged.c_str(), "libtorch: mind the step");
    mt_set_log(nullptr, nullptr);
    mt_torch_free(torch);
    mt_model_free(model);
}

} // namespace

int main() {
    auto init = [] {
        ck_ok(mt_torch_init(nullptr));
        ck_ok(mt_torch_set_threads(1));
    };
    for (const char *name : {"models", "others"})
        tcase_add_checked_fixture(suite_case_named(name), init, nullptr);
    return suite_run_named("shim_callbacks");
}
