/*
 * memtrain/status.h - version, status codes, error text, log, host memory.
 *
 * Every function of libmemtrain that can fail returns an mt_status. Results go out by pointer. A
 * failure leaves one line of text for the calling thread: mt_last_error(). The library never
 * prints, exits or aborts.
 *
 * Words used in all headers:
 *
 *     new reference   the caller owns it, and gives it back with the function that is named
 *     borrowed        valid until the moment that is named; the caller must never free it
 *     stale           freed; functions return MT_EINVAL and do not crash, unless a newer handle of
 *                     the same kind has taken the address
 *     thread rule     "any thread": may be called at any time from any thread;
 *                     "one thread at a time": the caller does the locking
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

/* The version of the library that is loaded, as text: "0.1.0". Static. Any thread. */
MT_API const char *mt_version_string(void);

/*
 * All status codes: name, value, text. Zero is success. Values are never reused.
 *
 * MT_EDEVMEM is the one status that means "did not fit": the budget or the device refused a request
 * for memory, and the step was rolled back. No other status is about memory of the device.
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
        MT_STATUS_END_ = 1 /* not a status: ends the list without a comma (C++98) */
} mt_status;

/*
 * The name of a status: "MT_EDEVMEM". "MT_?" for a number that is not a status. Static. Any thread.
 */
MT_API const char *mt_status_name(mt_status status);

/* One phrase for a status, as in MT_STATUS_MAP. Static. Any thread. */
MT_API const char *mt_status_text(mt_status status);

/*
 * Says what failed last on the calling thread. It is one line of at most 511 bytes, which names the
 * argument or the cause. "" when nothing has failed yet.
 *
 * The line is borrowed until the next call on this thread that fails, or that runs a model or a
 * backend. Reporting allocates nothing. Any thread.
 */
MT_API const char *mt_last_error(void);

/*
 * Sets the error line of the calling thread (printf format), and returns status. So a backend or a
 * callback can end with `return mt_set_error(MT_EIO, "cannot read '%s'", path);`. It allocates
 * nothing. Longer text is cut at 511 bytes. Any thread.
 */
MT_API mt_status mt_set_error(mt_status status, const char *format, ...) MT_PRINTF(2, 3);

/* ---- log ------------------------------------------------------------------------------------ */

/* How important a line of the log is. */
typedef enum mt_log_level { MT_LOG_DEBUG = 0, MT_LOG_INFO = 1, MT_LOG_WARNING = 2 } mt_log_level;

/*
 * Receives one line of the log, without a newline. text is borrowed for the call. In C++ it must
 * not throw, because an exception would leave a step half done. If it throws, the program ends by
 * std::terminate, as at a noexcept function.
 */
typedef void (*mt_log_fn)(void *user, mt_log_level level, const char *text);

/*
 * Sets where warnings and notes go. The library itself never writes to a stream. Call it before
 * other threads use the library.
 *
 * @param fn  NULL, as at the start: lines are dropped
 */
MT_API void mt_set_log(mt_log_fn fn, void *user);

/* Writes one line to the log (printf format), cut at 511 bytes. Any thread. */
MT_API void mt_log(mt_log_level level, const char *format, ...) MT_PRINTF(2, 3);

/* ---- host memory of the library itself ------------------------------------------------------- */

/*
 * Replaces malloc, realloc and free for the small objects of libmemtrain. Tensors do not use them.
 * Call it before any other function. Give all three or none. All NULL restores those of the C
 * library.
 *
 * @return MT_ESTATE once something has been allocated
 */
MT_API MT_NODISCARD mt_status mt_set_allocator(void *(*malloc_fn)(size_t),
                                               void *(*realloc_fn)(void *, size_t),
                                               void (*free_fn)(void *));

/* ---- sizes ---------------------------------------------------------------------------------- */

/*
 * Reads a size as people write it: "600MiB", "8GB", "1.5G", "4096", or a fraction of a whole,
 * "0.95" or "80%".
 *
 * KB, MB, GB and TB are powers of 1000. KiB, MiB, GiB and TiB are powers of 1024, and so are the
 * bare letters K, M, G and T. Case and blanks before the unit do not matter. A number of 1 or more
 * without a unit is bytes. A number between 0 and 1 without a unit is a fraction. A percentage goes
 * up to 100%. So "1.0" is one byte, and "100%" is the whole. Any thread.
 *
 * @param text       the text; blanks around it are ignored
 * @param whole      what a fraction is a fraction of, in bytes; 0: fractions are not accepted
 * @param out_bytes  the size in bytes
 * @return MT_OK, or MT_EINVAL with a line that says what is accepted
 */
MT_API MT_NODISCARD mt_status mt_parse_size(const char *text, size_t whole, size_t *out_bytes);

/*
 * Writes bytes as people read them, "597.3 MiB". The text is cut if it is longer than capacity. Any
 * thread.
 *
 * @return text
 */
MT_API const char *mt_format_size(size_t bytes, char *text, size_t capacity);

/*
 * The memory that the host has for this process, in bytes. SIZE_MAX: there is no limit, or no
 * figure.
 */
typedef struct mt_host_memory {
    size_t size;               /* sizeof(mt_host_memory), set by the caller */
    size_t total_bytes;        /* physical memory */
    size_t available_bytes;    /* MemAvailable: what can be used without swapping */
    size_t cgroup_limit_bytes; /* least limit of the control group and its visible ancestors */
    size_t cgroup_room_bytes;  /* least of limit - use. Clean file pages count as free */
    /*
     * The default budget: 0.9 x the lesser of available_bytes and cgroup_room_bytes. Under memory
     * pressure it is 0.75 x. It is at least 1, because a budget of 0 would mean that there is none.
     */
    size_t budget_bytes;
    /*
     * Share of the last 10 seconds in which some task waited for memory, 0 to 1. It is the worst of
     * the system and the control groups. 0: not known.
     */
    double pressure;
    int pressed; /* 1: pressure is at least a tenth, and budget_bytes is lower for it */
    /*
     * The highest use of the control group with the least room since the group was made. Page cache
     * and other processes are included. 0: not known.
     */
    size_t cgroup_peak_bytes;
} mt_host_memory;

#define MT_HOST_MEMORY_INIT                                                                        \
    { sizeof(mt_host_memory), 0, 0, 0, 0, 0, 0.0, 0, 0 }

/*
 * Reads the memory of the host.
 *
 * On Linux it reads /proc/meminfo and the control groups. For v2 these are memory.max and
 * memory.high of the group and of each ancestor. For v1 it is memory.limit_in_bytes, which excludes
 * what is outside the namespace. Peaks are memory.peak, from Linux 5.19 on, and
 * memory.max_usage_in_bytes. Pressure is PSI's "some avg10" (Documentation/accounting/psi.rst).
 * From a tenth on, the default budget leaves more to others. On macOS it reads hw.memsize, and the
 * free, inactive and purgeable pages. Any thread.
 *
 * @param root  prefix of the files that are read, so that a test can give its own tree; NULL: "/"
 * @return MT_OK; MT_EIO when not even the physical memory is known
 */
MT_API MT_NODISCARD mt_status mt_host_memory_read(const char *root, mt_host_memory *out);

#ifdef __cplusplus
}
#endif
#endif
