// One step's rows through the whole decoder in one call.
//
// It adds no arithmetic: it calls the operators in the order of detharness/engine/decoder.py, so the bits are those of
// calling them one by one from Python. What it saves is the time between them, in which memory would stand idle.
#include <cstdint>
#include <cstring>
#include <utility>

#include "operators.h"
#include "pool.h"

extern "C" {

// Mirrors of the ctypes structures in kernels/cpu/fused.py.
struct DhLinear {
    const void* data;
    const float* bias;
    int64_t bf16, columns, length, leaves, leaf_length;
};

struct DhNorm {
    const void* weight;  // Null: no norm here.
    int64_t bf16, length, leaves, leaf_length;
};

struct DhLayer {
    DhNorm input_norm, q_norm, k_norm, mlp_norm;
    DhLinear qkv, output, gate_up, down;
    int64_t window;
};

struct DhDecoder {
    DhLinear table, head;
    DhNorm final_norm;
    int64_t layers, heads, kv_heads, width, bf16;
    float eps, scale;
};

struct DhStep {
    const int64_t *token_ids, *positions, *slots, *row_starts, *tables, *logit_rows;
    const float *cos, *sin;
    int64_t rows, requests, table_width, page_size, logit_count, threads;
};

}  // extern "C"

namespace detharness {
namespace {

constexpr int64_t kAlign = 64;

struct Widths {
    int64_t hidden, query, key, qkv, both, inner;

    explicit Widths(const DhDecoder& d, const DhLayer& layer)
        : hidden(d.table.length),
          query(d.heads * d.width),
          key(d.kv_heads * d.width),
          qkv(layer.qkv.columns),
          both(layer.gate_up.columns),
          inner(layer.gate_up.columns / 2) {}
};

// Hands out pieces of one workspace; run without memory, it only counts.
class Pieces {
  public:
    explicit Pieces(char* memory) : memory_(memory) {}
    void* take(int64_t bytes) {
        char* piece = memory_ ? memory_ + used_ : nullptr;
        used_ += (bytes + kAlign - 1) / kAlign * kAlign;
        return piece;
    }
    int64_t used() const { return used_; }

  private:
    char* memory_;
    int64_t used_ = 0;
};

struct Buffers {
    void *residual, *next_residual, *hidden, *wide, *query, *key, *mixed, *inner, *last;

    Buffers(Pieces& pieces, const Widths& w, int64_t rows, int64_t logit_count, int64_t size) {
        residual = pieces.take(rows * w.hidden * size);
        next_residual = pieces.take(rows * w.hidden * size);
        hidden = pieces.take(rows * w.hidden * size);
        wide = pieces.take(rows * (w.qkv > w.both ? w.qkv : w.both) * size);
        query = pieces.take(rows * w.query * size);
        key = pieces.take(rows * w.key * size);
        mixed = pieces.take(rows * w.query * size);
        inner = pieces.take(rows * w.inner * size);
        last = pieces.take(logit_count * w.hidden * size);
    }
};

class Forward {
  public:
    Forward(const DhDecoder& decoder, const DhStep& step, const Widths& widths, const Buffers& buffers)
        : d_(decoder), s_(step), w_(widths), b_(buffers), size_(decoder.bf16 ? 2 : 4) {}

    void run(const DhLayer* layers, void* const* keys, void* const* values, void* logits) {
        dh_embedding(
            b_.residual, d_.bf16, s_.token_ids, s_.rows, d_.table.data, d_.table.bf16, d_.table.length,
            d_.table.leaves, d_.table.leaf_length, s_.threads);
        norm(layers[0].input_norm, b_.hidden, b_.residual, w_.hidden, 1);
        for (int64_t i = 0; i < d_.layers; ++i) {
            attend(layers[i], keys[i], values[i]);
            add_norm(layers[i].mlp_norm);
            linear(layers[i].gate_up, b_.wide, b_.hidden, s_.rows, w_.hidden);
            dh_silu_and_mul(b_.inner, b_.wide, d_.bf16, s_.rows, w_.both, w_.inner, s_.threads);
            linear(layers[i].down, b_.hidden, b_.inner, s_.rows, w_.inner);
            add_norm(i + 1 == d_.layers ? d_.final_norm : layers[i + 1].input_norm);
        }
        const int64_t row_bytes = w_.hidden * size_;
        for (int64_t i = 0; i < s_.logit_count; ++i)
            std::memcpy(at(b_.last, i * w_.hidden), at(b_.hidden, s_.logit_rows[i] * w_.hidden), row_bytes);
        linear(d_.head, logits, b_.last, s_.logit_count, w_.hidden);
    }

  private:
    char* at(void* buffer, int64_t elements) const { return static_cast<char*>(buffer) + elements * size_; }

    void linear(const DhLinear& l, void* out, const void* x, int64_t rows, int64_t stride) const {
        dh_linear(
            out, x, d_.bf16, stride, l.data, l.bf16, l.bias, rows, l.columns, l.length, l.leaves, l.leaf_length,
            s_.threads);
    }

    void norm(const DhNorm& n, void* out, const void* x, int64_t stride, int64_t inner) const {
        dh_rms_norm(
            out, out, x, nullptr, n.weight, d_.bf16, n.bf16, s_.rows, stride, inner, n.length, n.leaves, n.leaf_length,
            d_.eps, s_.threads);
    }

    // residual = hidden + residual, hidden = norm(residual)
    void add_norm(const DhNorm& n) {
        dh_rms_norm(
            b_.hidden, b_.next_residual, b_.hidden, b_.residual, n.weight, d_.bf16, n.bf16, s_.rows, w_.hidden, 1,
            n.length, n.leaves, n.leaf_length, d_.eps, s_.threads);
        std::swap(b_.residual, b_.next_residual);
    }

    // Normed and rotated heads of the packed projection, dense in `out`.
    void rotated(const DhNorm& n, void* out, const void* x, int64_t stride, int64_t heads) const {
        if (n.weight) {
            norm(n, out, x, stride, heads);
            x = out, stride = heads * d_.width;  // Each element is read before it is written: in place.
        }
        dh_rope(out, x, d_.bf16, s_.cos, s_.sin, s_.rows, stride, heads, d_.width, s_.threads);
    }

    void attend(const DhLayer& layer, void* k_pages, void* v_pages) const {
        linear(layer.qkv, b_.wide, b_.hidden, s_.rows, w_.hidden);
        rotated(layer.q_norm, b_.query, b_.wide, w_.qkv, d_.heads);
        rotated(layer.k_norm, b_.key, at(b_.wide, w_.query), w_.qkv, d_.kv_heads);
        const int64_t bytes = w_.key * size_;
        dh_write_kv(k_pages, b_.key, s_.slots, s_.rows, bytes, bytes);
        dh_write_kv(v_pages, at(b_.wide, w_.query + w_.key), s_.slots, s_.rows, w_.qkv * size_, bytes);
        dh_attention(
            b_.mixed, b_.query, k_pages, v_pages, s_.positions, s_.row_starts, s_.tables, s_.requests, s_.table_width,
            s_.page_size, d_.heads, d_.kv_heads, d_.width, w_.query, d_.scale, layer.window, d_.bf16, d_.bf16,
            s_.threads);
        linear(layer.output, b_.hidden, b_.mixed, s_.rows, w_.query);
    }

    const DhDecoder& d_;
    const DhStep& s_;
    const Widths w_;
    Buffers b_;
    const int64_t size_;
};

}  // namespace
}  // namespace detharness

using namespace detharness;

extern "C" {

// Bytes of workspace that dh_forward needs for `rows` rows, `logit_count` of which give logits.
__attribute__((visibility("default"))) int64_t dh_forward_workspace(
    const DhDecoder* decoder, const DhLayer* layers, int64_t rows, int64_t logit_count) {
    Pieces pieces(nullptr);
    Buffers(pieces, Widths(*decoder, layers[0]), rows, logit_count, decoder->bf16 ? 2 : 4);
    return pieces.used();
}

// logits [logit_count, vocabulary] in the activations' dtype; keys and values are one page buffer per layer.
__attribute__((visibility("default"))) void dh_forward(
    void* logits, const DhDecoder* decoder, const DhLayer* layers, const DhStep* step, void* const* keys,
    void* const* values, void* workspace) {
    FloatMode mode;
    Pieces pieces(static_cast<char*>(workspace));
    const Widths widths(*decoder, layers[0]);
    const Buffers buffers(pieces, widths, step->rows, step->logit_count, decoder->bf16 ? 2 : 4);
    Forward(*decoder, *step, widths, buffers).run(layers, keys, values, logits);
}

}  // extern "C"
