/*
 * dataset_split.h - the split of a data set into training and validation; part of dataset.c.
 */
#ifndef EX_DATASET_SPLIT_H
#define EX_DATASET_SPLIT_H

#include "content.h"
#include "dataset.h"

/* A hash of "class/name", of so many bytes of the name. */
uint64_t ex_name_hash(const char *class_name, const char *name, size_t length);

/*
 * Marks a share of each class, at least one picture where it has two, for validation: groups of pictures
 * in the order of their hash (see dataset.h). The samples are sorted by class and name.
 * @return EX_OK or EX_ENOMEM
 */
ex_status ex_dataset_split(ex_dataset *dataset, double share);

#endif
