// Runs every operator of kernels/cpu on fixed inputs and prints one hash per case. benchmarks/arm_bits.py builds it for
// several machines and compares what they print.
#include <cstdint>
#include <cstdio>
#include <vector>

extern "C" {
int64_t dh_packed_size(int64_t, int64_t, int64_t, int64_t, int64_t);
void dh_pack(void*, const void*, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
void dh_linear(void*, const void*, int64_t, int64_t, const void*, int64_t, const float*, int64_t, int64_t, int64_t,
               int64_t, int64_t, int64_t);
void dh_rms_norm(void*, void*, const void*, const void*, const void*, int64_t, int64_t, int64_t, int64_t, int64_t,
                 int64_t, int64_t, int64_t, float, int64_t);
void dh_rope(void*, const void*, int64_t, const float*, const float*, int64_t, int64_t, int64_t, int64_t, int64_t);
void dh_silu_and_mul(void*, const void*, int64_t, int64_t, int64_t, int64_t, int64_t);
void dh_log_softmax(float*, const float*, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
void dh_attention(void*, const void*, const void*, const void*, const int64_t*, const int64_t*, const int64_t*, int64_t,
                  int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, float, int64_t, int64_t, int64_t, int64_t);
}

namespace {

uint64_t state = 1;

float next() {  // Uniform in [-4, 4), from the high bits of a linear congruential generator.
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int32_t>(state >> 40)) * 0x1p-21f - 4.0f;
}

// `n` values of four bytes (fp32), or of two (their upper halves: bf16).
std::vector<uint8_t> values(int64_t n, bool bf16) {
    std::vector<uint8_t> bytes;
    for (int64_t i = 0; i < n; ++i) {
        const float value = next();
        const uint8_t* from = reinterpret_cast<const uint8_t*>(&value);
        bytes.insert(bytes.end(), from + (bf16 ? 2 : 0), from + 4);
    }
    return bytes;
}

const float* floats(const std::vector<uint8_t>& bytes) { return reinterpret_cast<const float*>(bytes.data()); }

void show(const char* name, int64_t a, int64_t b, int bf16, const std::vector<uint8_t>& bytes) {
    uint64_t hash = 14695981039346656037u;
    for (uint8_t byte : bytes) hash = (hash ^ byte) * 1099511628211u;
    std::printf("%s %lld %lld %d %016llx\n", name, (long long)a, (long long)b, bf16, (unsigned long long)hash);
}

void tree(int64_t length, int64_t& leaves, int64_t& leaf_length) {  // tree_plan of kernels/contract.py.
    leaves = 8;
    while (leaves > length) leaves /= 2;
    while ((length + leaves - 1) / leaves > 512) leaves *= 2;
    leaf_length = (length + leaves - 1) / leaves;
}

}  // namespace

int main() {
    for (int x16 = 0; x16 < 2; ++x16) {
        const int64_t size = x16 ? 2 : 4;
        int64_t leaves, leaf;
        for (int64_t length : {3, 9, 96, 577, 4608}) {
            tree(length, leaves, leaf);
            for (int w16 = 0; w16 < 2; ++w16)
                for (int64_t rows : {1, 2, 3, 5, 6, 15}) {
                    const int64_t columns = 50;
                    std::vector<uint8_t> packed(dh_packed_size(columns, length, leaves, leaf, w16) * (w16 ? 2 : 4));
                    const auto weights = values(columns * length, w16), x = values(rows * length, x16);
                    const auto bias = values(64, false);
                    dh_pack(packed.data(), weights.data(), columns, 0, length, leaves, leaf, w16);
                    std::vector<uint8_t> out(rows * columns * size);
                    dh_linear(out.data(), x.data(), x16, length, packed.data(), w16, floats(bias), rows, columns, length,
                              leaves, leaf, 2);
                    show(w16 ? "linear.bf16" : "linear.fp32", rows, length, x16, out);
                }
            const auto x = values(3 * length, x16), residual = values(3 * length, x16), weight = values(length, x16);
            std::vector<uint8_t> out(3 * length * size), sum(3 * length * size);
            dh_rms_norm(out.data(), sum.data(), x.data(), residual.data(), weight.data(), x16, x16, 3, length, 1, length,
                        leaves, leaf, 1e-5f, 1);
            show("add_rms_norm", 3, length, x16, out);
            const auto gate_up = values(2 * 2 * length, x16);
            std::vector<uint8_t> gated(2 * length * size);
            dh_silu_and_mul(gated.data(), gate_up.data(), x16, 2, 2 * length, length, 1);
            show("silu_and_mul", 2, length, x16, gated);
        }
        const auto q = values(7 * 3 * 40, x16), cos = values(7 * 20, false), sin = values(7 * 20, false);
        std::vector<uint8_t> rotated(7 * 3 * 40 * size);
        dh_rope(rotated.data(), q.data(), x16, floats(cos), floats(sin), 7, 120, 3, 40, 1);
        show("rope", 7, 40, x16, rotated);
        for (int64_t width : {16, 40, 64, 128})
            for (int64_t window : {0, 50}) {
                const int64_t rows = 90, context = 200, first = context - rows;
                const auto queries = values(rows * 6 * width, x16);
                const auto k = values(context * 2 * width, x16), v = values(context * 2 * width, x16);
                std::vector<int64_t> positions, starts = {0, rows}, table;
                for (int64_t i = 0; i < rows; ++i) positions.push_back(first + i);
                for (int64_t page = 0; page < context / 10; ++page) table.push_back(page * 7 % (context / 10));
                std::vector<uint8_t> out(rows * 6 * width * size);
                dh_attention(out.data(), queries.data(), k.data(), v.data(), positions.data(), starts.data(),
                             table.data(), 1, context / 10, 10, 6, 2, width, 6 * width, 0.05f, window, x16, x16, 2);
                show("attention", width, window, x16, out);
            }
    }
    for (int64_t length : {1, 50, 49152}) {
        int64_t leaves, leaf;
        tree(length, leaves, leaf);
        const auto x = values(2 * length, false);
        std::vector<uint8_t> out(2 * length * 4);
        dh_log_softmax(reinterpret_cast<float*>(out.data()), floats(x), 2, length, length, leaves, leaf, 1);
        show("log_softmax", 2, length, 0, out);
    }
}
