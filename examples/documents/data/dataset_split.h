/*
 * dataset_split.h - the split of a data set into training and validation; part of dataset.c.
 */
#ifndef EX_DATASET_SPLIT_H
#define EX_DATASET_SPLIT_H

#include "dataset.h"

/* FNV-1a (Fowler, Noll, Vo) of bytes behind others; EX_HASH_INIT where there are none. */
#define EX_HASH_INIT UINT64_C(0xcbf29ce484222325)
uint64_t ex_hash(uint64_t hash, const void *data, size_t bytes);

/* A hash of "class/name", of so many bytes of the name. */
uint64_t ex_name_hash(const char *class_name, const char *name, size_t length);

/*
 * Marks a share of each class, at least one picture where it has two, for validation: groups of pictures
 * in the order of their hash (see dataset.h). The samples are sorted by class and name.
 * @return EX_OK or EX_ENOMEM
 */
ex_status ex_dataset_split(ex_dataset *dataset, double share);

#endif
