/*
 * rungs.h - short words for the rungs of the ladder.
 */
#ifndef MEMTRAIN_TESTS_RUNGS_H
#define MEMTRAIN_TESTS_RUNGS_H

#include <memtrain/backend.h>

#define BIT(rung) MT_RUNG_BIT(MT_RUNG_##rung)
#define ALL (MT_RUNG_BIT(MT_RUNGS) - 1)

/* Steps that a rung is kept for, until it turns out to have been left too soon. */
enum { PATIENCE = 4 };

#endif
