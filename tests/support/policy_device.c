/*
 * policy_device.c - see policy_device.h.
 */
#include "policy_device.h"
#include "suite.h"

void check_balanced(const mt_plan *plan, size_t samples, size_t chunks) {
    size_t sum = 0, last = SIZE_MAX;

    ck_assert_uint_eq(mt_plan_chunks(plan), chunks);
    ck_assert_uint_eq(mt_plan_covered(plan), samples);
    for (size_t i = 0; i < chunks; i++) {
        size_t m = mt_plan_chunk(plan, i);

        ck_assert_uint_ge(m, samples / chunks);
        ck_assert_uint_le(m, samples / chunks + 1);
        ck_assert_uint_le(m, last);
        last = m;
        sum += m;
    }
    ck_assert_uint_eq(sum, samples);
    ck_assert_uint_eq(mt_plan_chunk(plan, chunks), 0);
    ck_assert_uint_eq(mt_plan_chunk(plan, SIZE_MAX), 0);
}

mt_policy *policy_new(mt_policy_options options, mt_backend_info info) {
    mt_policy *policy;

    options.size = sizeof(options);
    info.size = sizeof(info);
    ck_ok(mt_policy_new(&options, &info, &policy));
    return policy;
}

device device_new(size_t budget, mt_policy_options options, mt_backend_info info) {
    device dev = {.budget = budget, .resident = 5000, .records = 1};

    dev.policy = policy_new(options, info);
    return dev;
}

mt_memory device_memory(const device *dev) {
    mt_memory memory = {.size = sizeof(memory)};

    memory.budget_bytes = dev->rungs & MT_RUNG_BIT(MT_RUNG_CPU) ? dev->cpu_budget : dev->budget;
    memory.allocated_bytes = memory.reserved_bytes = memory.peak_bytes = dev->resident;
    return memory;
}

size_t rung_peak(unsigned rungs, size_t m) {
    fake_allocation storage[FAKE_ALLOCATIONS_MAX];
    fake_program program = fake_program_with(&fake_train_program, rungs, storage);

    return fake_program_peak(&program, m);
}

static double chunk_seconds(const device *dev, size_t samples) {
    double seconds = dev->seconds != NULL ? dev->seconds(samples) : 0;

    for (unsigned r = 0; r < MT_RUNGS; r++)
        if ((dev->rungs & MT_RUNG_BIT(r)) && dev->slower[r] > 0) seconds *= dev->slower[r];
    return seconds;
}

size_t device_fits(const device *dev) {
    size_t m = 0;

    while (dev->resident + fake_program_peak(&fake_train_program, m + 1) <= dev->budget) m++;
    return m;
}

static void sink_recording(void *user, void *address, int64_t bytes) {
    mt_recording_event(user, address, bytes);
}

size_t device_bound(const device *dev, size_t samples) {
    mt_recording *recording;
    mt_memory_model *model;
    mt_event_sink sink = {NULL, sink_recording};
    size_t m;

    ck_ok(mt_recording_new(&recording));
    ck_ok(mt_recording_start(recording, samples));
    sink.user = recording;
    fake_program_record(&fake_train_program, samples, &sink);
    ck_ok(mt_memory_model_new(recording, NULL, &model));
    m = mt_memory_model_largest(model, dev->budget - dev->resident);
    mt_memory_model_free(model);
    mt_recording_free(recording);
    return m > 2 * samples ? m : 2 * samples;
}

mt_status device_chunk(device *dev, mt_mode mode, size_t samples) {
    mt_event_sink sink = {mt_policy_recording(dev->policy, mode, samples), sink_recording};
    mt_chunk_result result = {.size = sizeof(result)};
    fake_allocation storage[FAKE_ALLOCATIONS_MAX];
    fake_program program = fake_program_with(&fake_train_program, dev->rungs, storage);
    size_t peak = dev->resident + fake_program_peak(&program, samples);
    size_t budget = device_memory(dev).budget_bytes;

    if (budget > 0 && peak > budget) return mt_set_error(MT_EDEVMEM, "refused");
    if (sink.user != NULL && dev->records) fake_program_record(&program, samples, &sink);
    result.peak_bytes = peak;
    result.loss_sum = result.units = (double)samples;
    result.seconds = chunk_seconds(dev, samples);
    return mt_policy_observe(dev->policy, mode, samples, dev->resident, &result);
}

mt_oom oom_explained(const device *dev, size_t chunk, unsigned attempt) {
    mt_oom oom = {.size = sizeof(oom), .mode = MT_TRAIN, .phase = MT_PHASE_ACCUMULATE};

    oom.chunk = chunk;
    oom.attempt = attempt;
    oom.refused = 1;
    oom.refused_in_use_bytes = device_memory(dev).budget_bytes - 100;
    oom.refused_bytes = 4096;
    oom.allocated_before_bytes = dev->resident;
    oom.memory = device_memory(dev);
    return oom;
}

mt_oom oom_injected(const device *dev, size_t chunk, unsigned attempt) {
    mt_oom oom = oom_explained(dev, chunk, attempt);

    oom.refused_in_use_bytes = dev->resident;
    oom.refused_bytes = 8;
    return oom;
}

mt_action answer(device *dev, mt_oom oom) {
    mt_action action = (mt_action)99;

    ck_ok(mt_policy_oom(dev->policy, &oom, &action));
    ck_assert_int_ge((int)action, MT_ACTION_RETRY);
    ck_assert_int_le((int)action, MT_ACTION_GIVE_UP);
    return action;
}

/* The rung of the plan that is refused, or MT_RUNGS. */
static unsigned refused_rung(const device *dev) {
    unsigned rung = 0;

    while (rung < MT_RUNGS && !(dev->plan.rungs & dev->refused_on & MT_RUNG_BIT(rung))) rung++;
    return rung;
}

mt_status device_plan(device *dev, mt_mode mode, size_t samples) {
    mt_memory memory = device_memory(dev);
    mt_status status = mt_policy_plan(dev->policy, mode, samples, &memory, &dev->plan);

    while (status == MT_OK && refused_rung(dev) < MT_RUNGS) {
        mt_rung rung = (mt_rung)refused_rung(dev);

        ck_ok(mt_policy_rung_failed(dev->policy, rung, 1, dev->why));
        status = mt_policy_plan(dev->policy, mode, samples, &memory, &dev->plan);
    }
    if (status == MT_OK) dev->rungs = dev->plan.rungs;
    return status;
}

mt_status device_attempt(device *dev, mt_mode mode, size_t *failed) {
    mt_memory memory = device_memory(dev);
    mt_status status = MT_OK;
    size_t m;

    dev->count = 0;
    for (size_t i = 0; status == MT_OK; i++) {
        m = mt_plan_chunk(&dev->plan, i);
        if (m == 0 && !dev->plan.discard && mt_plan_covered(&dev->plan) < dev->plan.samples) {
            status = mt_policy_extend(dev->policy, mode, &memory, &dev->plan);
            m = mt_plan_chunk(&dev->plan, i);
        }
        if (m == 0 || status != MT_OK) return status;
        ck_assert_uint_lt(dev->count, DEVICE_CHUNKS_MAX);
        dev->chunks[dev->count++] = *failed = m;
        status = device_chunk(dev, mode, m);
    }
    return status;
}

mt_status device_batch(device *dev, mt_mode mode, size_t samples) {
    mt_status status = device_plan(dev, mode, samples);
    size_t failed = 0;

    dev->ooms = 0;
    dev->discarded = dev->learnt_count = 0;
    while (status == MT_OK) {
        mt_action action;
        mt_oom oom;

        status = device_attempt(dev, mode, &failed);
        if (status == MT_OK && !dev->plan.discard) return MT_OK;
        if (status == MT_OK) {
            dev->discarded += mt_plan_covered(&dev->plan);
            for (size_t i = 0; i < dev->count && dev->learnt_count < 8; i++)
                dev->learnt[dev->learnt_count++] = dev->chunks[i];
            status = device_plan(dev, mode, samples);
            continue;
        }
        dev->tried_too_large[dev->ooms++] = failed;
        oom = oom_explained(dev, failed, dev->ooms);
        oom.mode = mode;
        action = answer(dev, oom);
        if (action == MT_ACTION_GIVE_UP) return MT_EDEVMEM;
        status = action == MT_ACTION_REPLAN ? device_plan(dev, mode, samples) : MT_OK;
    }
    return status;
}

void check_covers(const device *dev, size_t samples) {
    size_t sum = 0;

    for (size_t i = 0; i < dev->count; i++) sum += dev->chunks[i];
    ck_assert_uint_eq(sum, samples);
}

size_t need(size_t m) {
    return 5000 + fake_program_peak(&fake_train_program, m);
}
