// The choice of experts, and the sum of their outputs.

#pragma once

#include "../ops.cuh"
#include "elementwise.cuh"

// A number that orders as floats do, minus zero below zero; NaN is as minus infinity. Above 0.
__device__ inline uint32_t order_of(float value) {
    uint32_t bits = __float_as_uint(value != value ? -INFINITY : value);
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

__device__ inline float value_of(uint32_t order) {
    return __uint_as_float(order >> 31 ? order & 0x7fffffff : ~order);
}

// Excluded from what is left to choose.
constexpr uint32_t TAKEN = 0;

// Chooses the largest of what is left, the lowest index of equal ones, in a warp.
__device__ inline uint32_t take_largest(uint32_t *orders, uint32_t count, uint32_t lane) {
    uint64_t best = 0;
    for (uint32_t i = lane; i < count; i += WARP) {
        uint64_t next = (uint64_t)orders[i] << 32 | (UINT32_MAX - i);
        best = next > best ? next : best;
    }
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        uint64_t other = __shfl_xor_sync(ALL_LANES, best, offset);
        best = other > best ? other : best;
    }
    uint32_t index = UINT32_MAX - (uint32_t)best;
    __syncwarp();
    if (lane == 0) {
        orders[index] = TAKEN;
    }
    __syncwarp();
    return index;
}

// A group's score: its best, or the sum of its two best.
__device__ inline float group_score(const uint32_t *orders, uint32_t size, bool is_of_two) {
    uint32_t best = TAKEN, second = TAKEN;
    for (uint32_t i = 0; i < size; i++) {
        if (orders[i] > best) {
            second = best;
            best = orders[i];
        } else if (orders[i] > second) {
            second = orders[i];
        }
    }
    bool has_two = is_of_two && size > 1;
    return has_two ? value_of(best) + value_of(second) : value_of(best);
}

// Excludes experts outside the best groups.
__device__ inline void
keep_groups(const Route &p, uint32_t *orders, uint32_t *groups, uint32_t lane) {
    uint32_t size = p.count / p.groups;
    for (uint32_t group = lane; group < p.groups; group += WARP) {
        groups[group] = order_of(group_score(orders + group * size, size, p.best_two));
    }
    __syncwarp();
    for (uint32_t i = 0; i < min(p.keep_groups, p.groups); i++) {
        take_largest(groups, p.groups, lane);
    }
    for (uint32_t i = lane; i < size * p.groups; i += WARP) {
        if (groups[i / size] != TAKEN) {
            orders[i] = order_of(-INFINITY);
        }
    }
    __syncwarp();
}

// A warp per token. Shared memory holds `count` orders, then those of groups, then choices.
extern "C" __global__ void __launch_bounds__(WARP) route(const Route p, const Step step) {
    extern __shared__ uint32_t orders[];
    uint32_t *groups = orders + p.count;
    uint32_t *chosen = groups + p.groups;
    if (blockIdx.x >= step.count) {
        return;
    }
    size_t token = step.first + blockIdx.x;
    uint32_t lane = threadIdx.x;
    float *scores = at<float>(p.logits) + token * p.count;
    float max = 0, total = 1;
    if (!p.sigmoid) {
        max = -INFINITY;
        for (uint32_t i = lane; i < p.count; i += WARP) {
            max = fmaxf(max, scores[i]);
        }
        max = warp_max(max);
        float sum = 0;
        for (uint32_t i = lane; i < p.count; i += WARP) {
            sum += expf(scores[i] - max);
        }
        total = warp_sum(sum);
    }
    for (uint32_t i = lane; i < p.count; i += WARP) {
        float score = p.sigmoid ? sigmoid_of(scores[i]) : expf(scores[i] - max) / total;
        scores[i] = score;
        orders[i] = order_of(p.correction == 0 ? score : score + at<const float>(p.correction)[i]);
    }
    __syncthreads();
    if (p.groups > 0) {
        keep_groups(p, orders, groups, lane);
    }
    uint32_t top_k = min(p.top_k, p.count);
    float divisor = 0;
    for (uint32_t i = 0; i < top_k; i++) {
        uint32_t expert = take_largest(orders, p.count, lane);
        divisor += scores[expert];
        if (lane == 0) {
            chosen[i] = expert;
        }
    }
    divisor = p.normalise ? divisor + p.normalise_eps : 1;
    __syncwarp();
    for (uint32_t i = lane; i < top_k; i += WARP) {
        uint32_t expert = chosen[i];
        uint32_t rank = 0;
        for (uint32_t other = 0; other < top_k; other++) {
            rank += chosen[other] < expert;
        }
        float weight = scores[expert] / divisor * p.scale;
        if (p.expert_scale != 0) {
            weight *= at<const float>(p.expert_scale)[expert];
        }
        at<uint32_t>(p.experts)[token * p.top_k + rank] = expert;
        at<float>(p.weights)[token * p.top_k + rank] = weight;
    }
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS)
    combine_experts(const CombineExperts p, const Step step) {
    Span span(step, p.len);
    size_t route = (size_t)span.token * p.top_k;
    const float *input = at<const float>(p.input) + route * p.len;
    const float *weights = at<const float>(p.weights) + route;
    float *out = at<float>(p.out) + (size_t)span.token * p.out_stride;
    FOR_SPAN(i, span) {
        float sum = 0;
        for (uint32_t k = 0; k < p.top_k; k++) {
            sum = fmaf(input[(size_t)k * p.len + i], p.weights == 0 ? 1 : weights[k], sum);
        }
        out[i] = sum;
    }
}
