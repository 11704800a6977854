// The library's own threads. A second OpenMP runtime would spin beside torch's, so none is used: workers spin for
// a moment after a job, because the next operator of a step follows within microseconds, then sleep on a futex.
#include "pool.h"

#include <atomic>
#include <climits>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace detharness {

namespace {

uint64_t read_mode() {
#if defined(__x86_64__)
    return _mm_getcsr();
#else
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
#endif
}

void write_mode(uint64_t mode) {
#if defined(__x86_64__)
    _mm_setcsr(static_cast<unsigned>(mode));
#else
    asm volatile("msr fpcr, %0" : : "r"(mode));
#endif
}

#if defined(__x86_64__)
constexpr uint64_t kIeeeMode = 0x1f80;  // All exceptions masked, round to nearest, no flushing.
#else
constexpr uint64_t kIeeeMode = 0;
#endif

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#else
    asm volatile("yield");
#endif
}

constexpr int64_t kSpinNanoseconds = 50000;

int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// The gate is one word: bits 0-15 count the workers inside the job, bit 16 says that it may be entered, bits 17-31
// hold how many workers it wants. A worker that wakes late finds the gate shut and is not waited for.
constexpr uint32_t kOpen = 1u << 16;
constexpr uint32_t kInside = kOpen - 1;
constexpr int kMaxWorkers = 255;

struct Pool {
    std::mutex in_use;
    int workers = 0;
    std::atomic<uint32_t> gate{0};
    std::atomic<uint32_t> bell{0};  // Rung for every job.
    std::atomic<uint32_t> sleepers{0};
    std::atomic<int64_t> next{0};
    int64_t tasks = 0;
    void (*run)(void*, int64_t) = nullptr;
    void* context = nullptr;

    void drain() {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) run(context, i);
    }

    bool enter(uint32_t index) {
        uint32_t seen = gate.load(std::memory_order_acquire);
        while ((seen & kOpen) && index < (seen >> 17))
            if (gate.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) return true;
        return false;
    }

    [[noreturn]] void work(uint32_t index) {
        write_mode(kIeeeMode);
        uint32_t heard = 0;
        for (;;) {
            int64_t deadline = now() + kSpinNanoseconds;
            for (int turn = 1; bell.load(std::memory_order_acquire) == heard; ++turn) {
                relax();
                if (turn % 16 == 0 && now() > deadline) {
                    sleepers.fetch_add(1);
                    while (bell.load() == heard) sleep_while(bell, heard);
                    sleepers.fetch_sub(1);
                }
            }
            heard = bell.load(std::memory_order_acquire);
            if (enter(index)) {
                drain();
                gate.fetch_sub(1, std::memory_order_release);
            }
        }
    }

    void hire(int wanted) {
        while (workers < wanted) {
            uint32_t index = static_cast<uint32_t>(workers);
            try {
                std::thread([this, index] { work(index); }).detach();
            } catch (const std::system_error&) {
                return;  // The system gives no more threads: fewer are slower and change no bit.
            }
            ++workers;
        }
    }
};

// Never destroyed: detached workers use it until the process ends. A forked child starts with a new, empty one.
alignas(64) unsigned char pool_memory[sizeof(Pool)];
Pool* pool = nullptr;
std::once_flag pool_once;

void renew_pool() { pool = new (pool_memory) Pool; }

}  // namespace

FloatMode::FloatMode() : saved_(read_mode()) { write_mode(kIeeeMode); }
FloatMode::~FloatMode() { write_mode(saved_); }

void* scratch(int slot, int64_t bytes) {
    struct Buffer {
        void* data = nullptr;
        int64_t size = 0;
        ~Buffer() { std::free(data); }
    };
    static thread_local Buffer buffers[4];
    Buffer& buffer = buffers[slot];
    if (buffer.size < bytes) {
        std::free(buffer.data);
        buffer.size = (bytes + 4095) / 4096 * 4096;
        buffer.data = std::aligned_alloc(64, buffer.size);
        if (buffer.data == nullptr) std::abort();  // As the allocators of the system's other libraries do.
    }
    return buffer.data;
}

void run_tasks(int64_t tasks, int64_t threads, void (*run)(void*, int64_t), void* context) {
    int64_t helpers = (threads < tasks ? threads : tasks) - 1;
    if (helpers > kMaxWorkers) helpers = kMaxWorkers;
    std::call_once(pool_once, [] {
        renew_pool();
        pthread_atfork(nullptr, nullptr, renew_pool);
    });
    if (helpers < 1 || !pool->in_use.try_lock()) {
        for (int64_t i = 0; i < tasks; ++i) run(context, i);
        return;
    }
    Pool& p = *pool;
    p.hire(static_cast<int>(helpers));
    p.tasks = tasks;
    p.run = run;
    p.context = context;
    p.next.store(0, std::memory_order_relaxed);
    p.gate.store(kOpen | static_cast<uint32_t>(helpers) << 17, std::memory_order_release);
    p.bell.fetch_add(1);
    if (p.sleepers.load() > 0) wake_all(p.bell);
    p.drain();
    p.gate.fetch_and(~kOpen, std::memory_order_acq_rel);
    // Only tasks already begun are waited for. A worker may have lost its core, so yield after a while.
    for (int turn = 1; p.gate.load(std::memory_order_acquire) & kInside; ++turn) {
        if (turn % 1024 == 0)
            std::this_thread::yield();
        else
            relax();
    }
    p.in_use.unlock();
}

}  // namespace detharness
