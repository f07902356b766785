/*
 * orders.h - the shuffled order of an epoch, made once and kept while it is asked for.
 *
 * A source is asked for batches, and of several processes for single samples; each call would shuffle the whole
 * epoch again. The threads that render ahead are at most in two epochs at once, so that as many orders are kept.
 */
#ifndef EX_ORDERS_H
#define EX_ORDERS_H

#include <stddef.h>
#include <stdint.h>

typedef struct ex_orders ex_orders;

/* Writes the order of an epoch, count numbers. Called by one thread at a time. */
typedef void (*ex_order_fn)(const void *self, uint64_t epoch, size_t *order);

/*
 * @param count  numbers of an order
 * @param fn     makes one
 * @return new reference: free with ex_orders_free; NULL: out of host memory
 */
ex_orders *ex_orders_new(size_t count, ex_order_fn fn, const void *self);

/* NULL is a no-op. No order may be held. */
void ex_orders_free(ex_orders *orders);

/*
 * The order of an epoch, of the kept ones or made now. Any thread may ask.
 * @return borrowed until ex_orders_release; NULL: out of host memory
 */
const size_t *ex_orders_hold(ex_orders *orders, uint64_t epoch);
void ex_orders_release(ex_orders *orders, const size_t *order);

/* How many orders have been made since ex_orders_new. */
size_t ex_orders_made(ex_orders *orders);

#endif
