/* onednn.cpp - keeps oneDNN on where memory ran out inside of it. */
#include "onednn.hpp"

#include <ATen/Context.h>

#include "cpu_memory.hpp"
#include "guard.hpp"

namespace memtrain::shim {

static thread_local KeepOneDnn *innermost = nullptr;

KeepOneDnn::KeepOneDnn()
    : was_on_(at::globalContext().userEnabledMkldnn()), refused_(cpu::refused_requests()),
      outer_(innermost) {
    innermost = this;
}

KeepOneDnn::~KeepOneDnn() {
    if (is_lost()) at::globalContext().setUserEnabledMkldnn(true);
    innermost = outer_;
}

/* Without a refusal it was the model's own wish, or something that oneDNN cannot do. */
bool KeepOneDnn::is_lost() const {
    return was_on_ && cpu::refused_requests() > refused_ &&
           !at::globalContext().userEnabledMkldnn();
}

void KeepOneDnn::check() {
    if (innermost && innermost->is_lost())
        fail(MT_EDEVMEM, "out of memory in a product of matrices, which libtorch would have "
                         "computed in another way without a word");
}

} // namespace memtrain::shim
