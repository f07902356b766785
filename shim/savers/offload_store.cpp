/* offload_store.cpp - the three places: bf16 on the device, the host's memory, a file. */
#include "offload_store.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <ATen/ops/from_blob.h>

#include "cpu_memory.hpp"
#include "dry.hpp"
#include "guard.hpp"
#include "offload_lane.hpp"

namespace memtrain::shim {
namespace {

constexpr size_t most_at_once = size_t{1} << 30; /* some systems write no more than 2 GiB */

/* Bytes of the host beside the budget. */
class HostBytes {
public:
    explicit HostBytes(size_t bytes) : data_(cpu::take_beside(bytes)) {}
    ~HostBytes() { std::free(data_); }
    HostBytes(const HostBytes &) = delete;
    HostBytes &operator=(const HostBytes &) = delete;

    /* As a tensor of the shape of another one, without gaps, and with its strides if it has none. */
    at::Tensor like(const at::Tensor &other) const {
        at::TensorOptions options = at::device(at::kCPU).dtype(other.scalar_type());
        if (!other.is_non_overlapping_and_dense())
            return at::from_blob(data_, other.sizes(), options);
        return at::from_blob(data_, other.sizes(), other.strides(), options);
    }
    void *data() const { return data_; }

private:
    void *data_;
};

/* ---- the host's memory ---- */

class OnHost final : public Stored {
public:
    explicit OnHost(const at::Tensor &tensor) : bytes_(tensor.nbytes()) {
        bytes_.like(tensor).copy_(tensor);
    }
    void read(const at::Tensor &to) override { to.copy_(bytes_.like(to)); }

private:
    HostBytes bytes_;
};

class HostStore final : public Store {
public:
    bool takes(c10::ScalarType dtype) const override { return c10::isFloatingType(dtype); }
    std::unique_ptr<Stored> keep(const at::Tensor &tensor) override {
        bool is_dense = tensor.is_non_overlapping_and_dense();
        std::shared_ptr<Lane> lane = is_dense ? lane_of(tensor.device()) : nullptr;
        if (lane) return lane->send(tensor);
        return std::make_unique<OnHost>(tensor);
    }

private:
    /* That of the first device that is asked for; NULL for others. */
    std::shared_ptr<Lane> lane_of(const c10::Device &device) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!is_open_ && !device.is_cpu()) lane_ = Lane::open(device);
        is_open_ |= !device.is_cpu();
        return lane_ && lane_->device() == device ? lane_ : nullptr;
    }

    std::mutex mutex_;
    bool is_open_ = false; /* or was not to be opened */
    std::shared_ptr<Lane> lane_;
};

/* ---- bf16 ---- */

class AsBfloat16 final : public Stored {
public:
    explicit AsBfloat16(const at::Tensor &tensor) : packed_(tensor.to(at::kBFloat16)) {}
    void read(const at::Tensor &to) override { to.copy_(packed_); }

private:
    at::Tensor packed_;
};

/* Half precision gains nothing, and doubles may lie outside of bf16's range. */
class PackStore final : public Store {
public:
    bool takes(c10::ScalarType dtype) const override { return dtype == at::kFloat; }
    std::unique_ptr<Stored> keep(const at::Tensor &tensor) override {
        return std::make_unique<AsBfloat16>(tensor);
    }
    size_t bytes_of(const at::Tensor &tensor) const override {
        return static_cast<size_t>(tensor.numel()) * sizeof(at::BFloat16);
    }
};

/* ---- a file ---- */

/* A file without a name, and what of it is in use. */
class Spool {
public:
    Spool(const char *function, const char *folder);
    ~Spool() { close(file_); }
    Spool(const Spool &) = delete;
    Spool &operator=(const Spool &) = delete;

    /* Graphs release the last first, so the end of what is in use goes up and down with it. */
    uint64_t take(size_t bytes) {
        std::lock_guard<std::mutex> lock(mutex_);
        uint64_t offset = in_use_.empty() ? 0 : in_use_.rbegin()->first + in_use_.rbegin()->second;
        in_use_.emplace(offset, bytes);
        return offset;
    }
    void give_back(uint64_t offset) noexcept {
        std::lock_guard<std::mutex> lock(mutex_);
        in_use_.erase(offset);
    }
    void write(const void *data, size_t bytes, uint64_t offset) const;
    void read(void *data, size_t bytes, uint64_t offset) const;

private:
    [[noreturn]] void refuse(const char *verb, size_t bytes, const char *reason) const;

    std::string folder_;
    int file_ = -1;
    std::mutex mutex_;
    std::map<uint64_t, size_t> in_use_; /* bytes by offset */
};

const char *folder_or_default(const char *folder) {
    const char *temporary = folder && *folder ? folder : std::getenv("TMPDIR");
    return temporary && *temporary ? temporary : "/tmp";
}

Spool::Spool(const char *function, const char *folder) : folder_(folder_or_default(folder)) {
    std::string path = folder_ + "/memtrain-XXXXXX";
    file_ = mkostemp(path.data(), O_CLOEXEC);
    if (file_ < 0)
        fail(MT_EIO, "%s: cannot make a file in '%s': %s", function, folder_.c_str(),
             std::strerror(errno));
    (void)unlink(path.c_str());
}

void Spool::refuse(const char *verb, size_t bytes, const char *reason) const {
    char size[32];
    fail(MT_EIO, "offload: cannot %s %s of a file in '%s': %s", verb,
         mt_format_size(bytes, size, sizeof size), folder_.c_str(), reason);
}

void Spool::write(const void *data, size_t bytes, uint64_t offset) const {
    for (size_t done = 0; done < bytes && !is_dry;) {
        ssize_t count =
            pwrite(file_, static_cast<const char *>(data) + done,
                   std::min(bytes - done, most_at_once), static_cast<off_t>(offset + done));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) refuse("write", bytes, std::strerror(count ? errno : ENOSPC));
        done += static_cast<size_t>(count);
    }
}

void Spool::read(void *data, size_t bytes, uint64_t offset) const {
    for (size_t done = 0; done < bytes && !is_dry;) {
        ssize_t count =
            pread(file_, static_cast<char *>(data) + done, std::min(bytes - done, most_at_once),
                  static_cast<off_t>(offset + done));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) refuse("read", bytes, count ? std::strerror(errno) : "it is too short");
        done += static_cast<size_t>(count);
    }
}

/* Room in the file as long as the object lives. */
class Extent {
public:
    Extent(std::shared_ptr<Spool> spool, size_t bytes)
        : spool_(std::move(spool)), offset_(spool_->take(bytes)) {}
    ~Extent() { spool_->give_back(offset_); }
    Extent(const Extent &) = delete;
    Extent &operator=(const Extent &) = delete;

    const Spool &spool() const { return *spool_; }
    uint64_t offset() const { return offset_; }

private:
    std::shared_ptr<Spool> spool_;
    uint64_t offset_;
};

/* Whether a file can take the bytes of a tensor from where they lie. */
bool is_one_piece(const at::Tensor &tensor) {
    return tensor.is_cpu() && tensor.is_non_overlapping_and_dense();
}

class InFile final : public Stored {
public:
    InFile(std::shared_ptr<Spool> spool, const at::Tensor &tensor)
        : extent_(std::move(spool), tensor.nbytes()) {
        if (is_one_piece(tensor)) {
            write(tensor.const_data_ptr(), tensor.nbytes());
        } else {
            HostBytes bytes(tensor.nbytes());
            bytes.like(tensor).copy_(tensor);
            write(bytes.data(), tensor.nbytes());
        }
    }
    void read(const at::Tensor &to) override {
        const Spool &spool = extent_.spool();
        if (is_one_piece(to)) return spool.read(to.data_ptr(), to.nbytes(), extent_.offset());
        HostBytes bytes(to.nbytes());
        spool.read(bytes.data(), to.nbytes(), extent_.offset());
        to.copy_(bytes.like(to));
    }

private:
    void write(const void *data, size_t bytes) const {
        extent_.spool().write(data, bytes, extent_.offset());
    }
    Extent extent_;
};

class FileStore final : public Store {
public:
    FileStore(const char *function, const char *folder)
        : spool_(std::make_shared<Spool>(function, folder)) {}
    bool takes(c10::ScalarType dtype) const override { return c10::isFloatingType(dtype); }
    std::unique_ptr<Stored> keep(const at::Tensor &tensor) override {
        return std::make_unique<InFile>(spool_, tensor);
    }

private:
    std::shared_ptr<Spool> spool_;
};

} // namespace

size_t Store::bytes_of(const at::Tensor &tensor) const {
    return tensor.nbytes();
}

std::unique_ptr<Store> make_store(const char *function, int kind, const char *folder) {
    if (kind == MT_OFFLOAD_FILE) return std::make_unique<FileStore>(function, folder);
    if (kind == MT_OFFLOAD_PACK) return std::make_unique<PackStore>();
    return std::make_unique<HostStore>();
}

} // namespace memtrain::shim
