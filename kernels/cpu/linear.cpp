// linear: x [M, K] times packed weights, fp32 accumulation over the tree of kernels/contract.py (tree_plan).
//
// Plan: a leaf is one ascending chain of fused multiply-adds per output; partials are merged pairwise.
// Schedule, free to change: rows of a tile, panels of a tile, leaves side by side, which thread takes which panel.
//
// Weights are packed in panels of 32 columns, [N/32][K][32] in fp32. In bf16 each leaf holds pairs of k,
// [N/32][leaf][pair][32][2], so that one 32-bit lane gives two weights by a shift and a mask.
#include <algorithm>
#include <cstdint>

#include "operators.h"
#include "pool.h"
#include "vec.h"

namespace detharness {
namespace {

constexpr int64_t kPanel = 32;

// How far ahead of the sum weights are fetched. A panel is one stretch of memory, but too many of them are read
// side by side for the hardware to look far enough.
constexpr int64_t kAhead = 4096;

template <class W>
DH_INLINE void fetch(const W* w) {
    const char* at = reinterpret_cast<const char*>(w) + kAhead;
    __builtin_prefetch(at);
    __builtin_prefetch(at + 64);
}

struct Plan {
    int64_t length, leaves, leaf_length;

    int64_t begin(int64_t leaf) const { return std::min(length, leaf * leaf_length); }
    int64_t size(int64_t leaf) const { return begin(leaf + 1) - begin(leaf); }
    int64_t pairs() const { return (leaf_length + 1) / 2; }
    // Elements of a packed panel.
    int64_t panel_size(bool bf16) const { return bf16 ? leaves * pairs() * 2 * kPanel : length * kPanel; }
};

// Tiles by vector width: what fits into the registers, with at least eight chains for the latency of an FMA.
struct Tile {
    int panels, leaves;
};
#if DETHARNESS_VECTOR_BITS == 512
constexpr int kMaxRows = 14;
constexpr Tile tile_of(int rows) { return rows <= 3 ? Tile{2, 4} : rows <= 6 ? Tile{2, 2} : Tile{2, 1}; }
#elif DETHARNESS_VECTOR_BITS == 256
constexpr int kMaxRows = 6;
constexpr Tile tile_of(int rows) { return rows == 1 ? Tile{2, 2} : rows <= 3 ? Tile{2, 1} : Tile{1, 1}; }
#elif defined(__aarch64__)
constexpr int kMaxRows = 6;
constexpr Tile tile_of(int rows) { return rows == 1 ? Tile{2, 2} : rows <= 3 ? Tile{2, 1} : Tile{1, 1}; }
#else
constexpr int kMaxRows = 3;
constexpr Tile tile_of(int rows) { return rows == 1 ? Tile{2, 1} : Tile{1, 1}; }
#endif

constexpr int kOddRows = 8;    // Tiles above this have an even number of rows.
constexpr int kFewLeaves = 8;  // Fewer than this means K below eight: too short for a tile of its own.

// One leaf step: acc += x[k] * w[k], for fp32 weights one k, for bf16 weights the pair k, k+1 or its first half.
template <int R, int P>
DH_INLINE void step(F16 (&acc)[P][R], const float* x, const float* w) {
    F16 weight[P];
    fetch(w);
    DH_UNROLL for (int p = 0; p < P; ++p) weight[p] = load(w + p * kLanes);
    DH_UNROLL for (int r = 0; r < R; ++r) {
        F16 row = broadcast(x[r]);
        DH_UNROLL for (int p = 0; p < P; ++p) acc[p][r] = fma(row, weight[p], acc[p][r]);
    }
}

DH_INLINE void unpack_pair(const uint16_t* w, F16& even, F16& odd) {
    DH_EACH_PART {
        VecU lanes;
        std::memcpy(&lanes, w + 2 * i * kWidth, sizeof(VecU));
        even.part[i] = (VecF)(lanes << 16);
        odd.part[i] = (VecF)(lanes & 0xffff0000u);
    }
}

template <int R, int P, bool Odd>
DH_INLINE void step_pair(F16 (&acc)[P][R], const float* x, const uint16_t* w) {
    F16 even[P], odd[P];
    fetch(w);
    DH_UNROLL for (int p = 0; p < P; ++p) unpack_pair(w + 2 * p * kLanes, even[p], odd[p]);
    DH_UNROLL for (int r = 0; r < R; ++r) {
        F16 row = broadcast(x[r]);
        DH_UNROLL for (int p = 0; p < P; ++p) acc[p][r] = fma(row, even[p], acc[p][r]);
    }
    if (Odd) {
        DH_UNROLL for (int r = 0; r < R; ++r) {
            F16 row = broadcast(x[R + r]);
            DH_UNROLL for (int p = 0; p < P; ++p) acc[p][r] = fma(row, odd[p], acc[p][r]);
        }
    }
}

// Leaves first, first+1, ... first+L-1 side by side, merged pairwise into `out`. x is [K][R], w one packed panel.
template <int R, int P, int L>
DH_INLINE void leaf_group(const float* x, const float* w, const Plan& plan, int64_t first, F16 (&out)[P][R]) {
    F16 acc[L][P][R];
    DH_UNROLL for (int l = 0; l < L; ++l)
        DH_UNROLL for (int p = 0; p < P; ++p)
            DH_UNROLL for (int r = 0; r < R; ++r) acc[l][p][r] = zero();
    const int64_t joint = plan.size(first + L - 1);  // The last leaf is the shortest.
    const int64_t start = plan.begin(first), apart = plan.leaf_length;
    for (int64_t k = 0; k < joint; ++k)
        DH_UNROLL for (int l = 0; l < L; ++l) {
            int64_t at = start + l * apart + k;
            step<R, P>(acc[l], x + at * R, w + at * kPanel);
        }
    DH_UNROLL for (int l = 0; l < L; ++l) {
        const int64_t begin = plan.begin(first + l), size = plan.size(first + l);
        for (int64_t k = joint; k < size; ++k) step<R, P>(acc[l], x + (begin + k) * R, w + (begin + k) * kPanel);
    }
    DH_UNROLL for (int width = 1; width < L; width *= 2)
        DH_UNROLL for (int l = 0; l < L; l += 2 * width)
            DH_UNROLL for (int p = 0; p < P; ++p)
                DH_UNROLL for (int r = 0; r < R; ++r) acc[l][p][r] = acc[l][p][r] + acc[l + width][p][r];
    DH_UNROLL for (int p = 0; p < P; ++p)
        DH_UNROLL for (int r = 0; r < R; ++r) out[p][r] = acc[0][p][r];
}

template <int R, int P, int L>
DH_INLINE void leaf_group(const float* x, const uint16_t* w, const Plan& plan, int64_t first, F16 (&out)[P][R]) {
    F16 acc[L][P][R];
    DH_UNROLL for (int l = 0; l < L; ++l)
        DH_UNROLL for (int p = 0; p < P; ++p)
            DH_UNROLL for (int r = 0; r < R; ++r) acc[l][p][r] = zero();
    const int64_t joint = plan.size(first + L - 1) / 2;
    const int64_t start = plan.begin(first), apart = plan.leaf_length, leaf_size = plan.pairs() * 2 * kPanel;
    w += first * leaf_size;
    for (int64_t pair = 0; pair < joint; ++pair)
        DH_UNROLL for (int l = 0; l < L; ++l)
            step_pair<R, P, true>(acc[l], x + (start + l * apart + 2 * pair) * R, w + l * leaf_size + pair * 2 * kPanel);
    DH_UNROLL for (int l = 0; l < L; ++l) {
        const int64_t begin = plan.begin(first + l), size = plan.size(first + l);
        const uint16_t* leaf = w + l * leaf_size;
        for (int64_t k = 2 * joint; k + 1 < size; k += 2)
            step_pair<R, P, true>(acc[l], x + (begin + k) * R, leaf + k * kPanel);
        if (size % 2) step_pair<R, P, false>(acc[l], x + (begin + size - 1) * R, leaf + (size - 1) * kPanel);
    }
    DH_UNROLL for (int width = 1; width < L; width *= 2)
        DH_UNROLL for (int l = 0; l < L; l += 2 * width)
            DH_UNROLL for (int p = 0; p < P; ++p)
                DH_UNROLL for (int r = 0; r < R; ++r) acc[l][p][r] = acc[l][p][r] + acc[l + width][p][r];
    DH_UNROLL for (int p = 0; p < P; ++p)
        DH_UNROLL for (int r = 0; r < R; ++r) out[p][r] = acc[0][p][r];
}

struct Output {
    void* data;  // [M, N] fp32 or bf16.
    bool bf16;
    int64_t rows, columns;
    const float* bias;  // [N rounded up to a panel], or null.
};

template <class T>
DH_INLINE void write(T* row, F16 value, int64_t left) {
    if (left >= kLanes)
        store(row, value);
    else
        store_first(row, value, left);
}

// One tile: R rows by one panel. L leaves at a time, then a binary counter merges the groups pairwise.
template <int R, int P, int L, class W>
void run_tile(const float* x, const W* w, const Plan& plan, const Output& output, int64_t row, int64_t panel) {
    F16 pending[24][P][R];  // At most 2^24 groups, so K below 2^33.
    for (int64_t half = 0; half < kPanel; half += P * kLanes) {
        const W* weights = w + half * (sizeof(W) == 2 ? 2 : 1);
        F16 total[P][R];
        DH_UNROLL for (int p = 0; p < P; ++p)
            DH_UNROLL for (int r = 0; r < R; ++r) total[p][r] = zero();
        for (int64_t group = 0; group * L < plan.leaves; ++group) {
            leaf_group<R, P, L>(x, weights, plan, group * L, total);
            int level = 0;
            for (int64_t rest = group; rest & 1; rest >>= 1, ++level)
                DH_UNROLL for (int p = 0; p < P; ++p)
                    DH_UNROLL for (int r = 0; r < R; ++r) total[p][r] = pending[level][p][r] + total[p][r];
            DH_UNROLL for (int p = 0; p < P; ++p)
                DH_UNROLL for (int r = 0; r < R; ++r) pending[level][p][r] = total[p][r];
        }
        DH_UNROLL for (int p = 0; p < P; ++p) {
            const int64_t column = panel * kPanel + half + p * kLanes, left = output.columns - column;
            if (left <= 0) break;
            if (output.bias) {
                F16 bias = load(output.bias + column);
                DH_UNROLL for (int r = 0; r < R; ++r) total[p][r] = total[p][r] + bias;
            }
            alignas(64) float done[R][kLanes];
            DH_UNROLL for (int r = 0; r < R; ++r) store(done[r], total[p][r]);
            for (int64_t r = 0; r < std::min<int64_t>(R, output.rows - row); ++r) {
                const int64_t at = (row + r) * output.columns + column;
                if (output.bf16)
                    write(static_cast<uint16_t*>(output.data) + at, load(done[r]), left);
                else
                    write(static_cast<float*>(output.data) + at, load(done[r]), left);
            }
        }
    }
}

template <class W>
using TileFunction = void (*)(const float*, const W*, const Plan&, const Output&, int64_t, int64_t);

template <class W, int R>
TileFunction<W> tile_function(int rows, int64_t leaves) {
    if constexpr (R == 0) {
        return nullptr;
    } else {
        constexpr Tile tile = tile_of(R);
        if constexpr (R > kOddRows && R % 2) return tile_function<W, R - 1>(rows, leaves);
        if (rows != R) return tile_function<W, R - 1>(rows, leaves);
        if constexpr (R == 1)  // RowTiles sees to it that trees this small come row by row.
            if (leaves < kFewLeaves) return run_tile<1, 1, 1, W>;
        return run_tile<R, tile.panels, tile.leaves, W>;
    }
}

// Rows cut into tiles of nearly equal size, each transposed to [K][size] so that a step reads neighbours. Above
// kOddRows the sizes are even, which halves the code; the last row of the last tile may then be padding.
struct RowTiles {
    int64_t rows, unit, units, count;

    RowTiles(int64_t rows, const Plan& plan) : rows(rows), unit(rows > kOddRows && kMaxRows > kOddRows ? 2 : 1) {
        units = (rows + unit - 1) / unit;
        const int64_t most = plan.leaves < kFewLeaves ? 1 : kMaxRows;
        if (most == 1) unit = 1, units = rows;
        count = (units * unit + most - 1) / most;
    }
    int64_t begin(int64_t tile) const { return tile * units / count * unit; }
    int size(int64_t tile) const { return static_cast<int>(begin(tile + 1) - begin(tile)); }
    int64_t padded() const { return units * unit; }
};

template <class T>
void transpose(const T* x, int64_t stride, int64_t filled, int64_t rows, int64_t length, float* out) {
    for (int64_t r = filled; r < rows; ++r)
        for (int64_t k = 0; k < length; ++k) out[k * rows + r] = 0.0f;
    for (int64_t r = 0; r < filled; ++r) {
        const T* row = x + r * stride;
        int64_t k = 0;
        for (; k + kLanes <= length; k += kLanes) {
            float lanes[kLanes];
            store(lanes, load(row + k));
            for (int i = 0; i < kLanes; ++i) out[(k + i) * rows + r] = lanes[i];
        }
        if (k < length) {
            float lanes[kLanes];
            store(lanes, load_first(row + k, length - k));
            for (int i = 0; i < length - k; ++i) out[(k + i) * rows + r] = lanes[i];
        }
    }
}

void unpack(const uint16_t* w, const Plan& plan, float* out) {
    for (int64_t leaf = 0; leaf < plan.leaves; ++leaf, w += plan.pairs() * 2 * kPanel) {
        const int64_t begin = plan.begin(leaf), size = plan.size(leaf);
        for (int64_t k = 0; k < size; k += 2)
            for (int64_t half = 0; half < kPanel; half += kLanes) {
                F16 even, odd;
                unpack_pair(w + k * kPanel + 2 * half, even, odd);
                store(out + (begin + k) * kPanel + half, even);
                if (k + 1 < size) store(out + (begin + k + 1) * kPanel + half, odd);
            }
    }
}

// Rows worked through before the next ones, so that their transposed tiles stay in a core's cache.
constexpr int64_t kRowBytes = 1 << 20;
// Panels a thread takes at once, so that they stay in cache while row blocks pass.
constexpr int64_t kPanelBytes = 1 << 19;

int64_t tiles_of_a_block(int64_t length) { return std::max<int64_t>(1, kRowBytes / (length * 4 * kMaxRows)); }

template <class W>
void run_panels(
    const float* x, const W* w, const Plan& plan, const Output& output, const RowTiles& tiles, int64_t first,
    int64_t last) {
    constexpr bool narrow = sizeof(W) == 2;
    const int64_t stride = plan.panel_size(narrow);
    const int64_t block = tiles_of_a_block(plan.length);
    for (int64_t from = 0; from < tiles.count; from += block)
        for (int64_t panel = first; panel < last; ++panel) {
            const W* weights = w + panel * stride;
            const float* wide = nullptr;
            if (narrow && (tiles.count > 1 || tiles.size(0) > kOddRows)) {  // Unpacked once for all tiles: same values, same order, fewer shifts.
                float* buffer = static_cast<float*>(scratch(2, plan.panel_size(false) * 4));
                unpack(reinterpret_cast<const uint16_t*>(weights), plan, buffer);
                wide = buffer;
            }
            for (int64_t tile = from; tile < std::min(from + block, tiles.count); ++tile) {
                const int64_t row = tiles.begin(tile);
                const int size = tiles.size(tile);
                const float* rows = x + row * plan.length;
                if (wide)
                    tile_function<float, kMaxRows>(size, plan.leaves)(rows, wide, plan, output, row, panel);
                else
                    tile_function<W, narrow ? std::min(kMaxRows, kOddRows) : kMaxRows>(size, plan.leaves)(rows, weights, plan, output, row, panel);
            }
        }
}

// Element k of one row of the weights, from the panel that holds it; `lane` is its column in the panel.
struct PackedRow {
    const Plan& plan;
    int64_t lane;

    float operator()(const float* panel, int64_t k) const { return panel[k * kPanel + lane]; }
    float operator()(const uint16_t* panel, int64_t k) const {
        const int64_t leaf = k / plan.leaf_length, within = k - leaf * plan.leaf_length;
        const int64_t at = (leaf * plan.pairs() * 2 + within / 2 * 2) * kPanel + 2 * lane + within % 2;
        const uint32_t bits = static_cast<uint32_t>(panel[at]) << 16;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }
};

template <class T, class W>
void gather_rows(T* out, const int64_t* ids, int64_t rows, const W* packed, const Plan& plan, int64_t threads) {
    const int64_t stride = plan.panel_size(sizeof(W) == 2);
    parallel(rows, rows < 8 ? 1 : threads, [&](int64_t row) {
        const W* panel = packed + ids[row] / kPanel * stride;
        const PackedRow element{plan, ids[row] % kPanel};
        T* to = out + row * plan.length;
        for (int64_t k = 0; k < plan.length; k += kLanes) {
            const int64_t n = std::min<int64_t>(kLanes, plan.length - k);
            float lanes[kLanes] = {};
            for (int64_t i = 0; i < n; ++i) lanes[i] = element(panel, k + i);
            write(to + k, load(lanes), n);
        }
    });
}

}  // namespace
}  // namespace detharness

using namespace detharness;

extern "C" {

// Schedule, for those who probe its borders: rows of the largest tile, and tiles of a block of rows.
__attribute__((visibility("default"))) int64_t dh_row_tile() { return kMaxRows; }
__attribute__((visibility("default"))) int64_t dh_row_block(int64_t length) { return tiles_of_a_block(length); }

// out [rows, length]: the rows `ids` of the packed weights.
__attribute__((visibility("default"))) void dh_embedding(
    void* out, int64_t out_bf16, const int64_t* ids, int64_t rows, const void* packed, int64_t w_bf16, int64_t length,
    int64_t leaves, int64_t leaf_length, int64_t threads) {
    FloatMode mode;
    const Plan plan{length, leaves, leaf_length};
    auto gather = [&](auto* typed) {
        if (w_bf16)
            gather_rows(typed, ids, rows, static_cast<const uint16_t*>(packed), plan, threads);
        else
            gather_rows(typed, ids, rows, static_cast<const float*>(packed), plan, threads);
    };
    if (out_bf16)
        gather(static_cast<uint16_t*>(out));
    else
        gather(static_cast<float*>(out));
}

// Elements of the packed buffer for weights [columns, length].
__attribute__((visibility("default"))) int64_t dh_packed_size(
    int64_t columns, int64_t length, int64_t leaves, int64_t leaf_length, int64_t bf16) {
    Plan plan{length, leaves, leaf_length};
    return (columns + kPanel - 1) / kPanel * plan.panel_size(bf16);
}

// Packs rows of w [rows, length] as columns first_column... of `packed`, which is zero where nothing was packed.
__attribute__((visibility("default"))) void dh_pack(
    void* packed, const void* w, int64_t rows, int64_t first_column, int64_t length, int64_t leaves,
    int64_t leaf_length, int64_t bf16) {
    Plan plan{length, leaves, leaf_length};
    const int64_t stride = plan.panel_size(bf16);
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t column = first_column + row, panel = column / kPanel, lane = column % kPanel;
        if (!bf16) {
            const float* from = static_cast<const float*>(w) + row * length;
            float* to = static_cast<float*>(packed) + panel * stride + lane;
            for (int64_t k = 0; k < length; ++k) to[k * kPanel] = from[k];
            continue;
        }
        const uint16_t* from = static_cast<const uint16_t*>(w) + row * length;
        uint16_t* to = static_cast<uint16_t*>(packed) + panel * stride + 2 * lane;
        for (int64_t leaf = 0; leaf < leaves; ++leaf, to += plan.pairs() * 2 * kPanel)
            for (int64_t k = 0; k < plan.size(leaf); ++k)
                to[k / 2 * 2 * kPanel + k % 2] = from[plan.begin(leaf) + k];
    }
}

// out [rows, columns] = x [rows, length] (rows `stride` elements apart) times the packed weights, plus bias.
__attribute__((visibility("default"))) void dh_linear(
    void* out, const void* x, int64_t x_bf16, int64_t stride, const void* packed, int64_t w_bf16, const float* bias,
    int64_t rows, int64_t columns, int64_t length, int64_t leaves, int64_t leaf_length, int64_t threads) {
    FloatMode mode;
    const Plan plan{length, leaves, leaf_length};
    const RowTiles tiles(rows, plan);
    const Output output{out, x_bf16 != 0, rows, columns, bias};
    const float* tiled = static_cast<const float*>(x);
    if (rows > 1 || x_bf16) {
        float* buffer = static_cast<float*>(scratch(0, tiles.padded() * length * 4));
        parallel(tiles.count, rows * length < 32768 ? 1 : threads, [&](int64_t tile) {
            const int64_t row = tiles.begin(tile), size = tiles.size(tile), filled = std::min(size, rows - row);
            float* to = buffer + row * length;
            if (x_bf16)
                transpose(static_cast<const uint16_t*>(x) + row * stride, stride, filled, size, length, to);
            else
                transpose(static_cast<const float*>(x) + row * stride, stride, filled, size, length, to);
        });
        tiled = buffer;
    }
    const int64_t panels = (columns + kPanel - 1) / kPanel;
    const int64_t fits = std::max<int64_t>(1, kPanelBytes / (length * 4 * kPanel));
    const int64_t chunk = std::max<int64_t>(1, std::min(fits, panels / (4 * threads)));
    parallel((panels + chunk - 1) / chunk, threads, [&](int64_t index) {
        const int64_t first = index * chunk, last = std::min(panels, first + chunk);
        if (w_bf16)
            run_panels(tiled, static_cast<const uint16_t*>(packed), plan, output, tiles, first, last);
        else
            run_panels(tiled, static_cast<const float*>(packed), plan, output, tiles, first, last);
    });
}

}  // extern "C"
