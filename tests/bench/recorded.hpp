/*
 * recorded.hpp - single chunks behind the seam, run and taken back, and what two small ones tell of large
 * ones.
 */
#ifndef BENCH_RECORDED_HPP
#define BENCH_RECORDED_HPP

#include "bench.hpp"

namespace bench {

/* Runs one chunk and takes it back; returns its peak above the start. recording: NULL: none. */
inline size_t run_chunk(const mt_backend &b, const mt_batch &batch, size_t count,
                        mt_recording *recording) {
    mt_memory memory = {};
    mt_chunk_result result = {};
    memory.size = sizeof memory;
    result.size = sizeof result;
    must(b.begin(b.self, &batch), "begin");
    must(b.memory(b.self, &memory), "memory");
    if (recording) {
        mt_event_sink sink = {recording, [](void *user, void *address, int64_t bytes) {
                                  mt_recording_event(static_cast<mt_recording *>(user), address,
                                                     bytes);
                              }};
        must(mt_recording_start(recording, count), "recording");
        must(b.record(b.self, &sink), "record");
    }
    must(b.accumulate(b.self, 0, count, 1.0, &result), "accumulate");
    if (recording) must(b.record(b.self, nullptr), "record");
    must(b.rollback(b.self), "rollback");
    return result.peak_bytes - memory.allocated_bytes;
}

/* From chunks of so many samples of the batch and twice as many; new reference. */
inline mt_memory_model *learn(const mt_backend &b, const mt_batch &batch, size_t count = 2) {
    mt_recording *small = nullptr, *large = nullptr;
    mt_memory_model *model = nullptr;
    must(mt_recording_new(&small), "recording");
    must(mt_recording_new(&large), "recording");
    run_chunk(b, batch, count, small);
    run_chunk(b, batch, 2 * count, large);
    must(mt_memory_model_new(small, large, &model), "model");
    mt_recording_free(small);
    mt_recording_free(large);
    return model;
}

} // namespace bench
#endif
