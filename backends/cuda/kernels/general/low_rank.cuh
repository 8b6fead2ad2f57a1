// Adapters: what they add to products and embeddings.

#pragma once

#include "../ops.cuh"
#include "elementwise.cuh"
#include "linear.cuh"

// The length of an adapted row, of `count` rows. `lengths` is of the row's matrix.
__device__ inline float adapted_length(
    const float *lengths, uint32_t count, uint32_t row, float scale
) {
    const float *own = lengths + row;
    size_t step = count;
    float change = fmaf(scale, own[3 * step], 2.0f * own[2 * step]);
    float square = fmaf(scale, change, own[step]);
    // The smallest normal number: rounding must not make it negative.
    return own[0] / sqrtf(fmaxf(square, 1.17549435e-38f));
}

// Which matrix a part of a token has.
__device__ inline uint32_t part_matrix(
    Address experts, size_t token, uint32_t parts, uint32_t part
) {
    return experts == 0 ? part : at<const uint32_t>(experts)[token * parts + part];
}

constexpr uint32_t LOW_RANK_THREADS = 256;
// Rows that a block computes, each after the inner product of its own.
constexpr uint32_t LOW_RANK_ROWS = 1024;

// A block per token, part and `LOW_RANK_ROWS` rows.
extern "C" __global__ void __launch_bounds__(LOW_RANK_THREADS)
    low_rank(const LowRank p, const Step step) {
    extern __shared__ float inner[];
    uint32_t row_blocks = (p.rows + LOW_RANK_ROWS - 1) / LOW_RANK_ROWS;
    uint32_t index = blockIdx.x / row_blocks / p.parts;
    if (index >= step.count) {
        return;
    }
    uint32_t part = blockIdx.x / row_blocks % p.parts;
    size_t token = step.first + index;
    size_t matrix = part_matrix(p.experts, token, p.parts, part);
    float factor = p.weights == 0 ? 1 : at<const float>(p.weights)[token * p.parts + part];
    const float *input = at<const float>(p.input) + token * p.input_stride
        + (size_t)part * p.input_step;
    const float *a = at<const float>(p.a) + matrix * p.rank * p.cols;
    bool is_a_aligned = is_aligned_to_16((Address)a, p.cols, sizeof(float));
    bool is_input_aligned = is_aligned_to_16((Address)input, 0, sizeof(float));
    for (uint32_t rank = threadIdx.x / WARP; rank < p.rank; rank += LOW_RANK_THREADS / WARP) {
        float sum[1];
        dot_rows<float, 1, 1>(
            a + (size_t)rank * p.cols, 1, p.cols, is_a_aligned, input, 0, 1, is_input_aligned,
            factor, sum
        );
        if (threadIdx.x % WARP == 0) {
            inner[rank] = sum[0];
        }
    }
    __syncthreads();
    uint32_t first = blockIdx.x % row_blocks * LOW_RANK_ROWS;
    uint32_t end = min(p.rows, first + LOW_RANK_ROWS);
    float *out = at<float>(p.out) + token * p.out_stride + (size_t)part * p.out_step;
    const float *lengths = at<const float>(p.lengths) + matrix * 4 * p.rows;
    for (uint32_t row = first + threadIdx.x; row < end; row += LOW_RANK_THREADS) {
        const float *b = at<const float>(p.b) + (matrix * p.rows + row) * p.rank;
        float sum = 0;
        for (uint32_t rank = 0; rank < p.rank; rank++) {
            sum = fmaf(b[rank], inner[rank], sum);
        }
        float scale = p.scale;
        if (p.lengths != 0) {
            scale *= adapted_length(lengths, p.rows, row, p.scale);
        }
        out[row] = fmaf(scale, sum, out[row]);
    }
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS)
    scale_rows(const ScaleRows p, const Step step) {
    Span span(step, p.parts * p.rows);
    float *out = at<float>(p.out) + (size_t)span.token * p.out_stride;
    FOR_SPAN(i, span) {
        uint32_t part = i / p.rows;
        uint32_t row = i % p.rows;
        size_t matrix = part_matrix(p.experts, span.token, p.parts, part);
        float factor = 1;
        for (uint32_t k = 0; k < MAX_ADAPTERS && p.lengths[k] != 0; k++) {
            const float *lengths = at<const float>(p.lengths[k]) + matrix * 4 * p.rows;
            factor += adapted_length(lengths, p.rows, row, p.scales[k]) - 1;
        }
        float bias = p.bias == 0 ? 0 : at<const float>(p.bias)[matrix * p.rows + row];
        float *value = out + (size_t)part * p.out_step + row;
        *value = fmaf(*value - bias, factor, bias);
    }
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS)
    embed_low_rank(const EmbedLowRank p, const Step step) {
    uint32_t width = p.table.cols;
    Span span(step, width);
    if (!span.is_used) {
        return;
    }
    uint32_t id = at<const uint32_t>(step.tables.ids)[span.token];
    if (id >= p.table.rows) {
        return;
    }
    const float *a = at<const float>(p.a);
    const float *b = at<const float>(p.b) + (size_t)id * p.rank;
    float *out = at<float>(p.out) + (size_t)span.token * width;
    FOR_SPAN(i, span) {
        float sum = 0;
        for (uint32_t rank = 0; rank < p.rank; rank++) {
            sum = fmaf(b[rank], a[(size_t)rank * width + i], sum);
        }
        float change = p.scale * sum;
        if (p.lengths != 0) {
            float length = adapted_length(at<const float>(p.lengths), width, i, p.scale);
            float own = element(p.table, (size_t)id * width + i);
            change = fmaf(length - 1, own, length * change);
        }
        out[i] = fmaf(p.factor, change, out[i]);
    }
}
