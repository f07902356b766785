/*
 * gloo/context.h and its neighbours - what libtorch's ProcessGroupGloo.hpp names of Gloo. libtorch comes with Gloo
 * inside and without its headers; we make none of its objects and hand none over, so names are all that is needed.
 */
#ifndef MEMTRAIN_SHIM_GLOO_CONTEXT_H
#define MEMTRAIN_SHIM_GLOO_CONTEXT_H

#include <chrono>

namespace gloo {

class Context {
public:
    void setTimeout(std::chrono::milliseconds timeout);
};

} // namespace gloo
#endif
