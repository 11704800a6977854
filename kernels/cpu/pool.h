// Threads of the library, and the floating-point mode that every one of them computes in.
#pragma once

#include <cstdint>

namespace detharness {

// IEEE arithmetic for as long as it lives: round to nearest even, subnormals kept. The caller may have asked its
// framework to flush them; pool threads would not know, and a thread must not be able to change a bit.
class FloatMode {
  public:
    FloatMode();
    ~FloatMode();
    FloatMode(const FloatMode&) = delete;
    FloatMode& operator=(const FloatMode&) = delete;

  private:
    uint64_t saved_;
};

// A buffer of the calling thread, 64-byte aligned, grown to `bytes` and kept for its next call. `slot` below 4.
void* scratch(int slot, int64_t bytes);

// Calls run(context, i) once for each i below `tasks`, on up to `threads` threads, the caller among them. Tasks must
// be independent: which thread runs which, and when, is open. A nested or concurrent call runs on its caller alone.
void run_tasks(int64_t tasks, int64_t threads, void (*run)(void*, int64_t), void* context);

template <class F>
void parallel(int64_t tasks, int64_t threads, F body) {
    run_tasks(
        tasks, threads, [](void* context, int64_t index) { (*static_cast<F*>(context))(index); }, &body);
}

}  // namespace detharness
