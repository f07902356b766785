/*
 * check_ex_orders.c - the order of an epoch is made once and kept: counted, with batches, with single samples of a
 * process's share, and with several threads.
 */
#include "captions.h"
#include "suite.h"
#include "dataset.h"
#include "orders.h"
#include "pictures.h"
#include "processes.h"

#include <pthread.h>
#include <stdio.h>

enum { COUNT = 1000, SIDE = 16, MOST = 512 };

/* ---- the list itself ----------------------------------------------------------------------------- */

static void write_order(const void *self, uint64_t epoch, size_t *order) {
    (void)self;
    for (size_t i = 0; i < COUNT; i++) order[i] = i + 10000 * epoch;
}

static void check(ex_orders *orders, uint64_t epoch) {
    const size_t *order = ex_orders_hold(orders, epoch);
    ck_assert_ptr_nonnull(order);
    for (size_t i = 0; i < COUNT; i += 111) ck_assert_uint_eq(order[i], i + 10000 * epoch);
    ex_orders_release(orders, order);
}

TEST("list", the_last_two_are_kept) {
    ex_orders *orders = ex_orders_new(COUNT, write_order, NULL);
    for (int i = 0; i < 5; i++) check(orders, 1);
    ck_assert_uint_eq(ex_orders_made(orders), 1);
    for (int i = 0; i < 5; i++) check(orders, 1 + (uint64_t)(i % 2));
    ck_assert_uint_eq(ex_orders_made(orders), 2);
    check(orders, 3);
    check(orders, 1); /* asked for after 2: it is still there */
    ck_assert_uint_eq(ex_orders_made(orders), 3);
    check(orders, 2);
    ck_assert_uint_eq(ex_orders_made(orders), 4);
    ex_orders_free(orders);
    ex_orders_free(NULL);
}

/* What is held stays where it is, however many others are asked for. */
TEST("list", held_ones_stay) {
    ex_orders *orders = ex_orders_new(COUNT, write_order, NULL);
    const size_t *held = ex_orders_hold(orders, 1);
    for (uint64_t epoch = 2; epoch < 20; epoch++) check(orders, epoch);
    ck_assert_ptr_eq(ex_orders_hold(orders, 1), held);
    ck_assert_uint_eq(held[7], 7 + 10000);
    ck_assert_uint_eq(ex_orders_made(orders), 19);
    ex_orders_release(orders, held);
    ex_orders_release(orders, held);
    ex_orders_free(orders);
}

static void *ask(void *user) {
    for (uint64_t epoch = 1; epoch <= 50; epoch++) check(user, epoch);
    return NULL;
}

TEST("list", several_threads) {
    ex_orders *orders = ex_orders_new(COUNT, write_order, NULL);
    pthread_t threads[4];
    for (int i = 0; i < LENGTH(threads); i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, ask, orders), 0);
    for (int i = 0; i < LENGTH(threads); i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ck_assert_uint_ge(ex_orders_made(orders), 50);
    ck_assert_uint_le(ex_orders_made(orders), 200);
    ex_orders_free(orders);
}

/* ---- sources ------------------------------------------------------------------------------------- */

static float pixels[MOST * 3 * SIDE * SIDE];
static int64_t numbers[MOST * EX_CAPTION_CONTEXT];

/* Batches of eight, or of two processes' shares one sample after the other, of two epochs and validation. */
static void fill_all(const ex_source *source) {
    void *const buffers[] = {pixels, numbers};
    ex_error error;
    for (uint64_t epoch = 1; epoch <= 2; epoch++)
        for (size_t i = 0; i + 8 <= source->count(source->self, EX_TRAINING); i += 8)
            ck_assert_int_eq(source->fill(source->self, EX_TRAINING, epoch, i, 8, buffers, &error),
                             EX_OK);
    ck_assert_int_eq(source->fill(source->self, EX_VALIDATION, 0, 0, 4, buffers, &error), EX_OK);
}

static ex_source share_of(const ex_source *whole, ex_processes *p, int count) {
    memset(p, 0, sizeof *p);
    p->group.count = count;
    return ex_processes_share(p, whole);
}

TEST_LOOP("sources", pictures_are_shuffled_once_an_epoch, 2) {
    ex_dataset_options options = {.seed = 3, .keep_side = 20, .max_samples = 60};
    ex_dataset *dataset;
    ex_processes processes;
    ex_error error;
    ck_assert_int_eq(ex_dataset_open("examples/data/food", &options, &dataset, &error), EX_OK);
    const ex_pictures pictures = {dataset, SIDE};
    const ex_source whole = ex_pictures_source(&pictures);
    const ex_source source = share_of(&whole, &processes, _i + 1);
    fill_all(&source);
    ck_assert_uint_eq(ex_orders_made(dataset->orders), 2);
    ex_dataset_free(dataset);
}

TEST_LOOP("sources", pairs_are_shuffled_once_an_epoch, 2) {
    const ex_captions_options options = {.seed = 3, .side = SIDE, .batch = 8};
    ex_captions *captions;
    ex_processes processes;
    ex_error error;
    ck_assert_msg(ex_captions_read("examples/data", &options, &captions, &error) == EX_OK, "%s",
                  error.text);
    const ex_source whole = ex_captions_source(captions);
    const ex_source source = share_of(&whole, &processes, _i + 1);
    fill_all(&source);
    ck_assert_uint_eq(ex_orders_made(captions->orders), 2);
    ex_captions_free(captions);
}

/* A share has the samples that the whole order has in its places. */
TEST("sources", a_share_is_of_the_same_order) {
    ex_dataset_options options = {.seed = 3, .keep_side = 20, .max_samples = 60};
    ex_dataset *dataset;
    ex_processes processes;
    ex_error error;
    size_t order[64];
    void *const buffers[] = {pixels, numbers};
    ck_assert_int_eq(ex_dataset_open("examples/data/food", &options, &dataset, &error), EX_OK);
    const ex_pictures pictures = {dataset, SIDE};
    const ex_source whole = ex_pictures_source(&pictures);
    const ex_source source = share_of(&whole, &processes, 2);
    processes.group.rank = 1;
    ex_dataset_order(dataset, EX_TRAINING, 5, order);
    ck_assert_int_eq(source.fill(source.self, EX_TRAINING, 5, 3, 8, buffers, &error), EX_OK);
    for (size_t i = 0; i < 8; i++)
        ck_assert_int_eq(numbers[i], (int64_t)dataset->samples[order[2 * (3 + i) + 1]].label);
    ex_dataset_free(dataset);
}

SUITE("ex_orders")
