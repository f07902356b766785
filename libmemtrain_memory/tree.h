/*
 * tree.h - ordered sets whose nodes lie in what they order: treaps (Seidel & Aragon 1996).
 *
 * A set is a pointer to its root, NULL when empty. Members are ordered by (key, id), which must
 * differ between members and stay as they are while in the set. Nothing is allocated; all
 * operations take O(log n) expected time, and the shape depends on the members alone.
 */
#ifndef MT_TREE_H
#define MT_TREE_H

#include <stddef.h>
#include <stdint.h>

typedef struct mt__node {
    uint64_t key, id;
    struct mt__node *left, *right;
} mt__node;

/* What the node lies in. */
#define MT__OWNER(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

void mt__tree_insert(mt__node **root, mt__node *node, uint64_t key, uint64_t id);

/* The node must be in the set. */
void mt__tree_remove(mt__node **root, mt__node *node);

/* The least member that is not before (key, id), or NULL. */
mt__node *mt__tree_from(mt__node *root, uint64_t key, uint64_t id);

/* The least, the next and the greatest member, or NULL. */
mt__node *mt__tree_first(mt__node *root);
mt__node *mt__tree_next(mt__node *root, const mt__node *node);
mt__node *mt__tree_last(mt__node *root);

#endif
