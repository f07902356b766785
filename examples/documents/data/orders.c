/*
 * orders.c - a list of orders, the one that was asked for last first; see orders.h.
 */
#include "orders.h"

#include <pthread.h>
#include <stdlib.h>

enum { KEPT = 2 };

typedef struct kept {
    struct kept *next;
    uint64_t epoch;
    size_t holders;
    size_t order[];
} kept;

struct ex_orders {
    pthread_mutex_t mutex;
    ex_order_fn fn;
    const void *self;
    size_t count, made;
    kept *first;
};

ex_orders *ex_orders_new(size_t count, ex_order_fn fn, const void *self) {
    ex_orders *orders = calloc(1, sizeof *orders);
    if (!orders) return NULL;
    pthread_mutex_init(&orders->mutex, NULL);
    orders->count = count;
    orders->fn = fn;
    orders->self = self;
    return orders;
}

void ex_orders_free(ex_orders *orders) {
    if (!orders) return;
    for (kept *k = orders->first, *next; k; k = next) {
        next = k->next;
        free(k);
    }
    pthread_mutex_destroy(&orders->mutex);
    free(orders);
}

/* Behind the first ones what nobody holds goes. */
static void drop_old(ex_orders *orders) {
    kept **at = &orders->first;
    for (size_t i = 0; *at; i++) {
        kept *k = *at;
        if (i < KEPT || k->holders) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        free(k);
    }
}

/* Takes it out of the list; NULL: it is not there. */
static kept *take_out(ex_orders *orders, uint64_t epoch) {
    for (kept **at = &orders->first; *at; at = &(*at)->next) {
        kept *k = *at;
        if (k->epoch != epoch) continue;
        *at = k->next;
        return k;
    }
    return NULL;
}

static kept *make(ex_orders *orders, uint64_t epoch) {
    kept *k = malloc(sizeof *k + orders->count * sizeof *k->order);
    if (!k) return NULL;
    k->epoch = epoch;
    k->holders = 0;
    orders->fn(orders->self, epoch, k->order);
    orders->made++;
    return k;
}

/* Made with the mutex locked: other threads want the same one. */
const size_t *ex_orders_hold(ex_orders *orders, uint64_t epoch) {
    pthread_mutex_lock(&orders->mutex);
    kept *k = take_out(orders, epoch);
    if (!k) k = make(orders, epoch);
    if (k) {
        k->holders++;
        k->next = orders->first;
        orders->first = k;
        drop_old(orders);
    }
    pthread_mutex_unlock(&orders->mutex);
    return k ? k->order : NULL;
}

void ex_orders_release(ex_orders *orders, const size_t *order) {
    pthread_mutex_lock(&orders->mutex);
    for (kept *k = orders->first; k; k = k->next) k->holders -= k->order == order;
    drop_old(orders);
    pthread_mutex_unlock(&orders->mutex);
}

size_t ex_orders_made(ex_orders *orders) {
    pthread_mutex_lock(&orders->mutex);
    size_t made = orders->made;
    pthread_mutex_unlock(&orders->mutex);
    return made;
}
