// Sampling, rule for rule that of kernels/sampling.py: token = f(logits row, seed, sample index, position).
//
// Noise is keyed by the token id, masks are decided on the order (logit descending, id ascending), sums are fp64 in that
// order. A row is one task, so nothing of its neighbours can reach it. Noise is drawn for the kept ids alone.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "operators.h"
#include "pool.h"
#include "vec64.h"

namespace detharness {
namespace {

struct Key {
    uint64_t seed, sample_index, position;
};

// Philox4x32-10 with counter (token id, position, sample index, 0): the first two words, one id per lane.
DH_INLINE void philox(VecW ids, const Key& key, VecW& w0, VecW& w1) {
    const uint64_t mask = 0xFFFFFFFF;
    uint64_t k0 = key.seed & mask, k1 = key.seed >> 32;
    VecW c0 = ids, c1 = (VecW){} + key.position, c2 = (VecW){} + key.sample_index, c3 = {};
    DH_UNROLL for (int round = 0; round < 10; ++round) {
        const VecW high = c0 * uint64_t{0xD2511F53}, low = c2 * uint64_t{0xCD9E8D57};
        c0 = (low >> 32) ^ c1 ^ k0;
        c1 = low & mask;
        c2 = (high >> 32) ^ c3 ^ k1;
        c3 = high & mask;
        k0 = (k0 + 0x9E3779B9) & mask;
        k1 = (k1 + 0xBB67AE85) & mask;
    }
    w0 = c0, w1 = c1;
}

// Standard Gumbel noise of the ids: -log(-log(u)), u of 53 bits and a half, held below 1.
DH_INLINE VecD gumbel(VecW ids, const Key& key) {
    VecW w0, w1;
    philox(ids, key, w0, w1);
    const VecW bits = ((w0 >> 5) << 26) | (w1 >> 6);
    VecD uniform = (__builtin_convertvector((VecL)bits, VecD) + 0.5) * 0x1p-53;
    const VecD most = (VecD){} + (1.0 - 0x1p-53);
    uniform = uniform < most ? uniform : most;
    return -log64(-log64(uniform));
}

// Ids by (value descending, id ascending): a stable radix sort over 11-bit digits of the logits' own bits.
struct Order {
    std::vector<uint32_t> ids, other;

    static uint32_t descending(float value) {
        if (value == 0.0f) value = 0.0f;  // Both zeros are one value.
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
    }

    void sort(const float* logits, int64_t count) {
        constexpr int kDigit = 11, kBuckets = 1 << kDigit;
        ids.resize(count), other.resize(count);
        for (int64_t i = 0; i < count; ++i) ids[i] = static_cast<uint32_t>(i);
        for (int shift = 0; shift < 32; shift += kDigit) {
            uint32_t starts[kBuckets + 1] = {};
            for (int64_t i = 0; i < count; ++i) ++starts[(descending(logits[i]) >> shift) % kBuckets + 1];
            for (int b = 0; b < kBuckets; ++b) starts[b + 1] += starts[b];
            for (uint32_t id : ids) other[starts[(descending(logits[id]) >> shift) % kBuckets]++] = id;
            ids.swap(other);
        }
    }
};

struct Rules {
    double temperature;
    int64_t top_k;
    double top_p, min_p;
    Key key;
};

class Row {
  public:
    Row(const float* logits, int64_t count) : logits_(logits), count_(count) {}

    // The token drawn; `processed` [count] (null: not wanted) gets the numbers whose log-softmax is the processed row,
    // and `point` says that they are that row already.
    int64_t draw(const Rules& rules, float* processed, bool& point) {
        const int64_t greedy = best_id();
        point = true;
        const double best = logits_[greedy] / rules.temperature;
        if (rules.temperature == 0.0 || !std::isfinite(best)) {
            if (processed) one_point(greedy, processed);
            return greedy;
        }
        point = false;
        keep(rules, best);
        if (processed) {
            std::fill(processed, processed + count_, -INFINITY);
            for (uint32_t id : kept_) processed[id] = static_cast<float>(tempered(id, rules) - best);
        }
        return noisiest(rules);
    }

  private:
    double tempered(int64_t id, const Rules& rules) const { return static_cast<double>(logits_[id]) / rules.temperature; }

    // The first of the largest; a NaN is larger than any number, as numpy's argmax has it.
    int64_t best_id() const {
        const int64_t whole = count_ / kLanes * kLanes;
        F16 top = broadcast(-INFINITY);
        VecI odd = {};
        for (int64_t i = 0; i < whole; i += kLanes) {
            const F16 value = load(logits_ + i);
            top = larger(value, top);
            DH_EACH_PART odd |= value.part[i] != value.part[i];
        }
        float best = max_lanes(top);
        bool defined = true;
        for (int lane = 0; lane < kWidth; ++lane) defined = defined && !odd[lane];
        for (int64_t i = whole; i < count_; ++i) {
            defined = defined && logits_[i] == logits_[i];
            if (logits_[i] > best) best = logits_[i];
        }
        int64_t id = 0;
        while (defined ? logits_[id] != best : logits_[id] == logits_[id]) ++id;
        return id;
    }

    void one_point(int64_t id, float* processed) const {
        const bool defined = logits_[id] == logits_[id];
        std::fill(processed, processed + count_, defined ? -INFINITY : NAN);
        if (defined) processed[id] = 0.0f;
    }

    // exp(tempered - best) of kept_[i...], one register of them.
    VecD weights(size_t i, const Rules& rules, double best) const {
        VecD x = {};
        for (size_t lane = 0; lane < kWidth64 && i + lane < kept_.size(); ++lane)
            x[lane] = tempered(kept_[i + lane], rules) - best;
        return exp64(x);
    }

    void keep(const Rules& rules, double best) {
        const bool some = rules.top_k > 0 && rules.top_k < count_;
        if (some || rules.top_p < 1.0) {
            order_.sort(logits_, count_);
            kept_.assign(order_.ids.begin(), order_.ids.begin() + (some ? rules.top_k : count_));
        } else {
            kept_.resize(count_);
            for (int64_t i = 0; i < count_; ++i) kept_[i] = static_cast<uint32_t>(i);
        }
        if (rules.top_p < 1.0) cut_mass(rules, best);
        if (rules.min_p > 0.0) cut_small(rules, best);
    }

    // An id stays while the mass before it is short of top_p; the first always does.
    void cut_mass(const Rules& rules, double best) {
        running_.resize(kept_.size());
        double sum = 0.0;
        for (size_t i = 0; i < kept_.size(); i += kWidth64) {
            const VecD w = weights(i, rules, best);
            for (size_t lane = 0; lane < kWidth64 && i + lane < kept_.size(); ++lane) {
                sum = i + lane ? sum + w[lane] : w[lane];
                running_[i + lane] = sum;
            }
        }
        size_t stay = 1;
        while (stay < kept_.size() && !(running_[stay - 1] >= rules.top_p * sum)) ++stay;
        kept_.resize(stay);
    }

    void cut_small(const Rules& rules, double best) {
        size_t stay = 0;
        for (size_t i = 0; i < kept_.size(); i += kWidth64) {
            const VecD w = weights(i, rules, best);
            const size_t last = std::min<size_t>(kept_.size(), i + kWidth64);
            for (size_t at = i; at < last; ++at)
                if (w[at - i] >= rules.min_p) kept_[stay++] = kept_[at];
        }
        kept_.resize(stay);
    }

    // The kept id whose tempered logit plus noise is largest; ties go to the lowest id.
    int64_t noisiest(const Rules& rules) const {
        double top = -INFINITY;
        uint32_t token = *std::min_element(kept_.begin(), kept_.end());
        for (size_t i = 0; i < kept_.size(); i += kWidth64) {
            VecW ids = {};
            VecD x = (VecD){} - __builtin_inf();
            for (size_t lane = 0; lane < kWidth64 && i + lane < kept_.size(); ++lane) {
                ids[lane] = kept_[i + lane];
                x[lane] = tempered(kept_[i + lane], rules);
            }
            x = x + gumbel(ids, rules.key);
            for (size_t lane = 0; lane < kWidth64 && i + lane < kept_.size(); ++lane) {
                const uint32_t id = kept_[i + lane];
                if (x[lane] > top || (x[lane] == top && id < token)) top = x[lane], token = id;
            }
        }
        return token;
    }

    const float* logits_;
    const int64_t count_;
    Order order_;
    std::vector<uint32_t> kept_;
    std::vector<double> running_;
};

}  // namespace
}  // namespace detharness

using namespace detharness;

extern "C" {

// Gumbel noise of token ids 0 ... count-1.
__attribute__((visibility("default"))) void dh_gumbel(
    double* out, int64_t seed, int64_t sample_index, int64_t position, int64_t count) {
    FloatMode mode;
    const Key key{static_cast<uint64_t>(seed), static_cast<uint64_t>(sample_index), static_cast<uint64_t>(position)};
    for (int64_t i = 0; i < count; i += kWidth64) {
        VecW ids;
        for (int lane = 0; lane < kWidth64; ++lane) ids[lane] = i + lane;
        const VecD noise = gumbel(ids, key);
        for (int64_t lane = 0; lane < std::min<int64_t>(kWidth64, count - i); ++lane) out[i + lane] = noise[lane];
    }
}

// tokens [rows] and, unless null, processed [rows, vocabulary] from logits (rows `stride` elements apart); ids at or
// above `limit` are never drawn. leaves and leaf_length are the log-softmax plan of `limit` elements.
__attribute__((visibility("default"))) void dh_sample(
    int64_t* tokens, float* processed, const float* logits, int64_t rows, int64_t stride, int64_t vocabulary,
    int64_t limit, const double* temperature, const int64_t* top_k, const double* top_p, const double* min_p,
    const int64_t* seed, const int64_t* sample_index, const int64_t* position, int64_t leaves, int64_t leaf_length,
    int64_t threads) {
    FloatMode mode;
    parallel(rows, threads, [&](int64_t r) {
        const Rules rules{
            temperature[r],
            top_k[r],
            top_p[r],
            min_p[r],
            {static_cast<uint64_t>(seed[r]), static_cast<uint64_t>(sample_index[r]), static_cast<uint64_t>(position[r])}};
        float* row = processed ? processed + r * vocabulary : nullptr;
        bool point;
        tokens[r] = Row(logits + r * stride, limit).draw(rules, row, point);
        if (!row) return;
        if (!point) dh_log_softmax(row, row, 1, limit, limit, leaves, leaf_length, 1);
        std::fill(row + limit, row + vocabulary, -INFINITY);
    });
}

}  // extern "C"
