/*
 * tree.c - treaps: binary trees by (key, id), and at the same time heaps by a pseudo-random weight.
 */
#include "tree.h"

/* A hash of what identifies the node (the finaliser of splitmix64), so no generator is needed. */
static uint64_t weight(const mt__node *node) {
    uint64_t x = node->key * 0x9e3779b97f4a7c15u + node->id;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static int before(const mt__node *node, uint64_t key, uint64_t id) {
    return node->key < key || (node->key == key && node->id < id);
}

void mt__tree_insert(mt__node **root, mt__node *node, uint64_t key, uint64_t id) {
    node->key = key;
    node->id = id;
    uint64_t own = weight(node);
    while (*root && weight(*root) >= own)
        root = before(*root, key, id) ? &(*root)->right : &(*root)->left;
    mt__node *rest = *root, **low = &node->left, **high = &node->right;
    *root = node;
    while (rest) { /* what was here goes below the node, to both sides */
        mt__node ***side = before(rest, key, id) ? &low : &high;
        mt__node **inner = side == &low ? &rest->right : &rest->left;
        **side = rest;
        *side = inner;
        rest = *inner;
    }
    *low = *high = NULL;
}

void mt__tree_remove(mt__node **root, mt__node *node) {
    while (*root != node)
        root = before(*root, node->key, node->id) ? &(*root)->right : &(*root)->left;
    mt__node *low = node->left, *high = node->right;
    while (low && high) { /* the two sides become one, the greater weight above */
        mt__node **above = weight(low) >= weight(high) ? &low : &high;
        mt__node **inner = above == &low ? &low->right : &high->left;
        *root = *above;
        *above = *inner;
        root = inner;
    }
    *root = low ? low : high;
}

mt__node *mt__tree_from(mt__node *root, uint64_t key, uint64_t id) {
    mt__node *found = NULL;
    while (root) {
        int is_before = before(root, key, id);
        if (!is_before) found = root;
        root = is_before ? root->right : root->left;
    }
    return found;
}

mt__node *mt__tree_first(mt__node *root) {
    return mt__tree_from(root, 0, 0);
}

mt__node *mt__tree_next(mt__node *root, const mt__node *node) {
    return mt__tree_from(root, node->key, node->id + 1);
}

mt__node *mt__tree_last(mt__node *root) {
    while (root && root->right) root = root->right;
    return root;
}
