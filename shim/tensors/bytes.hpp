/*
 * bytes.hpp - the bytes of tensors in row-major order, wherever the tensors lie and whatever their strides
 * are, a few MiB at a time: hashes and files need no copy of a whole tensor.
 */
#ifndef MEMTRAIN_SHIM_BYTES_HPP
#define MEMTRAIN_SHIM_BYTES_HPP

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

namespace memtrain::shim {

/*
 * A buffer of the host's, outside of the budget like the library's other small objects: a state can be
 * saved when tensors have taken all there is. Made when it is first needed.
 */
class Staging {
public:
    struct Bytes {
        const void *data;
        size_t count;
    };

    /* The tensor's bytes from offset on: 0, or where an earlier piece ended. Valid until the next call. */
    Bytes get(const at::Tensor &tensor, size_t offset);

    /* Fills the tensor in place: read(offset, data, count) is asked for all of its bytes in turn. */
    template <class Read> void put(const at::Tensor &tensor, Read &&read) {
        for (size_t offset = 0; offset < tensor.nbytes();) {
            at::Tensor part = part_at(tensor, offset), place = place_of(part);
            read(offset, place.mutable_data_ptr(), place.nbytes());
            if (!place.is_same(part)) part.copy_(place);
            offset += place.nbytes();
        }
    }

    /* For bytes that belong to no tensor yet. */
    static constexpr size_t piece_bytes = size_t{4} << 20;
    char *buffer();

private:
    /* The elements from offset on that are read or written at once; a view. */
    static at::Tensor part_at(const at::Tensor &tensor, size_t offset);

    /* The part itself where its bytes lie in order in the host's memory; else the buffer in its shape. */
    at::Tensor place_of(const at::Tensor &part);

    std::vector<char> buffer_;
};

/*
 * A tensor in plain memory of the host's, outside of the budget as well. No strides: row-major. Throws
 * std::bad_alloc.
 */
at::Tensor host_tensor(c10::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides = {});

} // namespace memtrain::shim
#endif
