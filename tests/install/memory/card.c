/*
 * A card that is not there: what PyTorch's allocator reserves on 8 GiB for a tensor of 3 MiB, and what it says to one
 * that does not fit.
 *
 *     cc card.c $(pkg-config --cflags --libs memtrain-memory) -o card && ./card
 */
#include <memtrain/sim.h>

#include <stdio.h>

static mt_status try_card(mt_sim *sim, mt_sim_stats *stats) {
    mt_sim_block block;
    mt_status status = mt_sim_alloc(sim, (size_t)3 << 20, &block);

    if (status == MT_OK) status = mt_sim_release(sim, block.address);
    if (status == MT_OK) status = mt_sim_read_stats(sim, stats);
    if (status != MT_OK) return status;
    printf("memtrain %s: 3 MiB of tensor, %zu MiB of card\n", mt_version_string(),
           stats->reserved_bytes >> 20);
    status = mt_sim_alloc(sim, (size_t)16 << 30, &block);
    printf("16 GiB: %s\n", mt_last_error());
    return status == MT_EDEVMEM ? MT_OK : MT_ESTATE;
}

int main(void) {
    mt_sim_options options = MT_SIM_OPTIONS_INIT;
    mt_sim_stats stats = {0};
    mt_sim *sim = NULL;
    mt_status status;

    options.total_bytes = (size_t)8 << 30;
    stats.size = sizeof(stats);
    status = mt_sim_new(&options, &sim);
    if (status == MT_OK) status = try_card(sim, &stats);
    if (status != MT_OK) fprintf(stderr, "%s: %s\n", mt_status_name(status), mt_last_error());
    mt_sim_free(sim);
    return status != MT_OK || stats.reserved_bytes != (size_t)20 << 20;
}
