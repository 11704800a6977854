// Norms, rotary embedding, gating, log-softmax and the KV write: one row at a time, bits equal to kernels/pytorch.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "operators.h"
#include "pool.h"
#include "vec.h"
#include "vec64.h"

namespace detharness {
namespace {

constexpr int64_t kSerial = 32768;  // Elements below which waking another thread costs more than it saves.

int64_t threads_for(int64_t elements, int64_t threads) { return elements < kSerial ? 1 : threads; }

// Calls body(first, last) over ranges of rows.
template <class F>
void over_rows(int64_t rows, int64_t row_elements, int64_t threads, F body) {
    const int64_t used = threads_for(rows * row_elements, threads);
    const int64_t chunk = std::max<int64_t>(1, rows / (4 * used));
    parallel((rows + chunk - 1) / chunk, used, [&](int64_t i) { body(i * chunk, std::min(rows, (i + 1) * chunk)); });
}

// Calls body(load, store, column) for sixteen columns at a time; the last ones go through a padded copy.
template <class F>
DH_INLINE void over_columns(int64_t columns, F body) {
    int64_t c = 0;
    for (; c + kLanes <= columns; c += kLanes) body(c, int64_t{kLanes});
    if (c < columns) body(c, columns - c);
}
template <class T>
DH_INLINE F16 read(const T* p, int64_t n) {
    return n == kLanes ? load(p) : load_first(p, n);
}
template <class T>
DH_INLINE void write(T* p, F16 x, int64_t n) {
    if (n == kLanes)
        store(p, x);
    else
        store_first(p, x, n);
}

// The tree of kernels/elementary.py (tree_sum): a leaf is padded with +0 to a power of two and folded in halves,
// leaves are merged pairwise. element(i, n) gives elements i ... i+n-1. Folding below sixteen lanes adds +0 to
// values that are not negative, an exact no-op, so a short leaf may be padded to sixteen.
template <class F>
DH_INLINE float tree_sum(int64_t length, int64_t leaves, int64_t leaf_length, F element) {
    alignas(64) float folded[512];
    float pending[40];
    float total = 0.0f;
    int64_t width = kLanes;
    while (width < leaf_length) width *= 2;
    for (int64_t leaf = 0; leaf < leaves; ++leaf) {
        const int64_t begin = std::min(length, leaf * leaf_length);
        const int64_t size = std::min(length, begin + leaf_length) - begin;
        int64_t c = 0;
        over_columns(size, [&](int64_t at, int64_t n) {
            store(folded + at, element(begin + at, n));
            c = at + kLanes;
        });
        for (; c < width; c += kLanes) store(folded + c, zero());
        for (int64_t half = width / 2; half >= kLanes; half /= 2)
            for (int64_t i = 0; i < half; i += kLanes) store(folded + i, load(folded + i) + load(folded + half + i));
        total = sum_lanes(load(folded));
        int level = 0;
        for (int64_t rest = leaf; rest & 1; rest >>= 1) total = pending[level++] + total;
        pending[level] = total;
    }
    return total;
}

// The first n lanes of x, +0 in the others.
DH_INLINE F16 keep_first(F16 x, int64_t n) {
    if (n == kLanes) return x;
    float lanes[kLanes];
    store(lanes, x);
    return load_first(lanes, n);
}

template <class T, class W>
DH_INLINE void norm_row(
    T* out, const T* x, const W* weight, int64_t length, int64_t leaves, int64_t leaf_length, float eps) {
    const float square_sum = tree_sum(length, leaves, leaf_length, [&](int64_t i, int64_t n) {
        F16 value = read(x + i, n);
        return value * value;
    });
    const float scale = 1.0f / std::sqrt(square_sum / static_cast<float>(length) + eps);
    over_columns(length, [&](int64_t c, int64_t n) {
        write(out + c, read(x + c, n) * broadcast(scale) * read(weight + c, n), n);
    });
}

struct NormShape {
    int64_t outer, outer_stride, inner, length, leaves, leaf_length;
};

template <class T, class W>
void norm(
    T* out, T* sum, const T* x, const T* residual, const W* weight, const NormShape& s, float eps, int64_t threads) {
    over_rows(s.outer * s.inner, s.length, threads, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            const T* from = x + row / s.inner * s.outer_stride + row % s.inner * s.length;
            if (residual) {
                const T* other = residual + row * s.length;
                T* to = sum + row * s.length;
                over_columns(
                    s.length, [&](int64_t c, int64_t n) { write(to + c, read(from + c, n) + read(other + c, n), n); });
                from = to;
            }
            norm_row(out + row * s.length, from, weight, s.length, s.leaves, s.leaf_length, eps);
        }
    });
}

template <class T>
void rotate(
    T* out, const T* x, const float* cos, const float* sin, int64_t rows, int64_t stride, int64_t heads, int64_t width,
    int64_t threads) {
    const int64_t half = width / 2;
    over_rows(rows, heads * width, threads, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row)
            for (int64_t head = 0; head < heads; ++head) {
                const T* from = x + row * stride + head * width;
                T* to = out + (row * heads + head) * width;
                over_columns(half, [&](int64_t c, int64_t n) {
                    const F16 a = read(from + c, n), b = read(from + half + c, n);
                    const F16 cosine = read(cos + row * half + c, n), sine = read(sin + row * half + c, n);
                    write(to + c, a * cosine - b * sine, n);
                    write(to + half + c, b * cosine + a * sine, n);
                });
            }
    });
}

template <class T>
void silu(T* out, const T* gate_up, int64_t rows, int64_t stride, int64_t width, int64_t threads) {
    over_rows(rows, 4 * width, threads, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            const T* gate = gate_up + row * stride;
            over_columns(width, [&](int64_t c, int64_t n) {
                const F16 g = read(gate + c, n);
                const F16 negative = broadcast(-0.0f) - g;
                write(out + row * width + c, g / (broadcast(1.0f) + exp32(negative)) * read(gate + width + c, n), n);
            });
        }
    });
}

void log_softmax_row(float* out, const float* x, int64_t length, int64_t leaves, int64_t leaf_length) {
    F16 best = broadcast(-INFINITY);
    bool defined = true;
    over_columns(length, [&](int64_t c, int64_t n) {
        F16 value = read(x + c, n);
        if (n < kLanes) {
            float lanes[kLanes];
            std::fill(lanes, lanes + kLanes, -INFINITY);
            std::memcpy(lanes, x + c, n * sizeof(float));
            value = load(lanes);
        }
        best = larger(value, best);
        DH_EACH_PART {
            const VecI odd = value.part[i] != value.part[i];
            for (int lane = 0; lane < kWidth; ++lane) defined = defined && !odd[lane];
        }
    });
    const float shift = defined ? max_lanes(best) : NAN;
    const float total = tree_sum(length, leaves, leaf_length, [&](int64_t i, int64_t n) {
        return keep_first(exp32(read(x + i, n) - broadcast(shift)), n);
    });
    const float log_total = static_cast<float>(log64(total));
    over_columns(length, [&](int64_t c, int64_t n) {
        write(out + c, (read(x + c, n) - broadcast(shift)) - broadcast(log_total), n);
    });
}

}  // namespace
}  // namespace detharness

using namespace detharness;
using Half = uint16_t;

extern "C" {

// out = x / sqrt(mean(x^2) + eps) * weight; with a residual, sum = x + residual first and its norm is taken.
// x is [outer, inner, length], outer_stride elements between outer rows; out, sum and residual are dense.
__attribute__((visibility("default"))) void dh_rms_norm(
    void* out, void* sum, const void* x, const void* residual, const void* weight, int64_t bf16, int64_t weight_bf16,
    int64_t outer, int64_t outer_stride, int64_t inner, int64_t length, int64_t leaves, int64_t leaf_length, float eps,
    int64_t threads) {
    FloatMode mode;
    const NormShape shape{outer, outer_stride, inner, length, leaves, leaf_length};
    auto run = [&](auto* typed, auto* typed_weight) {
        using T = std::remove_pointer_t<decltype(typed)>;
        norm(typed, static_cast<T*>(sum), static_cast<const T*>(x), static_cast<const T*>(residual), typed_weight,
             shape, eps, threads);
    };
    auto choose = [&](auto* typed) {
        if (weight_bf16)
            run(typed, static_cast<const Half*>(weight));
        else
            run(typed, static_cast<const float*>(weight));
    };
    if (bf16)
        choose(static_cast<Half*>(out));
    else
        choose(static_cast<float*>(out));
}

// out [rows, heads, width] = x rotated by halves; x rows are `stride` elements apart, cos and sin [rows, width / 2].
__attribute__((visibility("default"))) void dh_rope(
    void* out, const void* x, int64_t bf16, const float* cos, const float* sin, int64_t rows, int64_t stride,
    int64_t heads, int64_t width, int64_t threads) {
    FloatMode mode;
    if (bf16)
        rotate(static_cast<Half*>(out), static_cast<const Half*>(x), cos, sin, rows, stride, heads, width, threads);
    else
        rotate(static_cast<float*>(out), static_cast<const float*>(x), cos, sin, rows, stride, heads, width, threads);
}

// Copies rows of `bytes` bytes, `stride` bytes apart, to pages at slots[row] * bytes.
__attribute__((visibility("default"))) void dh_write_kv(
    void* pages, const void* x, const int64_t* slots, int64_t rows, int64_t stride, int64_t bytes) {
    for (int64_t row = 0; row < rows; ++row)
        std::memcpy(static_cast<char*>(pages) + slots[row] * bytes, static_cast<const char*>(x) + row * stride, bytes);
}

// out [rows, width] = silu(gate) * up; gate_up rows hold gate then up and are `stride` elements apart.
__attribute__((visibility("default"))) void dh_silu_and_mul(
    void* out, const void* gate_up, int64_t bf16, int64_t rows, int64_t stride, int64_t width, int64_t threads) {
    FloatMode mode;
    if (bf16)
        silu(static_cast<Half*>(out), static_cast<const Half*>(gate_up), rows, stride, width, threads);
    else
        silu(static_cast<float*>(out), static_cast<const float*>(gate_up), rows, stride, width, threads);
}

__attribute__((visibility("default"))) void dh_log_softmax(
    float* out, const float* x, int64_t rows, int64_t stride, int64_t length, int64_t leaves, int64_t leaf_length,
    int64_t threads) {
    FloatMode mode;
    over_rows(rows, length, threads, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row)
            log_softmax_row(out + row * length, x + row * stride, length, leaves, leaf_length);
    });
}

}  // extern "C"
