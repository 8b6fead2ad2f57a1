// Tokens by the step's draws. `src/draw.rs` says what is drawn, and computes the same numbers.

#pragma once

#include "../ops.cuh"
#include "elementwise.cuh"

constexpr uint32_t DRAW_THREADS = 1024;
// The largest logit's weight is two to the power of this.
constexpr int WEIGHT_BITS = 42;
// Bits of a token's place that one pass finds.
constexpr int DIGIT = 3;
constexpr int BINS = 1 << DIGIT;

// A token's place in the order of draws: larger for likelier tokens, and for the lower one of equal
// ones.
__device__ inline uint64_t place_of(float logit, uint32_t token) {
    uint32_t bits = __float_as_uint(logit);
    uint32_t key = bits & 0x80000000 ? ~bits : bits | 0x80000000;
    return (uint64_t)key << 32 | ~token;
}

__device__ inline float logit_of(uint64_t place) {
    uint32_t key = (uint32_t)(place >> 32);
    return __uint_as_float(key & 0x80000000 ? key & 0x7fffffff : ~key);
}

// As `DrawTable::weight`: the same operations in the same order.
__device__ inline uint64_t draw_weight(float logit, float peak, float scale) {
    float x = __fmul_rn(__fsub_rn(logit, peak), scale);
    if (x < -(float)WEIGHT_BITS) {
        return 0;
    }
    float whole = rintf(x);
    float part = __fsub_rn(x, whole);
    float power = 1.5252734e-5f;
    power = __fmaf_rn(power, part, 1.540353e-4f);
    power = __fmaf_rn(power, part, 1.3333558e-3f);
    power = __fmaf_rn(power, part, 9.618129e-3f);
    power = __fmaf_rn(power, part, 5.550411e-2f);
    power = __fmaf_rn(power, part, 2.402265e-1f);
    power = __fmaf_rn(power, part, 6.931472e-1f);
    power = __fmaf_rn(power, part, 1.0f);
    uint64_t bits = (uint64_t)(power * 16777216.0f);
    int shift = WEIGHT_BITS - 24 + (int)whole;
    return shift >= 0 ? bits << shift : bits >> -shift;
}

// What is summed over tokens.
struct Measure {
    float peak;
    float scale;
    uint64_t min_weight;
    // Each token is one.
    bool counts;

    __device__ uint64_t operator()(float logit) const {
        if (counts) {
            return 1;
        }
        uint64_t weight = draw_weight(logit, peak, scale);
        return weight >= min_weight ? weight : 0;
    }
};

// A position's logits, and what a block finds in them together.
struct Draws {
    const float *logits;
    uint32_t vocab;

    struct Shared {
        unsigned long long sums[BINS];
        uint32_t counts[BINS];
        unsigned long long place;
    };
    Shared &shared;

    // The sum over the tokens from the first place to `last`.
    __device__ uint64_t total(const Measure &measure, uint64_t last) {
        __syncthreads();
        if (threadIdx.x == 0) {
            shared.sums[0] = 0;
        }
        __syncthreads();
        uint64_t sum = 0;
        for (uint32_t i = threadIdx.x; i < vocab; i += DRAW_THREADS) {
            float logit = logits[i];
            if (place_of(logit, i) >= last) {
                sum += measure(logit);
            }
        }
        add_in_block(&shared.sums[0], sum);
        __syncthreads();
        return shared.sums[0];
    }

    // The place of the first token up to which the sum is larger than `target`, which the sum of all
    // tokens up to `last` is. Finds some bits in each pass, and ends when one token is left.
    __device__ uint64_t first_above(const Measure &measure, uint64_t last, uint64_t target) {
        uint64_t found = 0;
        for (int bits = 64; bits > 0;) {
            int digit = bits < DIGIT ? bits : DIGIT;
            int above = bits;
            bits -= digit;
            __syncthreads();
            if (threadIdx.x < BINS) {
                shared.sums[threadIdx.x] = 0;
                shared.counts[threadIdx.x] = 0;
            }
            __syncthreads();
            uint64_t sums[BINS] = {};
            uint32_t counts[BINS] = {};
            for (uint32_t i = threadIdx.x; i < vocab; i += DRAW_THREADS) {
                float logit = logits[i];
                uint64_t place = place_of(logit, i);
                bool matches = above == 64 || place >> above == found >> above;
                if (matches && place >= last) {
                    uint64_t amount = measure(logit);
                    uint32_t bin = (uint32_t)(place >> bits) & (BINS - 1) & ((1u << digit) - 1);
#pragma unroll
                    for (int b = 0; b < BINS; b++) {
                        sums[b] += bin == b ? amount : 0;
                        counts[b] += bin == b;
                    }
                }
            }
#pragma unroll
            for (int b = 0; b < BINS; b++) {
                add_in_block(&shared.sums[b], sums[b]);
                uint32_t count = __reduce_add_sync(ALL_LANES, counts[b]);
                if (threadIdx.x % WARP == 0 && count > 0) {
                    atomicAdd(&shared.counts[b], count);
                }
            }
            __syncthreads();
            // Every thread takes the same way. Likelier tokens are in higher bins.
            int bin = BINS - 1;
            while (bin > 0 && shared.sums[bin] <= target) {
                target -= shared.sums[bin];
                bin--;
            }
            found |= (uint64_t)bin << bits;
            if (shared.counts[bin] == 1) {
                return only(last, found, bits);
            }
        }
        return found;
    }

    // The place of the only token up to `last` whose bits from `bits` on are those of `found`.
    __device__ uint64_t only(uint64_t last, uint64_t found, int bits) {
        for (uint32_t i = threadIdx.x; i < vocab; i += DRAW_THREADS) {
            uint64_t place = place_of(logits[i], i);
            if (place >> bits == found >> bits && place >= last) {
                shared.place = place;
            }
        }
        __syncthreads();
        return shared.place;
    }

    // Sums of whole numbers do not depend on their order.
    __device__ static void add_in_block(unsigned long long *sum, uint64_t value) {
        for (int offset = WARP / 2; offset > 0; offset /= 2) {
            value += __shfl_xor_sync(ALL_LANES, value, offset);
        }
        if (threadIdx.x % WARP == 0 && value > 0) {
            atomicAdd(sum, (unsigned long long)value);
        }
    }
};

// A block per position.
extern "C" __global__ void __launch_bounds__(DRAW_THREADS)
    draw_tokens(const DrawTokens p, const Step step) {
    __shared__ Draws::Shared shared;
    if (blockIdx.x >= step.count) {
        return;
    }
    size_t row = step.first + blockIdx.x;
    const DrawTable table = at<const DrawTable>(step.tables.draws)[row];
    Draws draws = {at<const float>(p.logits) + row * p.vocab, p.vocab, shared};
    uint32_t *out = at<uint32_t>(p.out) + row;
    bool is_greedy = table.scale == 0;

    if (threadIdx.x == 0) {
        shared.place = 0;
    }
    __syncthreads();
    uint64_t first = 0;
    bool is_nan = false;
    for (uint32_t i = threadIdx.x; i < p.vocab; i += DRAW_THREADS) {
        float logit = draws.logits[i];
        is_nan |= logit != logit;
        // Both zeros are equal unless an order is needed.
        uint64_t place = place_of(is_greedy && logit == 0 ? 0.0f : logit, i);
        first = place > first ? place : first;
    }
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        uint64_t other = __shfl_xor_sync(ALL_LANES, first, offset);
        first = other > first ? other : first;
    }
    if (threadIdx.x % WARP == 0) {
        atomicMax(&shared.place, (unsigned long long)first);
    }
    is_nan = __syncthreads_or(is_nan);
    first = shared.place;
    float peak = logit_of(first);
    if (is_nan || is_greedy || !isfinite(peak)) {
        if (threadIdx.x == 0) {
            *out = is_greedy && !is_nan ? ~(uint32_t)first : NOT_A_NUMBER;
        }
        return;
    }

    // Place 0 is after every token's, which all are kept then.
    uint64_t last = 0;
    if (table.top_k > 0 && table.top_k < p.vocab) {
        Measure each = {peak, table.scale, 0, true};
        last = draws.first_above(each, last, table.top_k - 1);
    }
    if (table.top_p > 0) {
        Measure weights = {peak, table.scale, 0, false};
        uint64_t total = draws.total(weights, last);
        uint64_t share = (uint64_t)table.top_p << 32;
        uint64_t mass = __umul64hi(total, share) + (total * share != 0);
        last = draws.first_above(weights, last, mass - 1);
    }
    Measure kept = {peak, table.scale, table.min_weight, false};
    uint64_t total = draws.total(kept, last);
    uint64_t target = __umul64hi(total, (uint64_t)table.unit << 32);
    uint64_t drawn = draws.first_above(kept, last, target);
    if (threadIdx.x == 0) {
        *out = ~(uint32_t)drawn;
    }
}
