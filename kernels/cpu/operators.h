// The operators that kernels/cpu/kernels.py calls one by one and forward.cpp calls in a row: the same functions, so that
// both give the same bits. Their arguments are explained where they are defined.
#pragma once

#include <cstdint>

extern "C" {

void dh_embedding(
    void* out, int64_t out_bf16, const int64_t* ids, int64_t rows, const void* packed, int64_t w_bf16, int64_t length,
    int64_t leaves, int64_t leaf_length, int64_t threads);
void dh_linear(
    void* out, const void* x, int64_t x_bf16, int64_t stride, const void* packed, int64_t w_bf16, const float* bias,
    int64_t rows, int64_t columns, int64_t length, int64_t leaves, int64_t leaf_length, int64_t threads);
void dh_rms_norm(
    void* out, void* sum, const void* x, const void* residual, const void* weight, int64_t bf16, int64_t weight_bf16,
    int64_t outer, int64_t outer_stride, int64_t inner, int64_t length, int64_t leaves, int64_t leaf_length, float eps,
    int64_t threads);
void dh_rope(
    void* out, const void* x, int64_t bf16, const float* cos, const float* sin, int64_t rows, int64_t stride,
    int64_t heads, int64_t width, int64_t threads);
void dh_write_kv(void* pages, const void* x, const int64_t* slots, int64_t rows, int64_t stride, int64_t bytes);
void dh_attention(
    void* out, const void* q, const void* k_pages, const void* v_pages, const int64_t* positions,
    const int64_t* row_starts, const int64_t* tables, int64_t requests, int64_t table_width, int64_t page_size,
    int64_t heads, int64_t kv_heads, int64_t width, int64_t q_stride, float scale, int64_t window, int64_t bf16,
    int64_t kv_bf16, int64_t threads);
void dh_silu_and_mul(
    void* out, const void* gate_up, int64_t bf16, int64_t rows, int64_t stride, int64_t width, int64_t threads);
void dh_log_softmax(
    float* out, const float* x, int64_t rows, int64_t stride, int64_t length, int64_t leaves, int64_t leaf_length,
    int64_t threads);

}  // extern "C"
