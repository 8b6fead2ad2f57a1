// Attention in f32, and the cache that it reads.

#pragma once

#include "../ops.cuh"

constexpr uint32_t WRITE_THREADS = 128;

// The page that holds a token's position, and the position's slot in it.
struct Slot {
    uint64_t page;
    uint32_t slot;

    __device__ Slot(const KvRef &kv, const Tables &tables, uint32_t token) {
        uint32_t position = at<const uint32_t>(tables.positions)[token];
        uint32_t row = at<const uint32_t>(tables.token_row)[token];
        PageRun run = at<const PageRun>(tables.page_runs)[kv.group * tables.run_stride + row];
        const uint32_t *pages = at<const uint32_t>(tables.pages) + run.start;
        page = kv.pages + pages[(position - run.first) / PAGE] * kv.page_bytes;
        slot = position % PAGE;
    }
};

// A block per token and head.
template <class E>
__device__ inline void write_kv(const WriteKv &p, const Step &step) {
    const KvRef &kv = p.kv;
    uint32_t index = blockIdx.x / kv.heads;
    uint32_t head = blockIdx.x % kv.heads;
    if (index >= step.count) {
        return;
    }
    uint32_t token = step.first + index;
    Slot slot(kv, step.tables, token);
    size_t key_head = (size_t)head * kv.head_dim;
    const float *key = at<const float>(p.keys) + (size_t)token * p.key_stride + key_head;
    E *keys = at<E>(slot.page + kv.keys) + key_head * PAGE + (size_t)slot.slot * kv.head_dim;
    for (uint32_t i = threadIdx.x; i < kv.head_dim; i += WRITE_THREADS) {
        narrow(key[i], keys + i);
    }
    if (kv.values_in_keys) {
        return;
    }
    size_t value_head = (size_t)head * kv.value_dim;
    const float *value = at<const float>(p.values) + (size_t)token * p.value_stride + value_head;
    E *values = at<E>(slot.page + kv.values) + value_head * PAGE + slot.slot;
    for (uint32_t i = threadIdx.x; i < kv.value_dim; i += WRITE_THREADS) {
        narrow(value[i], values + (size_t)i * PAGE);
    }
}

extern "C" __global__ void __launch_bounds__(WRITE_THREADS)
    write_kv_f32(const WriteKv p, const Step step) {
    write_kv<float>(p, step);
}

extern "C" __global__ void __launch_bounds__(WRITE_THREADS)
    write_kv_bf16(const WriteKv p, const Step step) {
    write_kv<Bf16>(p, step);
}

constexpr uint32_t ATTEND_THREADS = 256;
constexpr uint32_t ATTEND_WARPS = ATTEND_THREADS / WARP;
// Keys, and dimensions of values, that a warp takes at a time.
constexpr uint32_t ATTEND_ROWS = PAGE / ATTEND_WARPS;

// Two of a vector's values; zeros past its end.
template <class E>
__device__ inline float2 load_pair(const E *from, uint32_t index, uint32_t len, bool is_aligned) {
    if (is_aligned && index + 1 < len) {
        return widen_pair(from + index);
    }
    float first = index < len ? widen(from[index]) : 0;
    float second = index + 1 < len ? widen(from[index + 1]) : 0;
    return make_float2(first, second);
}

// Whether `from` and vectors `step` values further can be read in pairs.
template <class E>
__device__ inline bool is_aligned_to_pairs(const E *from, size_t step) {
    return ((size_t)from | step * sizeof(E)) % (2 * sizeof(E)) == 0;
}

// The softmax of one query under way, in a block: up to `PAGE` keys at a time. Every thread has the
// same `max` and `total`.
//
// Shared memory holds the query, padded to whole lanes, and the sums of values under `max`.
struct Softmax {
    float *query;
    float *sums;
    // Scores of the page, alternating, so that the next may begin while warps still read.
    float (*scores)[PAGE];
    // Weights of the page, a copy for each warp.
    float *weights;
    uint32_t head_dim;
    uint32_t value_dim;
    uint32_t buffer;
    float scale;
    float softcap;
    float max;
    float total;

    __device__ Softmax(
        float *memory, const float *from, uint32_t head_dim, uint32_t value_dim, float scale,
        float softcap
    ) :
        head_dim(head_dim),
        value_dim(value_dim),
        buffer(0),
        scale(scale),
        softcap(softcap),
        max(-INFINITY),
        total(0) {
        uint32_t padded = (head_dim + 2 * WARP - 1) / (2 * WARP) * (2 * WARP);
        query = memory;
        scores = reinterpret_cast<float(*)[PAGE]>(memory + padded);
        weights = memory + padded + (2 + threadIdx.x / WARP) * PAGE;
        sums = memory + padded + (2 + ATTEND_WARPS) * PAGE;
        for (uint32_t i = threadIdx.x; i < padded; i += ATTEND_THREADS) {
            query[i] = i < head_dim ? from[i] : 0;
        }
        for (uint32_t i = threadIdx.x; i < value_dim; i += ATTEND_THREADS) {
            sums[i] = 0;
        }
        __syncthreads();
    }

    // Computes the scores of slots `begin` to `end`, whose keys are `key_step` apart, and raises
    // the maximum to theirs. Returns the factor for sums so far. `weight` receives those of the slots
    // `2 * lane` and the next; they are zero outside the range.
    template <class E>
    __device__ float
    weigh(const E *keys, size_t key_step, uint32_t begin, uint32_t end, float2 &weight) {
        uint32_t lane = threadIdx.x % WARP;
        uint32_t first = threadIdx.x / WARP * ATTEND_ROWS;
        bool is_aligned = is_aligned_to_pairs(keys, key_step);
        float dots[ATTEND_ROWS];
#pragma unroll
        for (uint32_t i = 0; i < ATTEND_ROWS; i++) {
            dots[i] = 0;
        }
        if (first < end && first + ATTEND_ROWS > begin) {
            for (uint32_t dim = 2 * lane; dim < head_dim; dim += 2 * WARP) {
                float2 q = *reinterpret_cast<float2 *>(&query[dim]);
#pragma unroll
                for (uint32_t i = 0; i < ATTEND_ROWS; i++) {
                    // Slots outside the range may have no memory.
                    uint32_t slot = min(max_of(first + i, begin), end - 1);
                    float2 k = load_pair(keys + slot * key_step, dim, head_dim, is_aligned);
                    dots[i] = fmaf(q.y, k.y, fmaf(q.x, k.x, dots[i]));
                }
            }
            warp_sums(dots, lane);
        }
        constexpr uint32_t LANES_PER_DOT = WARP / ATTEND_ROWS;
        if (lane % LANES_PER_DOT == 0) {
            float score = dots[0] * scale;
            scores[buffer][first + lane / LANES_PER_DOT] =
                softcap == 0 ? score : tanhf(score / softcap) * softcap;
        }
        __syncthreads();
        float2 score = *reinterpret_cast<float2 *>(&scores[buffer][2 * lane]);
        buffer ^= 1;
        bool sees_first = 2 * lane >= begin && 2 * lane < end;
        bool sees_second = 2 * lane + 1 >= begin && 2 * lane + 1 < end;
        float largest = warp_max(
            fmaxf(sees_first ? score.x : -INFINITY, sees_second ? score.y : -INFINITY)
        );
        largest = fmaxf(max, largest);
        // With all scores at minus infinity, any number serves.
        float base = largest == -INFINITY ? 0 : largest;
        weight.x = sees_first ? expf(score.x - base) : 0;
        weight.y = sees_second ? expf(score.y - base) : 0;
        float factor = expf(max - base);
        total = fmaf(total, factor, warp_sum(weight.x + weight.y));
        max = largest;
        return factor;
    }

    static __device__ uint32_t max_of(uint32_t a, uint32_t b) {
        return a > b ? a : b;
    }

    // Adds a page whose values are `[value_dim][PAGE]`.
    template <class E>
    __device__ void add_page(const E *keys, const E *values, uint32_t begin, uint32_t end) {
        float2 weight;
        float factor = weigh(keys, head_dim, begin, end, weight);
        uint32_t lane = threadIdx.x % WARP;
        bool is_aligned = is_aligned_to_pairs(values, PAGE);
        bool sees_first = 2 * lane >= begin && 2 * lane < end;
        bool sees_second = 2 * lane + 1 >= begin && 2 * lane + 1 < end;
        uint32_t first = threadIdx.x / WARP * ATTEND_ROWS;
        for (; first < value_dim; first += ATTEND_THREADS / WARP * ATTEND_ROWS) {
            float mixed[ATTEND_ROWS];
#pragma unroll
            for (uint32_t i = 0; i < ATTEND_ROWS; i++) {
                size_t dim = min(first + i, value_dim - 1);
                float2 value = load_pair(values + dim * PAGE, 2 * lane, PAGE, is_aligned);
                // What was never written may be NaN.
                value.x = sees_first ? value.x : 0;
                value.y = sees_second ? value.y : 0;
                mixed[i] = fmaf(weight.y, value.y, weight.x * value.x);
            }
            warp_sums(mixed, lane);
            constexpr uint32_t LANES_PER_SUM = WARP / ATTEND_ROWS;
            uint32_t dim = first + lane / LANES_PER_SUM;
            if (lane % LANES_PER_SUM == 0 && dim < value_dim) {
                sums[dim] = fmaf(sums[dim], factor, mixed[0]);
            }
        }
    }

    // Adds slots whose values are vectors `value_step` apart.
    template <class E>
    __device__ void add_rows(
        const E *keys, size_t key_step, const E *values, size_t value_step, uint32_t begin,
        uint32_t end
    ) {
        float2 weight;
        float factor = weigh(keys, key_step, begin, end, weight);
        __syncwarp();
        reinterpret_cast<float2 *>(weights)[threadIdx.x % WARP] = weight;
        __syncwarp();
        bool is_aligned = is_aligned_to_pairs(values, value_step);
        for (uint32_t dim = 2 * threadIdx.x; dim < value_dim; dim += 2 * ATTEND_THREADS) {
            float2 mixed = make_float2(0, 0);
#pragma unroll 4
            for (uint32_t slot = begin; slot < end; slot++) {
                float2 value = load_pair(values + slot * value_step, dim, value_dim, is_aligned);
                mixed.x = fmaf(weights[slot], value.x, mixed.x);
                mixed.y = fmaf(weights[slot], value.y, mixed.y);
            }
            sums[dim] = fmaf(sums[dim], factor, mixed.x);
            if (dim + 1 < value_dim) {
                sums[dim + 1] = fmaf(sums[dim + 1], factor, mixed.y);
            }
        }
    }

    // Adds a score without a value.
    __device__ void add_sink(float score) {
        float largest = fmaxf(max, score);
        float factor = expf(max - largest);
        total = fmaf(total, factor, expf(score - largest));
        max = largest;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < value_dim; i += ATTEND_THREADS) {
            sums[i] *= factor;
        }
    }

    __device__ void finish(float *out) {
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < value_dim; i += ATTEND_THREADS) {
            out[i] = sums[i] / total;
        }
    }
};

extern __shared__ __align__(16) float attend_memory[];

// A block per token and head.
template <class E>
__device__ inline void attend(const Attend &p, const Step &step) {
    const KvRef &kv = p.kv;
    uint32_t index = blockIdx.x / p.heads;
    uint32_t head = blockIdx.x % p.heads;
    if (index >= step.count) {
        return;
    }
    const Tables &tables = step.tables;
    size_t token = step.first + index;
    uint32_t position = at<const uint32_t>(tables.positions)[token];
    uint32_t row = at<const uint32_t>(tables.token_row)[token];
    PageRun run = at<const PageRun>(tables.page_runs)[kv.group * tables.run_stride + row];
    const uint32_t *pages = at<const uint32_t>(tables.pages) + run.start;

    uint32_t begin = 0;
    if (p.reach == REACH_WINDOW) {
        begin = position + 1 > p.reach_len ? position + 1 - p.reach_len : 0;
    } else if (p.reach == REACH_CHUNK) {
        begin = position / p.reach_len * p.reach_len;
    }
    uint32_t end = p.looks_ahead ? at<const uint32_t>(tables.seen_end)[token] : position + 1;

    const float *query = at<const float>(p.query) + token * p.query_stride;
    Softmax softmax(
        attend_memory, query + (size_t)head * kv.head_dim, kv.head_dim, kv.value_dim, p.scale,
        p.softcap
    );
    size_t kv_head = head / (p.heads / kv.heads);
    for (uint32_t first = begin / PAGE * PAGE; first < end; first += PAGE) {
        Address page = kv.pages + pages[(first - run.first) / PAGE] * kv.page_bytes;
        const E *keys = at<const E>(page + kv.keys) + kv_head * PAGE * kv.head_dim;
        uint32_t from = begin > first ? begin - first : 0;
        uint32_t to = min(PAGE, end - first);
        if (kv.values_in_keys) {
            softmax.add_rows(keys, kv.head_dim, keys, kv.head_dim, from, to);
        } else {
            const E *values = at<const E>(page + kv.values) + kv_head * PAGE * kv.value_dim;
            softmax.add_page(keys, values, from, to);
        }
    }
    if (p.sinks != 0) {
        softmax.add_sink(at<const float>(p.sinks)[head]);
    }
    float *out = at<float>(p.out) + token * p.out_stride;
    softmax.finish(out + (size_t)head * kv.value_dim);
}

extern "C" __global__ void __launch_bounds__(ATTEND_THREADS, 2)
    attend_f32(const Attend p, const Step step) {
    attend<float>(p, step);
}

extern "C" __global__ void __launch_bounds__(ATTEND_THREADS, 2)
    attend_bf16(const Attend p, const Step step) {
    attend<Bf16>(p, step);
}

// A block per token and head. Keys are taken in blocks counted from the first, so that the result
// does not depend on where the range begins.
extern "C" __global__ void __launch_bounds__(ATTEND_THREADS, 2)
    attend_dense(const AttendDense p, const Step step) {
    uint32_t index = blockIdx.x / p.heads;
    size_t head = blockIdx.x % p.heads;
    if (index >= step.count) {
        return;
    }
    size_t token = step.first + index;
    uint32_t begin = at<const uint32_t>(p.ranges)[2 * token];
    uint32_t end = at<const uint32_t>(p.ranges)[2 * token + 1];
    size_t offset = head * p.head_dim;
    const float *key = at<const float>(p.key) + offset;
    const float *value = at<const float>(p.value) + offset;
    const float *query = at<const float>(p.query) + token * p.stride + offset;
    Softmax softmax(attend_memory, query, p.head_dim, p.head_dim, p.scale, 0);
    for (uint32_t first = begin; first < end; first += PAGE) {
        size_t from = (size_t)first * p.stride;
        softmax.add_rows(key + from, p.stride, value + from, p.stride, 0, min(PAGE, end - first));
    }
    softmax.finish(at<float>(p.out) + token * p.stride + offset);
}
