// Operations whose values are independent of each other.

#pragma once

#include "../ops.cuh"

constexpr uint32_t SPAN_THREADS = 256;
// Values of a token that a block computes.
constexpr uint32_t SPAN = 1024;

// A block's part of a token's `len` values. Thread `i` computes values `i`, `i + SPAN_THREADS`, and
// so on. `token` is past the step's tokens if the grid has too many blocks.
struct Span {
    uint32_t token;
    uint32_t begin;
    uint32_t end;
    bool is_used;

    __device__ Span(const Step &step, uint32_t len) {
        uint32_t spans = (len + SPAN - 1) / SPAN;
        uint32_t index = blockIdx.x / spans;
        is_used = index < step.count;
        token = step.first + index;
        uint32_t first = blockIdx.x % spans * SPAN;
        begin = first + threadIdx.x;
        end = is_used ? min(len, first + SPAN) : 0;
    }
};

#define FOR_SPAN(i, span) for (uint32_t i = span.begin; i < span.end; i += SPAN_THREADS)

// A token's features at a level; null for text.
__device__ inline const float *features(const Tables &tables, uint32_t level, uint32_t token) {
    if (tables.features == 0) {
        return nullptr;
    }
    const Address *of_level = at<const Address>(tables.features) + level * tables.feature_stride;
    return at<const float>(of_level[token]);
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS) embed(const Embed p, const Step step) {
    uint32_t width = p.table.cols;
    Span span(step, width);
    if (!span.is_used) {
        return;
    }
    const float *given = features(step.tables, 0, span.token);
    uint32_t id = at<const uint32_t>(step.tables.ids)[span.token];
    uint32_t position = at<const uint32_t>(step.tables.positions)[span.token];
    float *out = at<float>(p.out) + (size_t)span.token * width;
    FOR_SPAN(i, span) {
        float value = not_a_number();
        if (given != nullptr) {
            value = given[i];
        } else if (id < p.table.rows) {
            value = element(p.table, (size_t)id * width + i) * p.scale;
        }
        if (p.positions.values != 0) {
            bool is_known = position < p.positions.rows;
            value += is_known ? element(p.positions, (size_t)position * width + i) : not_a_number();
        }
        out[i] = value;
    }
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS)
    add_embedding(const AddEmbedding p, const Step step) {
    uint32_t width = p.table.cols;
    Span span(step, width);
    if (!span.is_used) {
        return;
    }
    uint32_t id = at<const uint32_t>(step.tables.ids)[span.token];
    id = id == MEDIA_ID ? p.media_id : id;
    float *out = at<float>(p.out) + (size_t)span.token * width;
    FOR_SPAN(i, span) {
        bool is_known = id < p.table.rows;
        float value = is_known ? element(p.table, (size_t)id * width + i) : not_a_number();
        out[i] = (out[i] + value * p.scale) * p.factor;
    }
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS)
    add_features(const AddFeatures p, const Step step) {
    Span span(step, p.width);
    const float *given = span.is_used ? features(step.tables, p.level, span.token) : nullptr;
    if (given == nullptr) {
        return;
    }
    float *out = at<float>(p.out) + (size_t)span.token * p.width;
    FOR_SPAN(i, span) {
        out[i] += given[i];
    }
}

// Sine and cosine within 2e-7. `sincosf` reduces large angles through local memory; a product in
// f64 does without.
__device__ inline void sine_and_cosine(float angle, float *sine, float *cosine) {
    double half_turns = (double)angle * 0.31830988618379067;
    double reduced = half_turns - 2 * rint(half_turns / 2);
    sincospif((float)reduced, sine, cosine);
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS) angles(const Angles p, const Step step) {
    Span span(step, p.pairs);
    size_t row = (size_t)span.token * p.pairs;
    FOR_SPAN(i, span) {
        uint32_t position = at<const uint32_t>(step.tables.positions)[span.token];
        if (p.axes != 0) {
            uint32_t axis = at<const uint32_t>(p.axes)[i];
            position = at<const uint32_t>(step.tables.rope)[3 * (size_t)span.token + axis];
        }
        float sine, cosine;
        float frequency = at<const float>(p.frequencies)[i];
        sine_and_cosine((float)position * frequency, &sine, &cosine);
        at<float>(p.cos)[row + i] = cosine * p.factor;
        at<float>(p.sin)[row + i] = sine * p.factor;
    }
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS) rope(const Rope p, const Step step) {
    Span span(step, p.heads * p.pairs);
    const float *cosines = at<const float>(p.cos) + (size_t)span.token * p.pairs;
    const float *sines = at<const float>(p.sin) + (size_t)span.token * p.pairs;
    FOR_SPAN(i, span) {
        uint32_t head = i / p.pairs;
        uint32_t pair = i % p.pairs;
        float *values =
            at<float>(p.values) + (size_t)span.token * p.stride + (size_t)head * p.head_step;
        float *a = values + (p.interleaved ? 2 * pair : pair);
        float *b = p.interleaved ? a + 1 : a + p.pairs;
        float x = *a, y = *b;
        float cosine = cosines[pair], sine = sines[pair];
        *a = x * cosine - y * sine;
        *b = y * cosine + x * sine;
    }
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS)
    temperature(const Temperature p, const Step step) {
    Span span(step, p.len);
    if (!span.is_used) {
        return;
    }
    uint64_t position = at<const uint32_t>(step.tables.positions)[span.token];
    uint64_t spans = (position + p.offset) / p.span;
    float factor = fmaf(p.beta, log1pf((float)spans), 1.0f);
    float *values = at<float>(p.values) + (size_t)span.token * p.stride;
    FOR_SPAN(i, span) {
        values[i] *= factor;
    }
}

// `x * sigmoid(x)`
__device__ inline float silu_of(float x) {
    return x / (1.0f + expf(-x));
}

__device__ inline float sigmoid_of(float x) {
    return 1.0f / (1.0f + expf(-x));
}

__device__ inline float activated(const Activate &p, float x, float up) {
    switch (p.function) {
    case ACTIVATION_IDENTITY:
        return x * up;
    case ACTIVATION_SILU:
        return silu_of(x) * up;
    case ACTIVATION_GELU:
        // By the complement, since 1 + erf cancels where x is far below zero.
        return 0.5f * x * erfcf(x * -0.70710678f) * up;
    case ACTIVATION_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.7978846f * (x + 0.044715f * x * x * x))) * up;
    case ACTIVATION_QUICK_GELU:
        return x * sigmoid_of(1.702f * x) * up;
    // NaN is not below zero, and stays.
    case ACTIVATION_RELU:
        return (x <= 0 ? 0 : x) * up;
    case ACTIVATION_RELU2:
        return (x <= 0 ? 0 : x * x) * up;
    case ACTIVATION_CLAMPED_SWIGLU: {
        float gate = x > p.limit ? p.limit : x;
        up = up > p.limit ? p.limit : up;
        up = up < -p.limit ? -p.limit : up;
        return gate * sigmoid_of(p.alpha * gate) * (up + 1);
    }
    case ACTIVATION_SIGMOID:
        return sigmoid_of(x) * up;
    }
    return not_a_number();
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS)
    activate(const Activate p, const Step step) {
    Span span(step, p.len);
    const float *gate = at<const float>(p.gate) + (size_t)span.token * p.gate_stride;
    const float *up = at<const float>(p.up) + (size_t)span.token * p.up_stride;
    float *out = at<float>(p.out) + (size_t)span.token * p.out_stride;
    FOR_SPAN(i, span) {
        float factor = p.up == 0 ? 1 : up[p.up_is_scalar ? 0 : i];
        out[i] = activated(p, gate[i] * p.scale, factor);
    }
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS) add(const Add p, const Step step) {
    Span span(step, p.len);
    const float *a = at<const float>(p.a) + (size_t)span.token * p.a_stride;
    const float *b = at<const float>(p.b) + (size_t)span.token * p.b_stride;
    float *out = at<float>(p.out) + (size_t)span.token * p.out_stride;
    FOR_SPAN(i, span) {
        float value = a[i] * p.left;
        out[i] = p.b == 0 ? value : fmaf(b[i], p.right, value);
    }
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS)
    multiply(const Multiply p, const Step step) {
    Span span(step, p.len);
    const float *a = at<const float>(p.a) + (size_t)span.token * p.a_stride;
    const float *b = at<const float>(p.b) + (size_t)span.token * p.b_stride;
    float *out = at<float>(p.out) + (size_t)span.token * p.out_stride;
    FOR_SPAN(i, span) {
        out[i] = a[i] * b[i];
    }
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS) affine(const Affine p, const Step step) {
    Span span(step, p.len);
    float *values = at<float>(p.values) + (size_t)span.token * p.stride;
    FOR_SPAN(i, span) {
        float value = values[i];
        value = p.scale == 0 ? value : value * at<const float>(p.scale)[i];
        values[i] = p.bias == 0 ? value : value + at<const float>(p.bias)[i];
    }
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS) clamp(const Clamp p, const Step step) {
    Span span(step, p.len);
    const float *input = at<const float>(p.input) + (size_t)span.token * p.input_stride;
    float *out = at<float>(p.out) + (size_t)span.token * p.out_stride;
    FOR_SPAN(i, span) {
        float value = input[i];
        value = value < p.min ? p.min : value;
        out[i] = value > p.max ? p.max : value;
    }
}

// `ln(1 + e^x)`
__device__ inline float softplus(float x) {
    return x > 20 ? x : log1pf(expf(x));
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS)
    delta_gates(const DeltaGates p, const Step step) {
    uint32_t decays = p.heads * p.per_head;
    Span span(step, decays);
    float *decay = at<float>(p.decay) + (size_t)span.token * decays;
    float *beta = at<float>(p.beta) + (size_t)span.token * p.heads;
    FOR_SPAN(i, span) {
        float rate = at<const float>(p.rate)[i / p.per_head];
        decay[i] = expf(rate * softplus(decay[i] + at<const float>(p.bias)[i]));
        if (i < p.heads) {
            beta[i] = sigmoid_of(beta[i]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS) gather(const Gather p, const Step step) {
    Span span(step, p.len);
    if (!span.is_used) {
        return;
    }
    Address index = p.index == 0 ? step.tables.emitted : p.index;
    size_t from = at<const uint32_t>(index)[span.token];
    const float *input = at<const float>(p.input) + from * p.input_stride;
    float *out = at<float>(p.out) + (size_t)span.token * p.out_stride;
    FOR_SPAN(i, span) {
        out[i] = input[i];
    }
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS)
    sum_rows(const SumRows p, const Step step) {
    uint32_t width = p.matrix.cols;
    Span span(step, width);
    if (!span.is_used) {
        return;
    }
    const uint32_t *terms = at<const uint32_t>(p.terms) + span.token;
    uint32_t begin = terms[0], end = terms[1];
    const uint32_t *rows = at<const uint32_t>(p.rows);
    const float *weights = at<const float>(p.weights);
    float *out = at<float>(p.out) + (size_t)span.token * p.out_stride;
    FOR_SPAN(i, span) {
        float sum = 0;
        for (uint32_t term = begin; term < end; term++) {
            size_t row = rows[term];
            sum = fmaf(weights[term], element(p.matrix, row * width + i), sum);
        }
        out[i] = p.adds ? out[i] + sum : sum;
    }
}

extern "C" __global__ void __launch_bounds__(SPAN_THREADS)
    copy_parts(const CopyParts p, const Step step) {
    Span span(step, p.parts * p.len);
    const float *input = at<const float>(p.input) + (size_t)span.token * p.input_stride;
    float *out = at<float>(p.out) + (size_t)span.token * p.out_stride;
    FOR_SPAN(i, span) {
        size_t part = i / p.len;
        out[part * p.out_step + i % p.len] = input[part * p.input_step + i % p.len];
    }
}
