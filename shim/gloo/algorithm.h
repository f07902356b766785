/* gloo/algorithm.h - nothing of it is needed, see gloo/context.h. */
