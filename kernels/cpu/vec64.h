// fp64 lanes: exp and log operation for operation those of kernels/elementary.py, so that both give the same bits.
#pragma once

#include "vec.h"

namespace detharness {

constexpr int kWidth64 = DETHARNESS_VECTOR_BITS / 64;  // Lanes in one register.

typedef double VecD __attribute__((vector_size(DETHARNESS_VECTOR_BITS / 8)));
typedef int64_t VecL __attribute__((vector_size(DETHARNESS_VECTOR_BITS / 8)));
typedef uint64_t VecW __attribute__((vector_size(DETHARNESS_VECTOR_BITS / 8)));

constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33, kLog2E = 0x1.71547652b82fep+0;

DH_INLINE VecD load_wide(const double* p) {
    VecD r;
    std::memcpy(&r, p, sizeof r);
    return r;
}
DH_INLINE void store_wide(double* p, VecD x) { std::memcpy(p, &x, sizeof x); }

// Natural logarithm of 0, normal positives and infinity; negative gives NaN.
DH_INLINE VecD log64(VecD x) {
    const VecL bits = (VecL)x;
    VecD mantissa = (VecD)((bits & 0xFFFFFFFFFFFFF) | (int64_t{1023} << 52));
    const VecL high = mantissa > 1.4142135623730951;  // All ones where true.
    mantissa = high ? mantissa * 0.5 : mantissa;
    const VecD k = __builtin_convertvector(((bits >> 52) & 0x7FF) - 1023 - high, VecD);
    const VecD s = (mantissa - 1.0) / (mantissa + 1.0), square = s * s;
    VecD series = (VecD){} + 2.0 / 27.0;
    DH_UNROLL for (int n = 12; n >= 1; --n) series = series * square + 2.0 / (2 * n + 1);
    VecD result = k * kLn2High + (2.0 * s + (s * (square * series) + k * kLn2Low));
    result = x == 0.0 ? (VecD){} - __builtin_inf() : result;
    result = x == __builtin_inf() ? x : result;
    return x >= 0.0 ? result : (VecD){} + __builtin_nan("");
}

DH_INLINE double log64(double x) { return log64((VecD){} + x)[0]; }

DH_INLINE VecD exp64(VecD x) {
    const VecD magic = (VecD){} + 0x1.8p52;  // Adding it rounds to the nearest even integer.
    VecD clamped = x < -746.0 ? (VecD){} - 746.0 : x;
    clamped = clamped > 711.0 ? (VecD){} + 711.0 : clamped;
    VecD k = (clamped * kLog2E + magic) - magic;
    const VecD r = (x - k * kLn2High) - k * kLn2Low;
    double factorial = 87178291200.0;  // 14!
    VecD poly = (VecD){} + 1.0 / factorial;
    DH_UNROLL for (int n = 14; n > 2; --n) {
        factorial /= n;
        poly = poly * r + 1.0 / factorial;
    }
    const VecD mantissa = (poly * (r * r) + r) + 1.0;
    k = k == k ? k : (VecD){};
    const VecL power = __builtin_convertvector(k, VecL);
    const VecL half = power >> 1;  // Two factors: 2^1024 is not an fp64 although mantissa * 2^1024 may be.
    VecD result = mantissa * (VecD)((half + 1023) << 52) * (VecD)((power - half + 1023) << 52);
    result = x < -708.396418532264 ? (VecD){} : result;
    result = x > 709.782712893384 ? (VecD){} + __builtin_inf() : result;
    return x == x ? result : x;
}

}  // namespace detharness
