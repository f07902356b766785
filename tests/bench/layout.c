/*
 * layout.c - how long it takes to lay out the blocks of a step, and how near the arena comes to the most
 * bytes alive: blocks as of a chain of layers, forward and back, with helpers in between. To be below 10 ms
 * for 1,000 blocks and 300 ms for 10,000.
 *
 *     layout  blocks=... ms=... over_bound=... tries_per_ms=... searched=...
 */
#include <memtrain/arena.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TRIES 200

static double now(void) {
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static uint64_t random_state = 1;

/* splitmix64 */
static size_t random_below(size_t n) {
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (size_t)((z ^ (z >> 31)) % n);
}

/* Four blocks a layer: an activation, a helper, and two gradients, that of the weights to the end. */
static void fill(mt_block *blocks, size_t layers) {
    size_t last = 8 * layers;

    for (size_t i = 0; i < layers; i++) {
        size_t bytes = 4096 + random_below((size_t)1 << 20), back = last - 4 * i;

        blocks[4 * i] = (mt_block){bytes, 4 * i, back + 3, 0};
        blocks[4 * i + 1] = (mt_block){random_below(bytes), 4 * i + 1, 4 * i + 2, 0};
        blocks[4 * i + 2] = (mt_block){bytes, back, back + 4, 0};
        blocks[4 * i + 3] = (mt_block){64 + random_below(300000), back + 1, SIZE_MAX, 0};
    }
}

/* Returns the seconds of the layout; negative: it failed. */
static double run(size_t count) {
    mt_block *blocks = calloc(count, sizeof(*blocks));
    mt_layout layout = MT_LAYOUT_INIT;
    mt_arena_search *search = NULL;
    double start, seconds, bound, later;

    if (blocks == NULL) return -1;
    fill(blocks, count / 4);
    start = now();
    if (mt_arena_layout(blocks, count, 0, 64, &layout) != MT_OK) return -1;
    seconds = now() - start;
    if (mt_arena_search_new(blocks, count, 0, 64, &search) != MT_OK) return -1;
    bound = (double)layout.lower_bound_bytes;
    start = now();
    later = (double)mt_arena_search_run(search, TRIES);
    printf("layout  blocks=%zu ms=%.2f over_bound=%.4f order=%s tries_per_ms=%.2f searched=%.4f\n",
           count, 1e3 * seconds, (double)layout.bytes / bound, layout.order,
           TRIES / (1e3 * (now() - start)), later / bound);
    mt_arena_search_free(search);
    free(blocks);
    return seconds;
}

int main(void) {
    double thousand = run(1000), ten_thousand = run(10000);

    return thousand >= 0 && thousand < 0.010 && ten_thousand >= 0 && ten_thousand < 0.300
               ? EXIT_SUCCESS
               : EXIT_FAILURE;
}
