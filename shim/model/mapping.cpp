/* mapping.cpp - mapped files, tensors that are views of them, and what the system is told of their pages. */
#include "mapping.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device_memory.hpp"
#include "guard.hpp"

namespace memtrain::shim {
namespace {

/* Linux reads no more than its window for one request, which is 128 KiB unless someone has set it. */
constexpr uint64_t ahead_bytes = uint64_t{128} << 10;

uint64_t page_bytes() {
    return static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void delete_view(void *view) {
    delete static_cast<MappedView *>(view);
}

} // namespace

/* ---- a file ---- */

MappedFile::MappedFile(const char *function, const char *path, int descriptor)
    : function_(function), path_(path) {
    descriptor_ = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (descriptor_ < 0)
        fail(MT_EIO, "%s: cannot map '%.200s': %s", function, path, std::strerror(errno));
    try {
        mapped_ = stamp();
        void *begin = mmap(nullptr, mapped_.bytes, PROT_READ, MAP_SHARED, descriptor_, 0);
        if (begin == MAP_FAILED)
            fail(MT_EIO, "%s: cannot map '%.200s': %s", function, path, std::strerror(errno));
        begin_ = static_cast<char *>(begin);
        range_ = std::make_unique<WatchedRange>(begin_, mapped_.bytes);
    } catch (...) {
        if (begin_) munmap(begin_, mapped_.bytes);
        close(descriptor_);
        throw;
    }
}

MappedFile::~MappedFile() {
    range_.reset();
    munmap(begin_, mapped_.bytes);
    close(descriptor_);
}

MappedFile::Stamp MappedFile::stamp() const {
    struct stat info;
    if (fstat(descriptor_, &info) != 0)
        fail(MT_EIO, "%s: cannot look at '%.200s': %s", function_, path_.c_str(),
             std::strerror(errno));
#ifdef __APPLE__
    const struct timespec &time = info.st_mtimespec;
#else
    const struct timespec &time = info.st_mtim;
#endif
    return {static_cast<uint64_t>(info.st_size), time.tv_sec, time.tv_nsec};
}

void MappedFile::check() const {
    Stamp now = stamp();
    if (now.bytes != mapped_.bytes)
        fail(MT_EIO,
             "the mapped file '%.200s' has changed: it had %llu bytes and has %llu; the model has "
             "to be made and mapped anew",
             path_.c_str(), static_cast<unsigned long long>(mapped_.bytes),
             static_cast<unsigned long long>(now.bytes));
    if (now.seconds != mapped_.seconds || now.nanoseconds != mapped_.nanoseconds)
        fail(MT_EIO,
             "the mapped file '%.200s' has changed: it was written to since it was mapped; the "
             "model has to be made and mapped anew",
             path_.c_str());
    if (range_->failed())
        fail(MT_EIO,
             "the mapped file '%.200s' could not be read: it was cut off for a while, or the disk "
             "has failed; the model has to be made and mapped anew",
             path_.c_str());
}

/* Whole pages around the bytes. What is said of a page too many costs nothing but its reading. */
void MappedFile::read_ahead(uint64_t offset, uint64_t bytes) const noexcept {
    const uint64_t end = std::min(offset + bytes, mapped_.bytes);
    for (uint64_t at = offset / page_bytes() * page_bytes(); at < end; at += ahead_bytes)
        (void)madvise(begin_ + at, std::min(ahead_bytes, end - at), MADV_WILLNEED);
}

void MappedFile::give_back(uint64_t offset, uint64_t bytes, bool drop) const noexcept {
    const uint64_t begin = offset / page_bytes() * page_bytes();
    const uint64_t length = std::min(offset + bytes, mapped_.bytes) - begin;
    (void)madvise(begin_ + begin, length, MADV_DONTNEED);
#ifdef POSIX_FADV_DONTNEED
    if (drop)
        (void)posix_fadvise(descriptor_, static_cast<off_t>(begin), static_cast<off_t>(length),
                            POSIX_FADV_DONTNEED);
#else
    (void)drop;
#endif
}

/* ---- a tensor ---- */

at::Tensor tensor_of(std::unique_ptr<MappedView> view, c10::ScalarType dtype,
                     at::IntArrayRef sizes) {
    void *data = const_cast<char *>(view->file->at(view->offset));
    return at::for_blob(data, sizes)
        .context(view.release(), delete_view)
        .options(at::device(c10::kCPU).dtype(dtype))
        .make_tensor();
}

const MappedView *mapped_view(const at::Tensor &tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return nullptr;
    const c10::DataPtr &data = tensor.storage().data_ptr();
    if (data.get_deleter() != &delete_view) return nullptr;
    return static_cast<const MappedView *>(data.get_context());
}

std::vector<Named> without_mapped(std::vector<Named> list) {
    auto is_mapped = [](const Named &named) { return mapped_view(named.tensor) != nullptr; };
    list.erase(std::remove_if(list.begin(), list.end(), is_mapped), list.end());
    return list;
}

/* ---- a model's ---- */

void Mapping::add_file(std::shared_ptr<MappedFile> file, uint64_t tensor_bytes, bool drop) {
    files_.push_back(std::move(file));
    blocks_.clear(); /* parameters may have other views now */
    next_.clear();
    last_ = {nullptr, nullptr};
    stats_.files++;
    stats_.mapped_bytes += tensor_bytes;
    if (drop) stats_.drops = 1;
}

void Mapping::add_tensors(size_t mapped, uint64_t loaded_bytes) {
    stats_.tensors += mapped;
    stats_.loaded_bytes += loaded_bytes;
}

void Mapping::check() const {
    for (const auto &file : files_) file->check();
}

/* Those that lie side by side in a file as one. */
Mapping::Ranges Mapping::ranges_of(const std::vector<const MappedView *> &views) {
    std::vector<const MappedView *> sorted = views;
    std::sort(sorted.begin(), sorted.end(), [](const MappedView *a, const MappedView *b) {
        return std::pair(a->file.get(), a->offset) < std::pair(b->file.get(), b->offset);
    });
    Ranges ranges;
    for (const MappedView *view : sorted) {
        Range *before = ranges.empty() ? nullptr : &ranges.back();
        if (before && before->file == view->file &&
            before->offset + before->bytes + page_bytes() >= view->offset)
            before->bytes = std::max(before->bytes, view->offset + view->bytes - before->offset);
        else
            ranges.push_back({view->file, view->offset, view->bytes});
    }
    return ranges;
}

void Mapping::begin(const std::vector<const MappedView *> &views) {
    if (views.empty()) return;
    Ranges &ranges = blocks_[views[0]];
    if (ranges.empty()) ranges = ranges_of(views);
    const MappedFile *checked = nullptr;
    for (const Range &range : ranges) {
        if (range.file.get() != checked) range.file->check();
        checked = range.file.get();
    }
    next_[last_] = views[0];
    last_ = {last_.second, views[0]};
    stats_.blocks++;
    if (!first_) first_ = views[0];
    if (stats_.drops && views[0] == first_) (void)empty_device_cache(c10::Device(c10::kCPU));
    auto next = next_.find(last_);
    if (next == next_.end() || next->second == views[0]) return;
    for (const Range &range : blocks_[next->second]) {
        range.file->read_ahead(range.offset, range.bytes);
        stats_.read_ahead_bytes += range.bytes;
    }
}

void Mapping::end(const std::vector<const MappedView *> &views) {
    if (views.empty()) return;
    for (const Range &range : blocks_[views[0]]) {
        range.file->give_back(range.offset, range.bytes, stats_.drops != 0);
        stats_.given_back_bytes += range.bytes;
    }
}

void Mapping::note_casts(uint64_t bytes) {
    stats_.most_cast_bytes = std::max(stats_.most_cast_bytes, bytes);
}

} // namespace memtrain::shim
