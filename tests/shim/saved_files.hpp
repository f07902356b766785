/* saved_files.hpp - a folder for one file that is saved, and what is saved there. */
#ifndef SAVED_FILES_HPP
#define SAVED_FILES_HPP

#include <cstdio>
#include <string>
#include <unistd.h>

#include "check_shim.hpp"

namespace check_shim {

inline std::string folder, path, previous, temporary;

inline void make_folder() {
    char name[] = "/tmp/check_checkpoint.XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(name));
    folder = name;
    path = folder + "/c";
    previous = path + ".1";
    temporary = path + ".memtrain-tmp";
}

inline void remove_folder() {
    for (const std::string &name : {path, previous, temporary}) std::remove(name.c_str());
    ck_assert_int_eq(rmdir(folder.c_str()), 0);
}

inline bool is_there(const std::string &name) {
    return access(name.c_str(), F_OK) == 0;
}

/* Plain SGD, SGD with momentum, Adam, AdamW; a learning rate that no default is. */
inline mt_torch_options options_number(int i) {
    mt_torch_options options = options_of(i < 2 ? MT_SGD : i == 2 ? MT_ADAM : MT_ADAMW, 0.7);
    options.momentum = i == 0 ? 0.0 : 0.9;
    return options;
}

/* Steps on other batches each, in chunks. */
inline void train(const Trainer &trainer, int first, int count) {
    for (int i = first; i < first + count; i++) {
        Batch batch(8 + static_cast<size_t>(i));
        ck_ok(step(trainer, batch, {3, 5 + static_cast<size_t>(i)}));
    }
}

inline mt_status save(const Trainer &trainer, const char *extra = nullptr) {
    mt_torch_save_options options = MT_TORCH_SAVE_OPTIONS_INIT;
    options.extra = extra;
    return mt_torch_save(trainer.torch, path.c_str(), &options);
}

} // namespace check_shim
#endif
