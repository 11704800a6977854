// Sixteen virtual lanes on registers of 128, 256 or 512 bits.
//
// Every kernel is written once, for sixteen lanes, so the order of additions cannot know the width of the registers.
// Only correctly rounded IEEE operations are used, and a multiply and an add are fused only where `fma` is written.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef DETHARNESS_VECTOR_BITS
#error "define DETHARNESS_VECTOR_BITS as 128, 256 or 512"
#endif

#define DH_INLINE static inline __attribute__((always_inline))
#define DH_UNROLL _Pragma("GCC unroll 64")

namespace detharness {

constexpr int kLanes = 16;
constexpr int kWidth = DETHARNESS_VECTOR_BITS / 32;  // Lanes in one register.
constexpr int kParts = kLanes / kWidth;              // Registers that hold sixteen lanes.

typedef float VecF __attribute__((vector_size(DETHARNESS_VECTOR_BITS / 8)));
typedef int32_t VecI __attribute__((vector_size(DETHARNESS_VECTOR_BITS / 8)));
typedef uint32_t VecU __attribute__((vector_size(DETHARNESS_VECTOR_BITS / 8)));
typedef uint16_t VecH __attribute__((vector_size(DETHARNESS_VECTOR_BITS / 16)));

DH_INLINE VecF fma(VecF a, VecF b, VecF c) {
#if DETHARNESS_VECTOR_BITS == 512
    return (VecF)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif DETHARNESS_VECTOR_BITS == 256
    return (VecF)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__x86_64__)
    return (VecF)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
#elif defined(__aarch64__)
    return (VecF)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
#error "no fused multiply-add is known for this machine"
#endif
}

struct F16 {
    VecF part[kParts];
};

#define DH_EACH_PART DH_UNROLL for (int i = 0; i < kParts; ++i)

DH_INLINE F16 broadcast(float value) {
    F16 r;
    DH_EACH_PART r.part[i] = value - (VecF){};  // value - (+0) keeps every value, the sign of zero included.
    return r;
}
DH_INLINE F16 zero() {
    F16 r;
    DH_EACH_PART r.part[i] = (VecF){};
    return r;
}
DH_INLINE F16 load(const float* p) {
    F16 r;
    DH_EACH_PART std::memcpy(&r.part[i], p + i * kWidth, sizeof(VecF));
    return r;
}
DH_INLINE void store(float* p, F16 x) { DH_EACH_PART std::memcpy(p + i * kWidth, &x.part[i], sizeof(VecF)); }

DH_INLINE F16 operator+(F16 a, F16 b) {
    DH_EACH_PART a.part[i] = a.part[i] + b.part[i];
    return a;
}
DH_INLINE F16 operator-(F16 a, F16 b) {
    DH_EACH_PART a.part[i] = a.part[i] - b.part[i];
    return a;
}
DH_INLINE F16 operator*(F16 a, F16 b) {
    DH_EACH_PART a.part[i] = a.part[i] * b.part[i];
    return a;
}
DH_INLINE F16 operator/(F16 a, F16 b) {
    DH_EACH_PART a.part[i] = a.part[i] / b.part[i];
    return a;
}
DH_INLINE F16 fma(F16 a, F16 b, F16 c) {
    DH_EACH_PART c.part[i] = fma(a.part[i], b.part[i], c.part[i]);
    return c;
}
// The larger of the two; b where a is NaN.
DH_INLINE F16 larger(F16 a, F16 b) {
    DH_EACH_PART b.part[i] = a.part[i] > b.part[i] ? a.part[i] : b.part[i];
    return b;
}

// bf16: the upper half of an fp32, rounded to nearest even; every NaN becomes 0x7fc0, as in torch.
DH_INLINE F16 load(const uint16_t* p) {
    F16 r;
    DH_EACH_PART {
        VecH half;
        std::memcpy(&half, p + i * kWidth, sizeof(VecH));
        r.part[i] = (VecF)(__builtin_convertvector(half, VecU) << 16);
    }
    return r;
}
DH_INLINE void store(uint16_t* p, F16 x) {
    DH_EACH_PART {
        VecU bits = (VecU)x.part[i];
        VecU rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        rounded = x.part[i] == x.part[i] ? rounded : (VecU){} + 0x7fc0u;
        VecH half = __builtin_convertvector(rounded, VecH);
        std::memcpy(p + i * kWidth, &half, sizeof(VecH));
    }
}

// The first n lanes (n below 16); the others are +0 and memory behind them is not touched.
template <class T>
DH_INLINE F16 load_first(const T* p, int64_t n) {
    T lanes[kLanes] = {};
    std::memcpy(lanes, p, n * sizeof(T));
    return load(lanes);
}
template <class T>
DH_INLINE void store_first(T* p, F16 x, int64_t n) {
    T lanes[kLanes];
    store(lanes, x);
    std::memcpy(p, lanes, n * sizeof(T));
}

// Lane i of the result is lane i + half of x, for the lower lanes.
template <int half, int... I>
DH_INLINE VecF rotate_lanes(VecF x, std::integer_sequence<int, I...>) {
    return __builtin_shuffle(x, VecI{((I + half) % kWidth)...});
}
template <int half>
DH_INLINE VecF upper_lanes(VecF x) {
    return rotate_lanes<half>(x, std::make_integer_sequence<int, kWidth>{});
}

// Combines the lanes by halving: lane i with lane i+8, then i+4, i+2, i+1.
template <class F>
DH_INLINE VecF fold_parts(F16 x, F combine) {
    DH_UNROLL for (int half = kParts / 2; half > 0; half /= 2)
        DH_UNROLL for (int i = 0; i < half; ++i) x.part[i] = combine(x.part[i], x.part[i + half]);
    return x.part[0];
}
template <class F>
DH_INLINE float fold_lanes(F16 x, F combine) {
    VecF v = fold_parts(x, combine);
    if constexpr (kWidth > 8) v = combine(v, upper_lanes<8>(v));
    if constexpr (kWidth > 4) v = combine(v, upper_lanes<4>(v));
    v = combine(v, upper_lanes<2>(v));
    v = combine(v, upper_lanes<1>(v));
    return v[0];
}
DH_INLINE VecF sum_parts(F16 x) {
    return fold_parts(x, [](VecF a, VecF b) { return a + b; });
}
DH_INLINE float sum_lanes(F16 x) {
    return fold_lanes(x, [](VecF a, VecF b) { return a + b; });
}
DH_INLINE float max_lanes(F16 x) {
    return fold_lanes(x, [](VecF a, VecF b) { return a > b ? a : b; });
}

// exp, operation for operation that of kernels/elementary.py (exp32), so that both give the same bits.
DH_INLINE VecF exp32(VecF x) {
    const VecF magic = (VecF){} + 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest even integer.
    VecF clamped = x < -104.0f ? (VecF){} - 104.0f : x;
    clamped = clamped > 89.0f ? (VecF){} + 89.0f : clamped;
    VecF k = (clamped * 0x1.715476p+0f + magic) - magic;
    VecF r = (x - k * 0x1.63p-1f) - k * -0x1.bd0106p-13f;
    VecF poly = (VecF){} + 1.0f / 40320.0f;
    poly = poly * r + 1.0f / 5040.0f;
    poly = poly * r + 1.0f / 720.0f;
    poly = poly * r + 1.0f / 120.0f;
    poly = poly * r + 1.0f / 24.0f;
    poly = poly * r + 1.0f / 6.0f;
    poly = poly * r + 0.5f;
    VecF mantissa = (poly * (r * r) + r) + 1.0f;
    k = k == k ? k : (VecF){};
    VecI power = __builtin_convertvector(k, VecI);
    VecI half = power >> 1;  // Two factors, because 2^128 is not an fp32 although mantissa * 2^128 may be.
    VecF result = mantissa * (VecF)((half + 127) << 23) * (VecF)((power - half + 127) << 23);
    result = x < -87.33654f ? (VecF){} : result;
    result = x > 88.722839f ? (VecF){} + __builtin_inff() : result;
    return x == x ? result : x;
}
DH_INLINE F16 exp32(F16 x) {
    DH_EACH_PART x.part[i] = exp32(x.part[i]);
    return x;
}

}  // namespace detharness
