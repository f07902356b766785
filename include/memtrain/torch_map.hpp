/*
 * memtrain/torch_map.hpp - frozen blocks (memtrain/torch_map.h) of C++ modules. Header only; needs libtorch
 * headers.
 *
 *     for (auto &block : *blocks) x = memtrain::frozen(block, x);
 */
#ifndef MEMTRAIN_TORCH_MAP_HPP
#define MEMTRAIN_TORCH_MAP_HPP

#include <memtrain/torch.hpp>
#include <memtrain/torch_map.h>

namespace memtrain {
namespace detail {

/* fn: Tensors(const Tensors &), as the self of mt_frozen_ops. */
template <class Fn> struct FrozenBlock : Segment<Fn> {
    static mt_status visit_parameters(void *self, mt_visit_fn visitor, void *user) {
        return guard([&] {
            for (const auto &module : static_cast<FrozenBlock *>(self)->modules) {
                mt_status status = visit(module->named_parameters(), visitor, user);
                if (status != MT_OK) return status;
            }
            return MT_OK;
        });
    }
    static void destroy(void *self) { delete static_cast<FrozenBlock *>(self); }
};

} // namespace detail

/*
 * Runs fn, a function Tensors(const Tensors &), as a frozen block. modules: all that it uses parameters or buffers
 * of. outputs: how many tensors it gives.
 */
template <class Fn>
Tensors frozen_block(Fn fn, const Tensors &inputs, size_t outputs, Modules modules) {
    using Own = detail::FrozenBlock<Fn>;
    mt_frozen_ops ops = MT_FROZEN_OPS_INIT;
    ops.run = Own::run;
    ops.visit_parameters = Own::visit_parameters;
    ops.visit_buffers = Own::visit_buffers;
    ops.destroy = Own::destroy;
    detail::Handles in(inputs), out{Tensors(outputs)};
    auto thrown = std::make_shared<std::exception_ptr>();
    auto *self = new Own{{std::move(fn), std::move(modules), thrown}};
    mt_status status = mt_frozen(&ops, self, in.get(), inputs.size(), out.get(), outputs);
    if (status != MT_OK) detail::raise(status, *thrown);
    Tensors results;
    for (size_t i = 0; i < outputs; i++) results.push_back(tensor(out.get()[i]));
    return results;
}

/* A module, a holder of one, or an AnyModule of a Sequential, of one tensor and to one tensor. */
template <class Block> at::Tensor frozen(Block block, const at::Tensor &input) {
    std::shared_ptr<torch::nn::Module> module = detail::module_of(block);
    auto run = [block](const Tensors &in) mutable { return Tensors{detail::call(block, in[0])}; };
    return frozen_block(std::move(run), {input}, 1, {module})[0];
}

} // namespace memtrain
#endif
