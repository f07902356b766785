/* gloo/rendezvous/store.h - the base class of libtorch's GlooStore by its functions, see gloo/context.h. */
#ifndef MEMTRAIN_SHIM_GLOO_STORE_H
#define MEMTRAIN_SHIM_GLOO_STORE_H

#include <chrono>
#include <string>
#include <vector>

namespace gloo::rendezvous {

class Store {
public:
    virtual ~Store();
    virtual void set(const std::string &key, const std::vector<char> &value) = 0;
    virtual std::vector<char> get(const std::string &key) = 0;
    virtual void wait(const std::vector<std::string> &keys) = 0;
    virtual void wait(const std::vector<std::string> &keys,
                      const std::chrono::milliseconds &timeout);
};

} // namespace gloo::rendezvous
#endif
