/* arguments.cpp - checks of what callers hand in. */
#include "arguments.hpp"

namespace memtrain::shim {

mt_status check_not_null(const void *pointer, const char *function, const char *argument) {
    if (pointer) return MT_OK;
    return mt_set_error(MT_EINVAL, "%s: %s is NULL", function, argument);
}

mt_status check_handle(const void *handle, int kind, const char *function, const char *argument) {
    MT_RETURN_IF_FAILED(check_not_null(handle, function, argument));
    if (mt__handle_is(handle, kind)) return MT_OK;
    return mt_set_error(MT_EINVAL, "%s: %s is not a live handle", function, argument);
}

mt_status check_sized(const void *sized, const char *function, const char *argument) {
    MT_RETURN_IF_FAILED(check_not_null(sized, function, argument));
    size_t size;
    std::memcpy(&size, sized, sizeof size);
    if (size >= sizeof size) return MT_OK;
    return mt_set_error(MT_EINVAL, "%s: %s->size is not set", function, argument);
}

} // namespace memtrain::shim
