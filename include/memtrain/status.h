/*
 * memtrain/status.h - version, status codes, error text, log, host memory.
 *
 * Every fallible function of libmemtrain returns an mt_status; results go out by pointer. A failure
 * leaves one line of text for the calling thread: mt_last_error(). The library never prints, exits
 * or aborts.
 *
 * Words used in all headers:
 *   new reference   the caller owns it and gives it back with the function named;
 *   borrowed        valid until the moment named, never to be freed by the caller;
 *   stale           freed: functions answer MT_EINVAL, not with a crash, unless a newer handle of the
 *                   same kind has taken the address;
 *   thread rule     "any thread" may be called at any time from anywhere; "one thread at a time"
 *                   leaves the locking to the caller.
 */
#ifndef MEMTRAIN_STATUS_H
#define MEMTRAIN_STATUS_H

#include <stddef.h>
#include <stdint.h>

#define MT_VERSION_MAJOR 0
#define MT_VERSION_MINOR 1
#define MT_VERSION_PATCH 0
#define MT_VERSION_STRING "0.1.0"
#define MT_VERSION_NUMBER (MT_VERSION_MAJOR * 10000 + MT_VERSION_MINOR * 100 + MT_VERSION_PATCH)

#if defined(__GNUC__) || defined(__clang__)
#define MT_API __attribute__((visibility("default")))
#define MT_NODISCARD __attribute__((warn_unused_result))
#define MT_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define MT_API
#define MT_NODISCARD
#define MT_PRINTF(text, first)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library that is loaded, to compare with MT_VERSION_NUMBER. Any thread. */
MT_API int mt_version_number(void);

/* The same as text, "0.1.0". Static. Any thread. */
MT_API const char *mt_version_string(void);

/*
 * All status codes: name, value, text. Zero is success; values are never reused.
 *
 * MT_EDEVMEM is the one status that means "did not fit": the budget or the device refused a
 * request for memory and the step was taken back. Everything else is not a matter of memory.
 */
#define MT_STATUS_MAP(XX)                                                                          \
    XX(OK, 0, "success")                                                                           \
    XX(EINVAL, -1, "invalid argument")                                                             \
    XX(ENOMEM, -2, "out of host memory")                                                           \
    XX(EDEVMEM, -3, "does not fit into the memory budget of the device")                           \
    XX(ESTATE, -4, "not possible in this state")                                                   \
    XX(EUSER, -5, "stopped by a callback")                                                         \
    XX(EIO, -6, "input or output failed")                                                          \
    XX(ETORCH, -7, "libtorch reported an error")                                                   \
    XX(ENOTSUP, -8, "not supported by this device, backend or version")                            \
    XX(EPEER, -9, "another process could not do its part")

typedef enum mt_status {
#define MT_STATUS_ENUM(name, value, text) MT_##name = value,
    MT_STATUS_MAP(MT_STATUS_ENUM)
#undef MT_STATUS_ENUM
        MT_STATUS_END_ = 1 /* not a status; ends the list without a trailing comma (C++98) */
} mt_status;

/* "MT_EDEVMEM", or "MT_?" for a number that is no status. Static. Any thread. */
MT_API const char *mt_status_name(mt_status status);

/* One phrase for the status, as in MT_STATUS_MAP. Static. Any thread. */
MT_API const char *mt_status_text(mt_status status);

/*
 * What failed last on the calling thread, one line of at most 511 bytes that names the argument or
 * the cause; "" when nothing has failed yet. Borrowed until the next call on this thread that fails, or
 * runs a model or a backend.
 * Reporting allocates nothing. Any thread.
 */
MT_API const char *mt_last_error(void);

/*
 * Sets the error line of the calling thread (printf format) and returns status, so that a backend
 * or a callback can end with `return mt_set_error(MT_EIO, "cannot read '%s'", path);`. Allocates
 * nothing; longer text is cut. Any thread.
 */
MT_API mt_status mt_set_error(mt_status status, const char *format, ...) MT_PRINTF(2, 3);

/* ---- log ------------------------------------------------------------------------------------ */

typedef enum mt_log_level { MT_LOG_DEBUG = 0, MT_LOG_INFO = 1, MT_LOG_WARNING = 2 } mt_log_level;

/*
 * Receives one line without a newline; text is borrowed for the call. In C++ it must not throw: the program then ends by
 * std::terminate, as at a noexcept function, since an exception would leave a step half done.
 */
typedef void (*mt_log_fn)(void *user, mt_log_level level, const char *text);

/*
 * Where warnings and notes go; fn NULL (the state at start) drops them. The library itself never
 * writes to a stream. Set it before other threads use the library.
 */
MT_API void mt_set_log(mt_log_fn fn, void *user);

/* Writes one line to the log (printf format), cut at 511 bytes. Any thread. */
MT_API void mt_log(mt_log_level level, const char *format, ...) MT_PRINTF(2, 3);

/* ---- host memory of the library itself ------------------------------------------------------- */

/*
 * Replaces malloc, realloc and free for the small objects of libmemtrain (not for tensors). To be
 * called before any other function; MT_ESTATE once something has been allocated. All three or none
 * (all NULL brings the C library's back).
 */
MT_API MT_NODISCARD mt_status mt_set_allocator(void *(*malloc_fn)(size_t),
                                               void *(*realloc_fn)(void *, size_t),
                                               void (*free_fn)(void *));

/* ---- sizes ---------------------------------------------------------------------------------- */

/*
 * Reads a size as people write it: "600MiB", "8GB", "1.5G", "4096", or a fraction of what is there,
 * "0.95" (0 < x < 1, no unit) or "80%" (up to 100%). Case and blanks before the unit do not matter.
 * KB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB and the bare letters K, M, G, T powers of
 * 1024. A number of 1 or more without a unit is bytes: "1.0" is one byte, "100%" the whole.
 *
 * @param text      the text; blanks around it are ignored
 * @param whole     what a fraction is a fraction of, in bytes; 0 when fractions are not accepted
 * @param out_bytes the size in bytes
 * @return MT_OK, or MT_EINVAL with a line that says what is accepted. Any thread.
 */
MT_API MT_NODISCARD mt_status mt_parse_size(const char *text, size_t whole, size_t *out_bytes);

/*
 * Writes bytes as people read them, "597.3 MiB", into text[capacity], cut where it is too small, and
 * returns text. Any thread.
 */
MT_API const char *mt_format_size(size_t bytes, char *text, size_t capacity);

/*
 * What the host has for this process, in bytes; SIZE_MAX where there is no limit or no figure.
 */
typedef struct mt_host_memory {
    size_t size;               /* sizeof(mt_host_memory), set by the caller */
    size_t total_bytes;        /* physical memory */
    size_t available_bytes;    /* MemAvailable: what can be used without swapping */
    size_t cgroup_limit_bytes; /* least limit of the control group and its visible ancestors */
    size_t cgroup_room_bytes;  /* least of limit - use, clean file pages counted as free */
    size_t budget_bytes;       /* 0.9 x the least of available and cgroup room: the default;
                                  0.75 x under pressure; at least 1, since a budget of 0 is none */
    double pressure;           /* share of the last 10 seconds in which some task waited for memory,
                                  0 to 1, the worst of system and control groups; 0: not known */
    int pressed;               /* 1: pressure is from a tenth on, and budget_bytes says so */
    size_t cgroup_peak_bytes; /* highest use of the group with the least room since it was made, its
                                  page cache and other processes included; 0: not known */
} mt_host_memory;

#define MT_HOST_MEMORY_INIT                                                                        \
    { sizeof(mt_host_memory), 0, 0, 0, 0, 0, 0.0, 0, 0 }

/*
 * Reads /proc/meminfo and the control groups (v2: memory.max and memory.high of the group and each
 * ancestor; v1: memory.limit_in_bytes, which excludes what is outside the namespace; peaks are memory.peak,
 * from Linux 5.19 on, and memory.max_usage_in_bytes). On macOS
 * hw.memsize and the free, inactive and purgeable pages. Pressure is PSI's "some avg10"
 * (Documentation/accounting/psi.rst); from a tenth on, the default budget leaves more to others.
 *
 * @param root  prefix for the files that are read, NULL for "/": lets a test give a tree of its own
 * @return MT_OK; MT_EIO when not even the physical memory can be told. Any thread.
 */
MT_API MT_NODISCARD mt_status mt_host_memory_read(const char *root, mt_host_memory *out);

#ifdef __cplusplus
}
#endif
#endif
