// Norms.

#pragma once

#include "../ops.cuh"

constexpr uint32_t NORM_MAX_THREADS = 1024;

// A block per vector. The number of threads depends on the vectors' length only. Not just `norm`,
// which CUDA's headers have.
extern "C" __global__ void __launch_bounds__(NORM_MAX_THREADS)
    norm_vectors(const Norm p, const Step step) {
    __shared__ float scratch[NORM_MAX_THREADS / WARP];
    uint32_t index = blockIdx.x / p.parts;
    uint32_t part = blockIdx.x % p.parts;
    if (index >= step.count) {
        return;
    }
    size_t token = step.first + index;
    const float *input = at<const float>(p.input) + token * p.input_stride + (size_t)part * p.len;
    float *out = at<float>(p.out) + token * p.out_stride + (size_t)part * p.len;
    const float *weight = at<const float>(p.weight) + (size_t)part * p.weight_stride;
    const float *bias = at<const float>(p.bias) + (size_t)part * p.weight_stride;
    bool is_weighted = p.function != NORM_NONE && p.weight != 0;
    bool is_biased = p.function != NORM_NONE && p.bias != 0;

    float mean = 0;
    if (p.function == NORM_LAYER) {
        float sum = 0;
        for (uint32_t i = threadIdx.x; i < p.len; i += blockDim.x) {
            sum = fmaf(input[i], p.before, sum);
        }
        mean = block_sum(sum, scratch) / (float)p.len;
    }
    float scale = 1;
    if (p.function != NORM_NONE) {
        float sum = 0;
        for (uint32_t i = threadIdx.x; i < p.len; i += blockDim.x) {
            float value = fmaf(input[i], p.before, -mean);
            sum = fmaf(value, value, sum);
        }
        sum = block_sum(sum, scratch);
        float square = p.function == NORM_UNIT_LENGTH ? sum : sum / (float)p.len;
        scale = 1.0f / sqrtf(square + p.eps);
    }
    // Each thread writes just the values that it reads, so this may be in place.
    for (uint32_t i = threadIdx.x; i < p.len; i += blockDim.x) {
        float value = fmaf(input[i], p.before, -mean) * scale;
        value = is_weighted ? value * weight[i] : value;
        value = is_biased ? value + bias[i] : value;
        out[i] = value * p.after;
    }
}
