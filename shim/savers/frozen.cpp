/*
 * frozen.cpp - blocks whose parameters do not train: while one runs, mapped parameters have the type that the
 * network computes in, and afterwards their pages are given back.
 */
#include <memtrain/torch_map.h>

#include <algorithm>
#include <vector>

#include <c10/core/GradMode.h>

#include "arguments.hpp"
#include "guard.hpp"
#include "init.hpp"
#include "mapping.hpp"
#include "recompute.hpp"
#include "tensor.hpp"

namespace memtrain::shim {
namespace {

constexpr char name_of[] = "mt_frozen";

/* A parameter whose memory is a view of a file. */
struct Frozen {
    at::Tensor parameter;
    at::Tensor mapped; /* the same memory */
};

/*
 * While it lives, parameters that are mapped in another type are casts. set_data() needs no memory, so that what was
 * there before comes back whatever happens.
 */
class Casts final : public Surroundings {
public:
    explicit Casts(const std::vector<at::Tensor> &parameters) {
        c10::NoGradGuard no_graph;
        for (const at::Tensor &parameter : parameters) {
            if (const MappedView *view = mapped_view(parameter)) add(parameter, view);
        }
        begin();
    }
    ~Casts() override {
        c10::NoGradGuard no_graph;
        for (const Frozen &frozen : list_) frozen.parameter.set_data(frozen.mapped);
        for (const Part &part : parts_) part.mapping->end(part.views);
    }

    /* A page that was missing is known once all have been read. */
    void finish() override {
        for (const Part &part : parts_)
            for (const MappedView *view : part.views) view->file->check();
    }

private:
    /* The views of one mapping: a block has seldom more than one. */
    struct Part {
        Mapping *mapping; /* the views keep it */
        std::vector<const MappedView *> views;
    };

    void add(const at::Tensor &parameter, const MappedView *view) {
        list_.push_back({parameter, parameter.variable_data()});
        for (Part &part : parts_)
            if (part.mapping == view->mapping.get()) return part.views.push_back(view);
        parts_.push_back({view->mapping.get(), {view}});
    }

    void begin() {
        try {
            for (const Part &part : parts_) part.mapping->begin(part.views);
            cast();
        } catch (...) {
            for (const Frozen &frozen : list_) frozen.parameter.set_data(frozen.mapped);
            throw;
        }
    }

    void cast() {
        uint64_t bytes = 0;
        for (const Frozen &frozen : list_) {
            const MappedView *view = mapped_view(frozen.mapped);
            if (view->computes == frozen.mapped.scalar_type()) continue;
            at::Tensor cast = frozen.mapped.to(view->computes);
            bytes += cast.nbytes();
            frozen.parameter.set_data(cast);
        }
        for (const Part &part : parts_) part.mapping->note_casts(bytes);
    }

    std::vector<Frozen> list_;
    std::vector<Part> parts_;
};

std::vector<at::Tensor> visited(const mt_frozen_ops &ops, void *self) {
    std::vector<Named> named;
    std::vector<at::Tensor> list;
    check(ops.visit_parameters(self, collect, &named));
    for (const Named &one : distinct(named)) list.push_back(one.tensor);
    return list;
}

} // namespace
} // namespace memtrain::shim

using namespace memtrain::shim;

/* From the segment on, that destroys self. */
extern "C" mt_status mt_frozen(const mt_frozen_ops *ops, void *self, mt_tensor *const *inputs,
                               size_t input_count, mt_tensor *const *outputs, size_t output_count) {
    mt_frozen_ops own = MT_FROZEN_OPS_INIT;
    MT_RETURN_IF_FAILED(check_sized(ops, name_of, "ops"));
    copy_in(own, ops);
    std::vector<at::Tensor> parameters;
    mt_status status = check_not_null(reinterpret_cast<const void *>(own.run), name_of, "ops->run");
    if (status == MT_OK)
        status = check_not_null(reinterpret_cast<const void *>(own.visit_parameters), name_of,
                                "ops->visit_parameters");
    if (status == MT_OK) status = ensure_init();
    if (status == MT_OK) status = guard([&] { parameters = visited(own, self); });
    if (status != MT_OK) {
        if (own.destroy) (void)guard([&] { own.destroy(self); });
        return status;
    }
    mt_segment_ops segment = MT_SEGMENT_OPS_INIT;
    segment.run = own.run;
    segment.visit_buffers = own.visit_buffers;
    segment.destroy = own.destroy;
    bool trains = std::any_of(parameters.begin(), parameters.end(),
                              [](const at::Tensor &one) { return one.requires_grad(); });
    auto surround = [parameters = std::move(parameters)]() -> std::unique_ptr<Surroundings> {
        return std::make_unique<Casts>(parameters);
    };
    return guard([&] {
        return run_surrounded(name_of, segment, self, inputs, input_count, outputs, output_count,
                              surround, trains);
    });
}
