/*
 * script_file.cpp - TorchScript files: told from files of other kinds, read, and written whole or not at all.
 */
#include "script.hpp"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/csrc/jit/serialization/import.h>

#include <memtrain/torch.h>

#include "guard.hpp"
#include "new_file.h"

namespace memtrain::shim {
namespace {

namespace jit = torch::jit;

constexpr char reading[] = "mt_script_load";
constexpr char writing[] = "mt_script_save";

/* ---- which kind of file ------------------------------------------------------------------------ */

/* What to do instead; each follows "mt_script_load: 'FILE' ". */
constexpr char is_export[] = "is a file of torch.export, which libtorch cannot train (it holds a "
                             "graph for Python); accepted: "
                             "TorchScript, write one with torch.jit.script(net).save(FILE)";
constexpr char is_pickle[] = "is a pickle of Python's torch.save (a state_dict or a whole module), "
                             "which holds no network that "
                             "can run without Python; accepted: TorchScript, write one with "
                             "torch.jit.script(net).save(FILE)";
constexpr char is_safetensors[] =
    "is a safetensors file, which has weights and no network; accepted: TorchScript, write one "
    "with "
    "torch.jit.script(net).save(FILE); its weights can be loaded into that (mt_model_load_weights)";
constexpr char is_other[] =
    "is no TorchScript file; accepted: what torch.jit.script(net).save(FILE) writes in Python";

bool contains(const std::string &text, const char *word) {
    return text.find(word) != std::string::npos;
}

/* The first bytes of the file; the name of the first entry of an archive is in them. */
std::string beginning_of(const char *path, uint64_t *out_size) {
    char bytes[256];
    FILE *file = std::fopen(path, "rbe");
    size_t count = file ? std::fread(bytes, 1, sizeof bytes, file) : 0;
    bool failed = !file || std::ferror(file);
    int error = errno;
    *out_size = 0;
    if (file && std::fseek(file, 0, SEEK_END) == 0)
        *out_size = static_cast<uint64_t>(std::ftell(file));
    if (file) std::fclose(file);
    if (failed) fail(MT_EIO, "%s: '%.200s': %s", reading, path, std::strerror(error));
    return std::string(bytes, count);
}

/* Eight bytes with the length of a JSON header, and that header. */
bool begins_as_safetensors(const std::string &start, uint64_t size) {
    uint64_t length = 0;
    if (start.size() < 9 || start[8] != '{') return false;
    for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(start[i]);
    return length <= size - 8;
}

/* Of a file that is an archive: its kind by the records in it. NULL: TorchScript. */
const char *kind_of_archive(const char *path) {
    caffe2::serialize::PyTorchStreamReader reader{std::string(path)};
    if (reader.hasRecord("archive_format") || reader.hasRecord("models/model.json"))
        return is_export;
    if (reader.hasRecord("constants.pkl")) return nullptr;
    return reader.hasRecord("data.pkl") ? is_pickle : is_other;
}

void check_archive(const char *path, const std::string &start) {
    const char *kind = contains(start, "exported_program") ? is_export : nullptr;
    mt_status status = MT_OK;
    if (!kind) status = guard([&] { kind = kind_of_archive(path); });
    if (status == MT_EDEVMEM) throw Failure(status);
    if (status != MT_OK)
        fail(MT_EINVAL,
             "%s: '%.200s' is an archive that is cut off or damaged, none of PyTorch's, or a newer "
             "one's than %s reads: %.160s",
             reading, path, mt_torch_version(), mt_last_error());
    if (kind) fail(MT_EINVAL, "%s: '%.200s' %s", reading, path, kind);
}

/* libtorch's own words are many lines, and none of them says what to do. */
void check_kind(const char *path) {
    uint64_t size;
    std::string start = beginning_of(path, &size);
    if (start.empty()) fail(MT_EINVAL, "%s: '%.200s' is empty", reading, path);
    if (start.compare(0, 4, "PK\003\004") == 0) return check_archive(path, start);
    const char *kind = is_other;
    if (begins_as_safetensors(start, size)) kind = is_safetensors;
    if (start[0] == '\x80') kind = is_pickle;
    fail(MT_EINVAL, "%s: '%.200s' %s", reading, path, kind);
}

/* ---- a module whose tensors lie alone ----------------------------------------------------------- */

/*
 * Parameters that train lie in one block with each other, and a file has whole blocks. So the modules are
 * copied, with tensors that are the same memory but know of nothing beside it.
 */
class Apart {
public:
    jit::Module copy(const jit::Module &module) { return jit::Module(object(module._ivalue())); }

private:
    using Object = c10::ivalue::Object;

    c10::intrusive_ptr<Object> object(const c10::intrusive_ptr<Object> &original) {
        auto known = objects_.find(original.get());
        if (known != objects_.end()) return known->second;
        c10::intrusive_ptr<Object> copy = original->copy();
        objects_[original.get()] = copy;
        for (size_t i = 0; i < original->type()->numAttributes(); i++) {
            const c10::IValue &slot = original->getSlot(i);
            if (slot.isModule())
                copy->setSlot(i, object(slot.toObject()));
            else if (slot.isTensor() && slot.toTensor().defined())
                copy->setSlot(i, tensor(slot.toTensor()));
            else if (original->type()->getAttributeName(i) == "training")
                copy->setSlot(i, false);
        }
        return copy;
    }
    at::Tensor tensor(const at::Tensor &original) {
        auto known = tensors_.find(original.unsafeGetTensorImpl());
        if (known != tensors_.end()) return known->second;
        at::Tensor here = original.detach();
        if (!here.is_cpu()) here = here.to(at::kCPU);
        if (here.layout() == at::kStrided && !here.is_quantized() && here.numel())
            here = view(here);
        here.set_requires_grad(original.requires_grad());
        tensors_[original.unsafeGetTensorImpl()] = here;
        return here;
    }
    /* Its own storage; what it lies in lives as long as the view. */
    static at::Tensor view(const at::Tensor &t) {
        return at::from_blob(
            t.data_ptr(), t.sizes(), t.strides(), [t](void *) {}, t.options());
    }

    std::map<const Object *, c10::intrusive_ptr<Object>> objects_;
    std::map<const c10::TensorImpl *, at::Tensor> tensors_;
};

/* ---- writing ------------------------------------------------------------------------------------ */

/*
 * libtorch's writer ends its archive in a destructor, where it must not fail: it is told that all is well, and the
 * first error is kept.
 */
class NewFile {
public:
    explicit NewFile(const char *path) { check(mt__new_file_open(&file_, writing, path, 0)); }
    ~NewFile() {
        if (is_open_) (void)!mt__new_file_end(&file_, MT_ETORCH);
    }
    NewFile(const NewFile &) = delete;
    NewFile &operator=(const NewFile &) = delete;

    size_t write(const void *data, size_t bytes) noexcept {
        if (status_ == MT_OK) status_ = mt__new_file_write(&file_, data, bytes);
        return bytes;
    }
    void finish() {
        is_open_ = false;
        check(mt__new_file_end(&file_, status_));
    }

private:
    mt__new_file file_;
    mt_status status_ = MT_OK;
    bool is_open_ = true;
};

} // namespace

torch::jit::Module read_script(const char *path) {
    jit::Module module;
    check_kind(path);
    mt_status status = guard([&] { module = jit::load(path, c10::Device(c10::kCPU)); });
    if (status == MT_ETORCH)
        fail(MT_EINVAL, "%s: '%.200s' cannot be loaded: %s", reading, path, mt_last_error());
    check(status);
    return module;
}

void write_script(const torch::jit::Module &module, const char *path) {
    c10::NoGradGuard no_grad;
    jit::Module copy = Apart().copy(module);
    NewFile file(path);
    jit::ExportModule(copy,
                      [&](const void *data, size_t bytes) { return file.write(data, bytes); });
    file.finish();
}

} // namespace memtrain::shim
