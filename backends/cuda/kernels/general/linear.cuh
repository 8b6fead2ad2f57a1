// Matrix products in f32.
//
// All kernels here add up a product of a row and a token in one order, so a token has the same bits
// whichever of them computes it. Lane `l` of a warp multiplies columns `8 l` to `8 l + 7` of each
// chunk of 256, in ascending order; then halves of the lanes are added onto halves. Columns past
// the end count as zeros.

#pragma once

#include "../ops.cuh"

constexpr uint32_t LANE_COLUMNS = 8;
constexpr uint32_t CHUNK = WARP * LANE_COLUMNS;

// One token or a few: a warp per `FEW_ROWS` rows and up to `FEW_TOKENS` tokens.
constexpr uint32_t FEW_THREADS = 128;
constexpr uint32_t FEW_ROWS = 4;
constexpr uint32_t FEW_TOKENS = 8;
constexpr uint32_t FEW_BLOCK_ROWS = FEW_ROWS * FEW_THREADS / WARP;

// Many tokens: a block per 32 rows and 16 tokens, a warp per eight of each.
constexpr uint32_t MANY_THREADS = 256;
constexpr uint32_t MANY_ROWS = 32;
constexpr uint32_t MANY_TOKENS = 16;
constexpr uint32_t EDGE = 8;

// Eight of a row's columns from `column` on.
template <class W>
__device__ inline void load_columns(
    const W *row, uint32_t column, uint32_t cols, bool is_aligned, float (&to)[LANE_COLUMNS]
) {
    if (is_aligned && column + LANE_COLUMNS <= cols) {
        widen_eight(row + column, to);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < LANE_COLUMNS; i++) {
        to[i] = column + i < cols ? widen(row[column + i]) : 0;
    }
}

// Whether all vectors from `address` on, `step` values of `bytes` apart, can be read in pieces of
// 16 bytes.
__device__ inline bool is_aligned_to_16(Address address, uint64_t step, uint32_t bytes) {
    return (address | step * bytes) % 16 == 0;
}

// Adds up `R` rows times `T` vectors of `x`. What is past `rows` and `tokens` repeats the last.
template <class W, int R, int T>
__device__ inline void dot_rows(
    const W *matrix, uint32_t rows, uint32_t cols, bool is_matrix_aligned,
    const float *x, size_t x_stride, uint32_t tokens, bool is_x_aligned,
    float x_factor, float (&sums)[R * T]
) {
    uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < R * T; i++) {
        sums[i] = 0;
    }
#pragma unroll(T == 1 ? 2 : 1)
    for (uint32_t chunk = 0; chunk < cols; chunk += CHUNK) {
        uint32_t column = chunk + lane * LANE_COLUMNS;
        float w[R][LANE_COLUMNS];
#pragma unroll
        for (int r = 0; r < R; r++) {
            size_t row = min((uint32_t)r, rows - 1);
            load_columns(matrix + row * cols, column, cols, is_matrix_aligned, w[r]);
        }
#pragma unroll
        for (int t = 0; t < T; t++) {
            float values[LANE_COLUMNS];
            size_t token = min((uint32_t)t, tokens - 1);
            load_columns(x + token * x_stride, column, cols, is_x_aligned, values);
#pragma unroll
            for (int r = 0; r < R; r++) {
#pragma unroll
                for (int i = 0; i < LANE_COLUMNS; i++) {
                    sums[r * T + t] = fmaf(w[r][i], values[i] * x_factor, sums[r * T + t]);
                }
            }
        }
    }
    warp_sums(sums, lane);
}

// A linear operation's matrix, inputs and outputs for one of its batch.
template <class W>
struct LinearPart {
    const W *matrix;
    const float *input;
    float *out;
    bool is_matrix_aligned;
    bool is_input_aligned;

    __device__ LinearPart(const Linear &p, uint32_t index) {
        size_t size = (size_t)p.matrix.rows * p.matrix.cols;
        matrix = at<const W>(p.matrix.values) + index * size;
        input = at<const float>(p.input) + (size_t)index * p.input_step;
        out = at<float>(p.out) + (size_t)index * p.out_step;
        is_matrix_aligned = is_aligned_to_16((Address)matrix, p.matrix.cols, sizeof(W));
        is_input_aligned = is_aligned_to_16((Address)input, p.input_stride, sizeof(float));
    }

    __device__ void store(const Linear &p, uint32_t row, uint32_t token, float value) const {
        if (p.bias != 0) {
            value += at<const float>(p.bias)[row];
        }
        out[(size_t)token * p.out_stride + row] = value;
    }
};

template <class W, int T>
__device__ inline void few_linear(const Linear &p, const Step &step, const LinearPart<W> &part) {
    constexpr int SUMS = FEW_ROWS * T;
    uint32_t token_blocks = (step.count + T - 1) / T;
    uint32_t index = blockIdx.x % token_blocks * T;
    uint32_t first = blockIdx.x / token_blocks * FEW_BLOCK_ROWS + threadIdx.x / WARP * FEW_ROWS;
    if (first >= p.matrix.rows) {
        return;
    }
    uint32_t rows = min(FEW_ROWS, p.matrix.rows - first);
    uint32_t tokens = min((uint32_t)T, step.count - index);
    uint32_t token = step.first + index;
    float sums[SUMS];
    dot_rows<W, FEW_ROWS, T>(
        part.matrix + (size_t)first * p.matrix.cols, rows, p.matrix.cols, part.is_matrix_aligned,
        part.input + (size_t)token * p.input_stride, p.input_stride, tokens, part.is_input_aligned,
        1, sums
    );
    constexpr uint32_t LANES_PER_SUM = WARP / SUMS;
    uint32_t lane = threadIdx.x % WARP;
    uint32_t sum = lane / LANES_PER_SUM;
    if (lane % LANES_PER_SUM == 0 && sum / T < rows && sum % T < tokens) {
        part.store(p, first + sum / T, token + sum % T, sums[0]);
    }
}

template <class W, int T>
__device__ inline void few_linear(const Linear &p, const Step &step) {
    if (step.count > 0) {
        few_linear<W, T>(p, step, LinearPart<W>(p, blockIdx.z));
    }
}

extern "C" __global__ void __launch_bounds__(FEW_THREADS)
    linear_one_f32(const Linear p, const Step step) {
    few_linear<float, 1>(p, step);
}

extern "C" __global__ void __launch_bounds__(FEW_THREADS)
    linear_one_bf16(const Linear p, const Step step) {
    few_linear<Bf16, 1>(p, step);
}

extern "C" __global__ void __launch_bounds__(FEW_THREADS)
    linear_few_f32(const Linear p, const Step step) {
    few_linear<float, FEW_TOKENS>(p, step);
}

extern "C" __global__ void __launch_bounds__(FEW_THREADS)
    linear_few_bf16(const Linear p, const Step step) {
    few_linear<Bf16, FEW_TOKENS>(p, step);
}

// Where a chunk's column is in shared memory: the first two of each lane's columns, then the next
// two, and so on, so that lanes read adjacent places.
__device__ inline uint32_t staged(uint32_t column) {
    return column % LANE_COLUMNS / 2 * (2 * WARP) + column / LANE_COLUMNS * 2;
}

// Copies a chunk of `COUNT` vectors to shared memory. What is past `vectors`
// and `cols` becomes zeros.
template <uint32_t COUNT, class T>
__device__ inline void stage(
    float (*to)[CHUNK], const T *from, size_t stride, uint32_t vectors, uint32_t chunk,
    uint32_t cols, bool is_aligned
) {
    constexpr uint32_t PIECES = CHUNK / LANE_COLUMNS;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < COUNT * PIECES; i += MANY_THREADS) {
        uint32_t vector = i / PIECES;
        uint32_t offset = i % PIECES * LANE_COLUMNS;
        float values[LANE_COLUMNS];
        uint32_t end = vector < vectors ? cols : 0;
        load_columns(from + vector * stride, chunk + offset, end, is_aligned, values);
#pragma unroll
        for (uint32_t pair = 0; pair < LANE_COLUMNS; pair += 2) {
            float2 *place = reinterpret_cast<float2 *>(&to[vector][staged(offset + pair)]);
            *place = make_float2(values[pair], values[pair + 1]);
        }
    }
}

template <class W>
__device__ inline void many_linear(const Linear &p, const Step &step, const LinearPart<W> &part) {
    __shared__ float weights[MANY_ROWS][CHUNK];
    __shared__ float inputs[MANY_TOKENS][CHUNK];
    uint32_t cols = p.matrix.cols;
    // Neighbouring blocks share their rows, which are then in cache.
    uint32_t token_blocks = (step.count + MANY_TOKENS - 1) / MANY_TOKENS;
    uint32_t index = blockIdx.x % token_blocks * MANY_TOKENS;
    uint32_t first_row = blockIdx.x / token_blocks * MANY_ROWS;
    if (first_row >= p.matrix.rows) {
        return;
    }
    uint32_t rows = min(MANY_ROWS, p.matrix.rows - first_row);
    uint32_t tokens = min(MANY_TOKENS, step.count - index);
    uint32_t first_token = step.first + index;
    const W *matrix = part.matrix + (size_t)first_row * cols;
    const float *input = part.input + (size_t)first_token * p.input_stride;

    uint32_t lane = threadIdx.x % WARP;
    uint32_t warp = threadIdx.x / WARP;
    uint32_t warp_row = warp / (MANY_TOKENS / EDGE) * EDGE;
    uint32_t warp_token = warp % (MANY_TOKENS / EDGE) * EDGE;
    float sums[EDGE * EDGE];
#pragma unroll
    for (uint32_t i = 0; i < EDGE * EDGE; i++) {
        sums[i] = 0;
    }
    for (uint32_t chunk = 0; chunk < cols; chunk += CHUNK) {
        stage<MANY_ROWS>(weights, matrix, cols, rows, chunk, cols, part.is_matrix_aligned);
        stage<MANY_TOKENS>(
            inputs, input, p.input_stride, tokens, chunk, cols, part.is_input_aligned
        );
        __syncthreads();
#pragma unroll 1
        for (uint32_t pair = lane * 2; pair < CHUNK; pair += 2 * WARP) {
            float2 x[EDGE];
#pragma unroll
            for (uint32_t t = 0; t < EDGE; t++) {
                x[t] = *reinterpret_cast<float2 *>(&inputs[warp_token + t][pair]);
            }
#pragma unroll
            for (uint32_t r = 0; r < EDGE; r++) {
                float2 w = *reinterpret_cast<float2 *>(&weights[warp_row + r][pair]);
#pragma unroll
                for (uint32_t t = 0; t < EDGE; t++) {
                    float &sum = sums[r * EDGE + t];
                    sum = fmaf(w.x, x[t].x, sum);
                    sum = fmaf(w.y, x[t].y, sum);
                }
            }
        }
        __syncthreads();
    }
    // A sum per lane at a time, which takes fewer registers than all at once.
#pragma unroll
    for (uint32_t first = 0; first < EDGE * EDGE; first += WARP) {
        float ended[WARP];
#pragma unroll
        for (uint32_t i = 0; i < WARP; i++) {
            ended[i] = sums[first + i];
        }
        warp_sums(ended, lane);
        uint32_t row = warp_row + (first + lane) / EDGE;
        uint32_t token = warp_token + (first + lane) % EDGE;
        if (row < rows && token < tokens) {
            part.store(p, first_row + row, first_token + token, ended[0]);
        }
    }
}

template <class W>
__device__ inline void linear_many(const Linear &p, const Step &step) {
    if (step.count > 0) {
        many_linear(p, step, LinearPart<W>(p, blockIdx.z));
    }
}

extern "C" __global__ void __launch_bounds__(MANY_THREADS, 2)
    linear_many_f32(const Linear p, const Step step) {
    linear_many<float>(p, step);
}

extern "C" __global__ void __launch_bounds__(MANY_THREADS, 2)
    linear_many_bf16(const Linear p, const Step step) {
    linear_many<Bf16>(p, step);
}

// A block per token, choice and `FEW_BLOCK_ROWS` rows.
template <class W>
__device__ inline void expert_linear(const ExpertLinear &p, const Step &step) {
    uint32_t routes = step.count * p.top_k;
    uint32_t first = blockIdx.x / routes * FEW_BLOCK_ROWS + threadIdx.x / WARP * FEW_ROWS;
    if (first >= p.matrix.rows) {
        return;
    }
    uint32_t index = blockIdx.x % routes;
    uint32_t token = step.first + index / p.top_k;
    size_t route = (size_t)token * p.top_k + index % p.top_k;
    uint32_t expert = at<const uint32_t>(p.experts)[route];
    float factor = p.weights == 0 ? 1 : at<const float>(p.weights)[route];
    uint32_t cols = p.matrix.cols;
    const W *matrix = at<const W>(p.matrix.values);
    const float *input = at<const float>(p.input);
    const W *own = matrix + ((size_t)expert * p.matrix.rows + first) * cols;
    uint32_t rows = min(FEW_ROWS, p.matrix.rows - first);
    float sums[FEW_ROWS];
    dot_rows<W, FEW_ROWS, 1>(
        own, rows, cols, is_aligned_to_16((Address)matrix, cols, sizeof(W)),
        input + (p.input_per_route ? route : token) * p.input_stride, 0, 1,
        is_aligned_to_16((Address)input, p.input_stride, sizeof(float)), factor, sums
    );
    uint32_t lane = threadIdx.x % WARP;
    uint32_t row = lane / (WARP / FEW_ROWS);
    if (lane % (WARP / FEW_ROWS) == 0 && row < rows) {
        size_t to = first + row;
        float value = sums[0];
        if (p.bias != 0) {
            value += at<const float>(p.bias)[(size_t)expert * p.matrix.rows + to];
        }
        at<float>(p.out)[route * p.matrix.rows + to] = value;
    }
}

extern "C" __global__ void __launch_bounds__(FEW_THREADS)
    expert_linear_f32(const ExpertLinear p, const Step step) {
    if (step.count > 0) {
        expert_linear<float>(p, step);
    }
}

extern "C" __global__ void __launch_bounds__(FEW_THREADS)
    expert_linear_bf16(const ExpertLinear p, const Step step) {
    if (step.count > 0) {
        expert_linear<Bf16>(p, step);
    }
}
