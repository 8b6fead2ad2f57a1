// From logits to a token.

#pragma once

#include "../ops.cuh"
#include "elementwise.cuh"

constexpr uint32_t LARGEST_THREADS = 1024;

extern "C" __global__ void __launch_bounds__(SPAN_THREADS)
    finish_logits(const FinishLogits p, const Step step) {
    Span span(step, p.vocab);
    float *logits = at<float>(p.logits) + (size_t)span.token * p.vocab;
    FOR_SPAN(i, span) {
        float value = logits[i] * p.scale;
        logits[i] = p.softcap == 0 ? value : tanhf(value / p.softcap) * p.softcap;
    }
}

// The larger of two values, the lower index of equal ones; `NOT_A_NUMBER` wins.
__device__ inline void keep_larger(float &value, uint32_t &index, float other, uint32_t its_index) {
    bool is_equal = other == value && its_index < index;
    bool is_nan = its_index == NOT_A_NUMBER && other != other;
    if (index == NOT_A_NUMBER && value != value) {
        return;
    }
    if (other > value || is_equal || is_nan) {
        value = other;
        index = its_index;
    }
}

// A block per position.
extern "C" __global__ void __launch_bounds__(LARGEST_THREADS)
    largest(const Largest p, const Step step) {
    __shared__ float values[LARGEST_THREADS / WARP];
    __shared__ uint32_t indices[LARGEST_THREADS / WARP];
    if (blockIdx.x >= step.count) {
        return;
    }
    size_t row = step.first + blockIdx.x;
    const float *logits = at<const float>(p.logits) + row * p.vocab;
    // Below every value, of which the first is then taken even if it is minus infinity.
    float value = -INFINITY;
    uint32_t index = NOT_A_NUMBER;
    for (uint32_t i = threadIdx.x; i < p.vocab; i += LARGEST_THREADS) {
        float next = logits[i];
        keep_larger(value, index, next, next != next ? NOT_A_NUMBER : i);
    }
    uint32_t warp = threadIdx.x / WARP;
    uint32_t lane = threadIdx.x % WARP;
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        float other = __shfl_xor_sync(ALL_LANES, value, offset);
        uint32_t its_index = __shfl_xor_sync(ALL_LANES, index, offset);
        keep_larger(value, index, other, its_index);
    }
    if (lane == 0) {
        values[warp] = value;
        indices[warp] = index;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t i = 1; i < LARGEST_THREADS / WARP; i++) {
            keep_larger(value, index, values[i], indices[i]);
        }
        at<uint32_t>(p.out)[row] = index;
    }
}
