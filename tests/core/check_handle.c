/*
 * check_handle.c - the registry of live handles: nothing is made where it has no room, a handle is freed
 * as what it is alone, and threads do not get in each other's way.
 */
#include "counting_allocator.h"
#include "suite.h"
#include "trainer_fixture.h"

#include <memtrain/arena.h>
#include <memtrain/sim.h>
#include <pthread.h>

/* ---- no room in the registry ------------------------------------------------------------------ */

#if !defined(__SANITIZE_ADDRESS__) &&                                                              \
    !defined(__SANITIZE_THREAD__) /* which have a calloc of their own */
static int calloc_fails;
static void *(*volatile take)(void *, size_t) = realloc; /* or the compiler would make it calloc */

/* The registry of handles asks the C library itself. */
void *calloc(size_t count, size_t size) {
    void *block = calloc_fails ? NULL : take(NULL, count * size);

    if (block != NULL) memset(block, 0, count * size);
    return block;
}

/* Under valgrind, say, the library does not get this one. */
static int calloc_is_ours(void) {
    void *(*volatile ask)(size_t, size_t) = calloc;
    void *block;

    calloc_fails = 1;
    block = ask(1, 1);
    calloc_fails = 0;
    free(block);
    return block == NULL;
}

static mt_recording *recorded; /* what the model is made of */

/* make_NAME, which returns made, and free_NAME, which does freed. */
#define MAKER(name, made, freed)                                                                   \
    static mt_status make_##name(void **out) {                                                     \
        return made;                                                                               \
    }                                                                                              \
    static void free_##name(void *handle) {                                                        \
        freed;                                                                                     \
    }

static const mt_block searched[] = {{100, 0, 2, 0}, {50, 1, 3, 0}};

static mt_status new_trainer(mt_trainer **out) {
    mt_backend seam;

    fake_init(&fake, &fake_defaults);
    seam = fake_seam(&fake);
    return mt_trainer_new(&seam, NULL, out);
}

MAKER(recording, mt_recording_new((mt_recording **)out), mt_recording_free(handle))
MAKER(model, mt_memory_model_new(recorded, NULL, (mt_memory_model **)out),
      mt_memory_model_free(handle))
MAKER(policy, mt_policy_new(NULL, NULL, (mt_policy **)out), mt_policy_free(handle))
MAKER(trainer, new_trainer((mt_trainer **)out), mt_trainer_free(handle))
MAKER(search, mt_arena_search_new(searched, 2, 0, 64, (mt_arena_search **)out),
      mt_arena_search_free(handle))
MAKER(sim, mt_sim_new(NULL, (mt_sim **)out), mt_sim_free(handle))

static const struct {
    const char *name;
    size_t handles; /* that it has, or more */
    mt_status (*make)(void **out);
    void (*free)(void *handle);
} makers[] = {
    {"recording", 1, make_recording, free_recording}, {"model", 1, make_model, free_model},
    {"policy", 1, make_policy, free_policy},          {"trainer", 2, make_trainer, free_trainer},
    {"search", 1, make_search, free_search},          {"sim", 1, make_sim, free_sim},
};

/* Makes recordings until no handle has room any more; returns how many. */
static size_t fill_registry(mt_recording **recordings, size_t capacity) {
    mt_status status = MT_OK;
    size_t count = 0;

    ck_ok(mt_recording_new(&recordings[count++])); /* the first one makes the table */
    calloc_fails = 1;
    while (count < capacity && status == MT_OK)
        if ((status = mt_recording_new(&recordings[count])) == MT_OK) count++;
    ck_status(status, MT_ENOMEM);
    return count;
}

/* A place for all of its handles, and it is made; for one less, and nothing has happened. */
TEST_LOOP("room", made_or_not, LENGTH(makers)) {
    mt_recording *recordings[200];
    size_t count, needed = 0, live;
    mt_status status;
    void *handle;

    if (!calloc_is_ours()) {
        suite_skip("handle", "another calloc stands in the place of the test's");
        return;
    }
    ck_ok(counting_install());
    ck_ok(mt_recording_new(&recorded));
    ck_ok(mt_recording_start(recorded, 2));
    mt_recording_event(recorded, &count, 64);
    count = fill_registry(recordings, 200);
    for (;;) {
        handle = &handle;
        live = counting_live();
        status = makers[_i].make(&handle);
        if (status == MT_OK) break;
        ck_refused(status, MT_ENOMEM, "out of host memory");
        ck_assert_ptr_null(handle);
        ck_assert_uint_eq(counting_live(), live);
        ck_assert_uint_gt(count, 0);
        mt_recording_free(recordings[--count]);
        needed++;
    }
    ck_assert_msg(needed >= makers[_i].handles, "%s: %zu", makers[_i].name, needed);
    calloc_fails = 0;
    makers[_i].free(handle);
    while (count > 0) mt_recording_free(recordings[--count]);
    mt_recording_free(recorded);
    ck_assert_uint_eq(counting_live(), 0);
}
#endif

/* ---- what is freed ----------------------------------------------------------------------------- */

/* As another kind, or a second time, it is none: nothing is freed. */
TEST("what", freed_as_what_it_is) {
    mt_recording *recording;

    ck_ok(counting_install());
    mt_recording_free(NULL);
    ck_ok(mt_recording_new(&recording));
    mt_policy_free((mt_policy *)(void *)recording);
    mt_memory_model_free((mt_memory_model *)(void *)recording);
    ck_ok(mt_recording_start(recording, 3));
    ck_assert_uint_eq(mt_recording_samples(recording), 3);
    mt_recording_free(recording);
    ck_assert_uint_eq(counting_live(), 0);
    mt_recording_free(recording);
    ck_assert_uint_eq(mt_recording_samples(recording), 0);
}

/* ---- threads ----------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 4000, EACH = 40 };

/* Its own handles are alive until it frees them, and no longer. Returns how many were not. */
static void *make_and_free(void *unused) {
    mt_recording *own[EACH];
    size_t wrong = 0;

    (void)unused;
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < EACH; i++)
            wrong +=
                mt_recording_new(&own[i]) != MT_OK || mt_recording_start(own[i], i + 1) != MT_OK;
        for (size_t i = 0; i < EACH; i++) wrong += mt_recording_samples(own[i]) != i + 1;
        for (size_t i = 0; i < EACH; i++) mt_recording_free(own[i]);
    }
    return (void *)(uintptr_t)wrong;
}

TEST("threads", threads_at_a_time) {
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, make_and_free, NULL), 0);
    for (int i = 0; i < THREADS; i++) {
        void *wrong;

        ck_assert_int_eq(pthread_join(threads[i], &wrong), 0);
        ck_assert_uint_eq((uintptr_t)wrong, 0);
    }
}

SUITE("handle")
