// Paged attention: one code path for prefill, chunk, decode and verification.
//
// Plan: keys stand on an absolute grid of 64 tokens from position 0. A (row, head, block) gives a partial softmax;
// a row merges its blocks in ascending order. Within a block a score is summed over D in sixteen lanes (d, d+16, ...
// ascending, fused) that are halved; the weights are folded in halves; the values are eight leaves of eight keys,
// ascending and fused, merged pairwise. Everything depends on the row's position alone.
// Schedule: rows of a tile, blocks of a segment, threads.
//
// What is masked is never read: loops run over the visible keys of a row, and a key beyond every row of a tile is
// not even looked up in the block table.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "operators.h"
#include "pool.h"
#include "vec.h"

namespace detharness {
namespace {

constexpr int64_t kGrid = 64;
constexpr int64_t kLeaf = 8;      // Keys in one leaf of the value sum.
constexpr int64_t kTileRows = 8;  // Rows of one request that share the keys in cache.
constexpr int64_t kSegment = 4;   // Blocks of one task when there are too few tiles for the threads.

#if DETHARNESS_VECTOR_BITS == 512
constexpr int kColumns = 4;  // Sixteen-lane columns of the output held in registers at once.
#elif DETHARNESS_VECTOR_BITS == 256
constexpr int kColumns = 4;
#else
constexpr int kColumns = 2;
#endif

struct Call {
    void* out;
    const void* q;
    const void* k_pages;
    const void* v_pages;
    const int64_t* positions;
    const int64_t* tables;
    int64_t table_width, page_size, heads, kv_heads, width, q_stride;
    float scale;
    int64_t window;  // 0: none.
    bool bf16;       // q and out.
    bool kv_bf16;
    int64_t padded;  // width rounded up to sixteen.

    int64_t group() const { return heads / kv_heads; }
    int64_t first_key(int64_t row) const {
        return window ? std::max<int64_t>(0, positions[row] - window + 1) : 0;
    }
};

struct Tile {
    int64_t request, row, rows;
};

// Running softmax of one (row, head): the maximum, the sum of the weights, and the weighted values, `padded` long.
struct State {
    float best, total;
    float* mixed;
};

// One stage of `sum_each`: the lanes of each vector are halved and two vectors become one. A vector holds blocks of
// 2 * half lanes, each of another key; v[j] keeps its keys and takes those of v[j + half], interleaved.
template <int half, int... I>
DH_INLINE void sum_stage(VecF (&v)[kWidth], std::integer_sequence<int, I...>) {
    const VecI low = {((I % (2 * half) < half ? 0 : kWidth) + I / (2 * half) * (2 * half) + I % half)...};
    const VecI high = {((I % (2 * half) < half ? 0 : kWidth) + I / (2 * half) * (2 * half) + I % half + half)...};
    DH_UNROLL for (int j = 0; j < half; ++j)
        v[j] = __builtin_shuffle(v[j], v[j + half], low) + __builtin_shuffle(v[j], v[j + half], high);
}

// Sums kWidth vectors of kWidth lanes each: lane i of the result is the halving sum of v[i].
DH_INLINE VecF sum_each(VecF (&v)[kWidth]) {
    constexpr auto lanes = std::make_integer_sequence<int, kWidth>{};
    if constexpr (kWidth > 8) sum_stage<8>(v, lanes);
    if constexpr (kWidth > 4) sum_stage<4>(v, lanes);
    sum_stage<2>(v, lanes);
    sum_stage<1>(v, lanes);
    return v[0];
}

// Sixteen lanes of q . key before they are summed; C columns of sixteen, or as many as `padded` has when C is 0.
template <int C>
DH_INLINE F16 product(const float* q, const float* key, int64_t padded) {
    F16 acc = zero();
    if constexpr (C > 0) {
        DH_UNROLL for (int c = 0; c < C; ++c) acc = fma(load(q + c * kLanes), load(key + c * kLanes), acc);
    } else {
        for (int64_t d = 0; d < padded; d += kLanes) acc = fma(load(q + d), load(key + d), acc);
    }
    return acc;
}

// scores[j] = q . keys[j] * scale for low <= j < high, -inf for the others; q is `padded` long, and so are the keys.
template <int C>
DH_INLINE void score_block(
    const float* q, const float* const* keys, int64_t low, int64_t high, int64_t padded, float scale, float* scores) {
    for (int64_t first = low / kWidth * kWidth; first < high; first += kWidth) {
        VecF sums[kWidth];
        if (first >= low && first + kWidth <= high) {
            DH_UNROLL for (int i = 0; i < kWidth; ++i) sums[i] = sum_parts(product<C>(q, keys[first + i], padded));
        } else {
            for (int i = 0; i < kWidth; ++i) {
                const int64_t j = first + i;
                sums[i] = j >= low && j < high ? sum_parts(product<C>(q, keys[j], padded)) : (VecF){};
            }
        }
        const VecF result = sum_each(sums) * ((VecF){} + scale);
        std::memcpy(scores + first, &result, sizeof(VecF));
    }
    for (int64_t j = 0; j < low; ++j) scores[j] = -INFINITY;
    for (int64_t j = high; j < kGrid; ++j) scores[j] = -INFINITY;
}

// mixed[d...] = sum of weights[j] * values[j][d...] over the visible keys, C columns of sixteen.
template <int C>
DH_INLINE void mix_columns(
    const float* weights, const float* const* values, int64_t low, int64_t high, int64_t d, float* mixed) {
    F16 pending[4][C], total[C];
    auto add = [&](int64_t j) __attribute__((always_inline)) {
        const F16 weight = broadcast(weights[j]);
        const float* value = values[j] + d;
        DH_UNROLL for (int c = 0; c < C; ++c) total[c] = fma(weight, load(value + c * kLanes), total[c]);
    };
    DH_UNROLL for (int leaf = 0; leaf < kGrid / kLeaf; ++leaf) {
        DH_UNROLL for (int c = 0; c < C; ++c) total[c] = zero();
        if (leaf * kLeaf >= low && (leaf + 1) * kLeaf <= high) {
            DH_UNROLL for (int i = 0; i < kLeaf; ++i) add(leaf * kLeaf + i);
        } else {
            const int64_t begin = std::max<int64_t>(low, leaf * kLeaf);
            const int64_t end = std::min<int64_t>(high, (leaf + 1) * kLeaf);
            for (int64_t j = begin; j < end; ++j) add(j);
        }
        int level = 0;
        DH_UNROLL for (int rest = leaf; rest & 1; rest >>= 1, ++level)
            DH_UNROLL for (int c = 0; c < C; ++c) total[c] = pending[level][c] + total[c];
        DH_UNROLL for (int c = 0; c < C; ++c) pending[level][c] = total[c];
    }
    DH_UNROLL for (int c = 0; c < C; ++c) store(mixed + d + c * kLanes, total[c]);
}

DH_INLINE void mix_block(
    const float* weights, const float* const* values, int64_t low, int64_t high, int64_t padded, float* mixed) {
    int64_t d = 0;
    for (; d + kColumns * kLanes <= padded; d += kColumns * kLanes)
        mix_columns<kColumns>(weights, values, low, high, d, mixed);
    for (; d < padded; d += kLanes) mix_columns<1>(weights, values, low, high, d, mixed);
}

// The partial softmax of one block into `part`.
template <int C>
void attend_block(
    const float* q, const float* const* keys, const float* const* values, int64_t low, int64_t high, const Call& call,
    State& part) {
    alignas(64) float scores[kGrid];
    score_block<C>(q, keys, low, high, call.padded, call.scale, scores);
    const F16 s[4] = {load(scores), load(scores + 16), load(scores + 32), load(scores + 48)};
    part.best = max_lanes(larger(larger(s[0], s[2]), larger(s[1], s[3])));
    const F16 base = broadcast(part.best == -INFINITY ? 0.0f : part.best);
    F16 w[4];
    DH_UNROLL for (int i = 0; i < 4; ++i) {
        w[i] = exp32(s[i] - base);
        store(scores + 16 * i, w[i]);
    }
    part.total = sum_lanes((w[0] + w[2]) + (w[1] + w[3]));
    mix_block(scores, values, low, high, call.padded, part.mixed);
}

DH_INLINE void merge(State& state, const State& part, int64_t padded) {
    const float top = part.best > state.best ? part.best : state.best;
    const float base = top == -INFINITY ? 0.0f : top;
    alignas(64) float shifts[kLanes] = {state.best - base, part.best - base};
    alignas(64) float factors[kLanes];
    store(factors, exp32(load(shifts)));
    const F16 keep = broadcast(factors[0]), add = broadcast(factors[1]);
    state.total = state.total * factors[0] + part.total * factors[1];
    for (int64_t d = 0; d < padded; d += kLanes)
        store(state.mixed + d, fma(load(state.mixed + d), keep, load(part.mixed + d) * add));
    state.best = top;
}

void finish(const Call& call, int64_t row, int64_t head, const State& state) {
    const int64_t at = (row * call.heads + head) * call.width;
    for (int64_t d = 0; d < call.width; d += kLanes) {
        const F16 value = load(state.mixed + d) / broadcast(state.total);
        const int64_t left = call.width - d;
        if (call.bf16) {
            uint16_t* to = static_cast<uint16_t*>(call.out) + at + d;
            left >= kLanes ? store(to, value) : store_first(to, value, left);
        } else {
            float* to = static_cast<float*>(call.out) + at + d;
            left >= kLanes ? store(to, value) : store_first(to, value, left);
        }
    }
}

template <class T>
DH_INLINE void widen(const T* from, int64_t width, float* to) {
    int64_t d = 0;
    for (; d + kLanes <= width; d += kLanes) store(to + d, load(from + d));
    if (d < width) store(to + d, load_first(from + d, width - d));
}

// Pointers to the keys and values of one block, `padded` long each: straight into the pages where they are fp32 and
// need no padding, else into a widened copy.
struct Block {
    const float* keys[kGrid];
    const float* values[kGrid];
};

void gather(
    const Call& call, int64_t request, int64_t kv_head, int64_t first, int64_t low, int64_t high, float* copies,
    Block& block) {
    const int64_t* table = call.tables + request * call.table_width;
    int64_t page = (first + low) / call.page_size, within = (first + low) % call.page_size;
    for (int64_t j = low; j < high; ++j) {
        const int64_t slot = table[page] * call.page_size + within;
        if (++within == call.page_size) within = 0, ++page;
        const int64_t at = (slot * call.kv_heads + kv_head) * call.width;
        if (!call.kv_bf16 && call.padded == call.width) {
            block.keys[j] = static_cast<const float*>(call.k_pages) + at;
            block.values[j] = static_cast<const float*>(call.v_pages) + at;
            // The hardware does not follow keys that stand a page apart; ask for all of them before the first is used.
            for (int64_t d = 0; d < call.width; d += kLanes) {
                __builtin_prefetch(block.keys[j] + d);
                __builtin_prefetch(block.values[j] + d);
            }
            continue;
        }
        float* k = copies + j * call.padded;
        float* v = copies + (kGrid + j) * call.padded;
        if (call.kv_bf16) {
            widen(static_cast<const uint16_t*>(call.k_pages) + at, call.width, k);
            widen(static_cast<const uint16_t*>(call.v_pages) + at, call.width, v);
        } else {
            widen(static_cast<const float*>(call.k_pages) + at, call.width, k);
            widen(static_cast<const float*>(call.v_pages) + at, call.width, v);
        }
        block.keys[j] = k;
        block.values[j] = v;
    }
}

// A range of key-value heads.
struct Heads {
    int64_t first, last;
};

// Works through blocks [first_block, last_block) of one tile for some key-value heads, all of them block by block, since
// the heads of a key are neighbours in memory; `each` receives (row of the tile, head, block, partial), blocks ascending.
template <class F>
void walk(const Call& call, const Tile& tile, Heads kv, int64_t first_block, int64_t last_block, F each) {
    const int64_t group = call.group(), padded = call.padded;
    const int64_t first_head = kv.first * group, heads = (kv.last - kv.first) * group;
    float* memory = static_cast<float*>(scratch(2, (tile.rows * heads + 2 * kGrid + 1) * padded * 4));
    float* queries = memory;
    float* copies = queries + tile.rows * heads * padded;
    State part{0.0f, 0.0f, copies + 2 * kGrid * padded};
    for (int64_t r = 0; r < tile.rows; ++r)
        for (int64_t h = 0; h < heads; ++h) {
            const int64_t at = (tile.row + r) * call.q_stride + (first_head + h) * call.width;
            float* to = queries + (r * heads + h) * padded;
            if (call.bf16)
                widen(static_cast<const uint16_t*>(call.q) + at, call.width, to);
            else
                widen(static_cast<const float*>(call.q) + at, call.width, to);
        }
    const auto attend = padded == 64 ? attend_block<4> : padded == 128 ? attend_block<8> : attend_block<0>;
    Block block;
    const int64_t last_row = tile.row + tile.rows - 1;
    for (int64_t b = first_block; b < last_block; ++b) {
        const int64_t first = b * kGrid;
        // Positions ascend within a request: the first row sees the lowest keys, the last row the highest.
        const int64_t low = std::max<int64_t>(0, call.first_key(tile.row) - first);
        const int64_t high = std::min(kGrid, call.positions[last_row] + 1 - first);
        if (low >= high) continue;
        for (int64_t kv_head = kv.first; kv_head < kv.last; ++kv_head) {
            gather(call, tile.request, kv_head, first, low, high, copies, block);
            for (int64_t r = 0; r < tile.rows; ++r) {
                const int64_t row = tile.row + r;
                const int64_t row_low = std::max<int64_t>(0, call.first_key(row) - first);
                const int64_t row_high = std::min(kGrid, call.positions[row] + 1 - first);
                if (row_low >= row_high) continue;
                for (int64_t g = 0; g < group; ++g) {
                    const int64_t head = kv_head * group + g;
                    attend(
                        queries + (r * heads + head - first_head) * padded, block.keys, block.values, row_low, row_high,
                        call, part);
                    each(r, head, b, part);
                }
            }
        }
    }
}

int64_t blocks_of(const Call& call, const Tile& tile) {
    return call.positions[tile.row + tile.rows - 1] / kGrid + 1;
}

State fresh(float* mixed, int64_t padded) {
    std::fill(mixed, mixed + padded, 0.0f);
    return State{-INFINITY, 0.0f, mixed};
}

// How many tasks a tile's heads are cut into: one, or one per key-value head where there are few tasks otherwise.
Heads heads_of(const Call& call, int64_t cut, int64_t index) {
    return cut == 1 ? Heads{0, call.kv_heads} : Heads{index, index + 1};
}
int64_t head_tasks(const Call& call, int64_t others, int64_t threads) {
    return threads > 1 && others < 4 * threads ? call.kv_heads : 1;
}

// Enough tiles for the threads: each merges its blocks as they come.
void attend_tiles(const Call& call, const std::vector<Tile>& tiles, int64_t threads) {
    const int64_t group = call.group(), padded = call.padded, count = static_cast<int64_t>(tiles.size());
    const int64_t cut = head_tasks(call, count, threads);
    parallel(count * cut, threads, [&](int64_t task) {
        const Tile& tile = tiles[task / cut];
        const Heads kv = heads_of(call, cut, task % cut);
        const int64_t first_head = kv.first * group, heads = (kv.last - kv.first) * group;
        std::vector<State> states(tile.rows * heads);
        float* mixed = static_cast<float*>(scratch(3, tile.rows * heads * padded * 4));
        for (int64_t i = 0; i < tile.rows * heads; ++i) states[i] = fresh(mixed + i * padded, padded);
        const int64_t first = call.first_key(tile.row) / kGrid;
        walk(call, tile, kv, first, blocks_of(call, tile), [&](int64_t r, int64_t head, int64_t, const State& part) {
            merge(states[r * heads + head - first_head], part, padded);
        });
        for (int64_t r = 0; r < tile.rows; ++r)
            for (int64_t h = 0; h < heads; ++h) finish(call, tile.row + r, first_head + h, states[r * heads + h]);
    });
}

// Few tiles over long contexts: blocks go to threads in segments, and each row merges the stored partials in the
// same ascending order, so the bits are those of attend_tiles.
void attend_segments(const Call& call, const std::vector<Tile>& tiles, int64_t threads) {
    struct Segment {
        int64_t tile, first, last;
    };
    const int64_t padded = call.padded, record = padded + 2;
    std::vector<Segment> segments;
    std::vector<int64_t> offsets;  // Of each tile's records in `parts`, counted in records.
    int64_t records = 0, rows = 0;
    for (size_t t = 0; t < tiles.size(); ++t) {
        offsets.push_back(records);
        const int64_t blocks = blocks_of(call, tiles[t]);
        records += tiles[t].rows * call.heads * blocks;
        rows += tiles[t].rows;
        for (int64_t b = call.first_key(tiles[t].row) / kGrid; b < blocks; b += kSegment)
            segments.push_back({static_cast<int64_t>(t), b, std::min(b + kSegment, blocks)});
    }
    float* parts = static_cast<float*>(scratch(0, records * record * 4));
    auto part_of = [&](int64_t t, int64_t r, int64_t head, int64_t block) {
        const int64_t blocks = blocks_of(call, tiles[t]);
        return parts + (offsets[t] + (r * call.heads + head) * blocks + block) * record;
    };
    const int64_t count = static_cast<int64_t>(segments.size()), cut = head_tasks(call, count, threads);
    parallel(count * cut, threads, [&](int64_t task) {
        const Segment& s = segments[task / cut];
        walk(call, tiles[s.tile], heads_of(call, cut, task % cut), s.first, s.last,
             [&](int64_t r, int64_t head, int64_t b, const State& part) {
                 float* to = part_of(s.tile, r, head, b);
                 to[0] = part.best;
                 to[1] = part.total;
                 std::copy(part.mixed, part.mixed + padded, to + 2);
             });
    });
    std::vector<std::pair<int64_t, int64_t>> owners;  // (tile, row of the tile)
    for (size_t t = 0; t < tiles.size(); ++t)
        for (int64_t r = 0; r < tiles[t].rows; ++r) owners.push_back({static_cast<int64_t>(t), r});
    parallel(rows * call.heads, threads, [&](int64_t i) {
        const auto [t, r] = owners[i / call.heads];
        const int64_t head = i % call.heads, row = tiles[t].row + r;
        State state = fresh(static_cast<float*>(scratch(3, padded * 4)), padded);
        for (int64_t b = call.first_key(row) / kGrid; b <= call.positions[row] / kGrid; ++b) {
            float* from = part_of(t, r, head, b);
            merge(state, State{from[0], from[1], from + 2}, padded);
        }
        finish(call, row, head, state);
    });
}

}  // namespace
}  // namespace detharness

using namespace detharness;

extern "C" {

// out, q [rows, heads, width] (q rows q_stride elements apart); pages [pages, page_size, kv_heads, width]; request r
// owns rows row_starts[r] ... row_starts[r+1]-1 at ascending positions and row r of tables [requests, table_width].
__attribute__((visibility("default"))) void dh_attention(
    void* out, const void* q, const void* k_pages, const void* v_pages, const int64_t* positions,
    const int64_t* row_starts, const int64_t* tables, int64_t requests, int64_t table_width, int64_t page_size,
    int64_t heads, int64_t kv_heads, int64_t width, int64_t q_stride, float scale, int64_t window, int64_t bf16,
    int64_t kv_bf16, int64_t threads) {
    FloatMode mode;
    const Call call{out,   q,        k_pages, v_pages,  positions, tables, table_width, page_size,
                    heads, kv_heads, width,   q_stride, scale,     window, bf16 != 0,   kv_bf16 != 0,
                    (width + kLanes - 1) / kLanes * kLanes};
    std::vector<Tile> tiles;
    int64_t blocks = 0;
    for (int64_t r = 0; r < requests; ++r)
        for (int64_t row = row_starts[r]; row < row_starts[r + 1]; row += kTileRows) {
            tiles.push_back({r, row, std::min(kTileRows, row_starts[r + 1] - row)});
            blocks = std::max(blocks, blocks_of(call, tiles.back()));
        }
    const int64_t tasks = static_cast<int64_t>(tiles.size()) * kv_heads;
    if (threads > 1 && tasks < 4 * threads && blocks > kSegment)
        attend_segments(call, tiles, threads);
    else
        attend_tiles(call, tiles, threads);
}

}  // extern "C"
