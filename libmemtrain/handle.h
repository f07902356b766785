/*
 * handle.h - a registry of live handles.
 *
 * Public functions must answer a freed handle with MT_EINVAL, not with a crash, so they look the
 * pointer up here before they touch what it points to. Each library carries a copy of its own.
 */
#ifndef MT_HANDLE_H
#define MT_HANDLE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of handles. libmemtrain and libmemtrain_memory use 1 to 15, libmemtrain_torch 16 and up. */
enum {
    MT__KIND_RECORDING = 1,
    MT__KIND_MEMORY_MODEL = 2,
    MT__KIND_POLICY = 3,
    MT__KIND_TRAINER = 4,
    MT__KIND_SIM = 5,
    MT__KIND_SEARCH = 6,
    MT__KIND_SAFETENSORS = 7,
    MT__KIND_REHEARSAL = 8,
    MT__KIND_FORECAST = 9,
    MT__KIND_TENSOR = 16,
    MT__KIND_MODEL = 17,
    MT__KIND_TORCH = 18
};

/* Remembers a handle. Returns 0 when out of host memory. Any thread. */
int mt__handle_add(const void *handle, int kind);

/* Whether the handle is alive and of that kind; 0 for NULL. Any thread. */
int mt__handle_is(const void *handle, int kind);

/* Forgets a handle. Returns whether it was there with that kind. Any thread. */
int mt__handle_remove(const void *handle, int kind);

#ifdef __cplusplus
}
#endif
#endif
