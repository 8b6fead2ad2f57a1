// The parameter structs of `src/ops.rs` as kernels receive them, and what kernels share. A test of
// `src/launch.rs` holds the sizes stated here to those of the Rust structs.

#pragma once

#include <cstddef>
#include <cstdint>

// A place in the device's memory; 0: none.
typedef uint64_t Address;

// Launches may follow each other within one grid's lifetime, so memory that any kernel writes is
// read by plain loads: no `__restrict__`, no `__ldg`.
template <class T>
__device__ inline T *at(Address address) {
    return reinterpret_cast<T *>(address);
}

// Tokens of a page of keys and values.
constexpr uint32_t PAGE = 64;
// The id of positions that have features instead.
constexpr uint32_t MEDIA_ID = UINT32_MAX;
// What `largest` could not choose.
constexpr uint32_t NOT_A_NUMBER = UINT32_MAX;

struct Tables {
    Address ids;
    Address positions;
    Address rope;
    Address seen_end;
    Address token_row;
    Address features;
    uint64_t feature_stride;
    Address rows;
    Address snapshots;
    Address page_runs;
    uint64_t run_stride;
    Address pages;
    Address emitted;
    Address draws;
};

struct Step {
    uint32_t first;
    uint32_t count;
    uint32_t rows;
    uint32_t reserved;
    Tables tables;
};

struct RowTable {
    uint32_t first;
    uint32_t tokens;
    uint32_t first_snapshot;
    uint32_t snapshots;
    Address before;
    Address after;
};

struct StateCopy {
    uint32_t tokens;
    uint32_t reserved;
    Address to;
};

struct PageRun {
    uint32_t start;
    uint32_t first;
};

struct DrawTable {
    float scale;
    uint32_t top_k;
    uint32_t top_p;
    uint32_t unit;
    uint64_t min_weight;
};

enum Format : uint32_t { FORMAT_F32 = 0, FORMAT_BF16 = 1 };

struct MatrixRef {
    Address values;
    uint32_t rows;
    uint32_t cols;
    Format format;
    uint32_t reserved;
};

struct KvRef {
    Address pages;
    uint64_t page_bytes;
    uint64_t keys;
    uint64_t values;
    uint32_t group;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t value_dim;
    Format format;
    uint32_t values_in_keys;
};

struct Embed {
    Address out;
    MatrixRef table;
    MatrixRef positions;
    float scale;
    uint32_t reserved;
};

struct AddEmbedding {
    Address out;
    MatrixRef table;
    uint32_t media_id;
    float scale;
    float factor;
    uint32_t reserved;
};

struct AddFeatures {
    Address out;
    uint32_t width;
    uint32_t level;
};

enum NormFunction : uint32_t { NORM_NONE = 0, NORM_RMS = 1, NORM_LAYER = 2, NORM_UNIT_LENGTH = 3 };

struct Norm {
    Address input;
    Address out;
    uint32_t input_stride;
    uint32_t out_stride;
    uint32_t parts;
    uint32_t len;
    Address weight;
    Address bias;
    uint32_t weight_stride;
    NormFunction function;
    float eps;
    float before;
    float after;
    uint32_t reserved;
};

struct Linear {
    MatrixRef matrix;
    Address input;
    Address out;
    Address bias;
    uint32_t input_stride;
    uint32_t out_stride;
    uint32_t batch;
    uint32_t input_step;
    uint32_t out_step;
    uint32_t reserved;
};

struct LowRank {
    Address a;
    Address b;
    Address lengths;
    Address input;
    Address out;
    Address experts;
    Address weights;
    uint32_t rows;
    uint32_t cols;
    uint32_t rank;
    uint32_t parts;
    uint32_t input_stride;
    uint32_t input_step;
    uint32_t out_stride;
    uint32_t out_step;
    float scale;
    uint32_t reserved;
};

constexpr uint32_t MAX_ADAPTERS = 8;

struct ScaleRows {
    Address out;
    Address bias;
    Address experts;
    Address lengths[MAX_ADAPTERS];
    float scales[MAX_ADAPTERS];
    uint32_t rows;
    uint32_t parts;
    uint32_t out_stride;
    uint32_t out_step;
};

struct EmbedLowRank {
    Address out;
    MatrixRef table;
    Address a;
    Address b;
    Address lengths;
    uint32_t rank;
    float scale;
    float factor;
    uint32_t reserved;
};

struct Angles {
    Address cos;
    Address sin;
    Address frequencies;
    Address axes;
    uint32_t pairs;
    float factor;
};

struct Rope {
    Address values;
    Address cos;
    Address sin;
    uint32_t stride;
    uint32_t heads;
    uint32_t head_step;
    uint32_t pairs;
    uint32_t interleaved;
    uint32_t reserved;
};

struct Temperature {
    Address values;
    uint32_t stride;
    uint32_t len;
    float beta;
    uint32_t span;
    uint32_t offset;
    uint32_t reserved;
};

struct WriteKv {
    KvRef kv;
    Address keys;
    Address values;
    uint32_t key_stride;
    uint32_t value_stride;
};

enum ReachKind : uint32_t { REACH_ALL = 0, REACH_WINDOW = 1, REACH_CHUNK = 2 };

struct Attend {
    KvRef kv;
    Address query;
    Address out;
    uint32_t query_stride;
    uint32_t out_stride;
    uint32_t heads;
    ReachKind reach;
    uint32_t reach_len;
    uint32_t looks_ahead;
    float scale;
    float softcap;
    Address sinks;
};

struct AttendDense {
    Address query;
    Address key;
    Address value;
    Address out;
    Address ranges;
    uint32_t stride;
    uint32_t heads;
    uint32_t head_dim;
    float scale;
};

enum ActivationFunction : uint32_t {
    ACTIVATION_IDENTITY = 0,
    ACTIVATION_SILU = 1,
    ACTIVATION_GELU = 2,
    ACTIVATION_GELU_TANH = 3,
    ACTIVATION_QUICK_GELU = 4,
    ACTIVATION_RELU = 5,
    ACTIVATION_RELU2 = 6,
    ACTIVATION_CLAMPED_SWIGLU = 7,
    ACTIVATION_SIGMOID = 8,
};

struct Activate {
    Address gate;
    Address up;
    Address out;
    uint32_t gate_stride;
    uint32_t up_stride;
    uint32_t out_stride;
    uint32_t len;
    ActivationFunction function;
    float scale;
    float alpha;
    float limit;
    uint32_t up_is_scalar;
    uint32_t reserved;
};

struct Add {
    Address a;
    Address b;
    Address out;
    uint32_t a_stride;
    uint32_t b_stride;
    uint32_t out_stride;
    uint32_t len;
    float left;
    float right;
};

struct Multiply {
    Address a;
    Address b;
    Address out;
    uint32_t a_stride;
    uint32_t b_stride;
    uint32_t out_stride;
    uint32_t len;
};

struct Affine {
    Address values;
    Address scale;
    Address bias;
    uint32_t stride;
    uint32_t len;
};

struct Clamp {
    Address input;
    Address out;
    uint32_t input_stride;
    uint32_t out_stride;
    uint32_t len;
    float min;
    float max;
    uint32_t reserved;
};

struct Convolve {
    Address values;
    Address weights;
    Address bias;
    uint32_t stride;
    uint32_t channels;
    uint32_t kernel;
    uint32_t state;
    uint32_t silu;
    uint32_t reserved;
};

struct DeltaGates {
    Address decay;
    Address beta;
    Address bias;
    Address rate;
    uint32_t heads;
    uint32_t per_head;
};

struct DeltaUpdate {
    Address query;
    Address key;
    Address value;
    Address out;
    Address decay;
    Address beta;
    uint32_t key_heads;
    uint32_t value_heads;
    uint32_t key_dim;
    uint32_t value_dim;
    uint32_t per_head;
    uint32_t state;
    uint32_t strided;
    uint32_t reserved;
};

struct MambaUpdate {
    Address projected;
    Address out;
    Address step_bias;
    Address rate;
    Address skip;
    uint32_t width;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t groups;
    uint32_t state_len;
    uint32_t state;
    float min_step;
    float max_step;
};

struct Route {
    Address logits;
    Address correction;
    Address expert_scale;
    Address experts;
    Address weights;
    uint32_t count;
    uint32_t top_k;
    uint32_t sigmoid;
    uint32_t groups;
    uint32_t keep_groups;
    uint32_t best_two;
    uint32_t normalise;
    float normalise_eps;
    float scale;
    uint32_t reserved;
};

struct ExpertLinear {
    MatrixRef matrix;
    Address input;
    Address out;
    Address bias;
    Address experts;
    Address weights;
    uint32_t input_stride;
    uint32_t top_k;
    uint32_t input_per_route;
    uint32_t reserved;
};

struct CombineExperts {
    Address input;
    Address out;
    Address weights;
    uint32_t out_stride;
    uint32_t len;
    uint32_t top_k;
    uint32_t reserved;
};

struct Gather {
    Address input;
    Address out;
    Address index;
    uint32_t input_stride;
    uint32_t out_stride;
    uint32_t len;
    uint32_t reserved;
};

struct SumRows {
    MatrixRef matrix;
    Address out;
    Address terms;
    Address rows;
    Address weights;
    uint32_t out_stride;
    uint32_t adds;
};

struct CopyParts {
    Address input;
    Address out;
    uint32_t input_stride;
    uint32_t out_stride;
    uint32_t parts;
    uint32_t input_step;
    uint32_t out_step;
    uint32_t len;
};

struct FinishLogits {
    Address logits;
    uint32_t vocab;
    float scale;
    float softcap;
    uint32_t reserved;
};

struct Largest {
    Address logits;
    Address out;
    uint32_t vocab;
    uint32_t reserved;
};

struct DrawTokens {
    Address logits;
    Address out;
    uint32_t vocab;
    uint32_t reserved;
};

#define SIZE(name, bytes) static_assert(sizeof(name) == bytes, #name)
#define OFFSET(name, field, bytes) static_assert(offsetof(name, field) == bytes, #name "." #field)

SIZE(Tables, 112);
SIZE(Step, 128);
SIZE(RowTable, 32);
SIZE(StateCopy, 16);
SIZE(PageRun, 8);
SIZE(DrawTable, 24);
SIZE(MatrixRef, 24);
SIZE(KvRef, 56);
SIZE(Embed, 64);
SIZE(AddEmbedding, 48);
SIZE(AddFeatures, 16);
SIZE(Norm, 72);
SIZE(Linear, 72);
SIZE(LowRank, 96);
SIZE(ScaleRows, 136);
SIZE(EmbedLowRank, 72);
SIZE(Angles, 40);
SIZE(Rope, 48);
SIZE(Temperature, 32);
SIZE(WriteKv, 80);
SIZE(Attend, 112);
SIZE(AttendDense, 56);
SIZE(Activate, 64);
SIZE(Add, 48);
SIZE(Multiply, 40);
SIZE(Affine, 32);
SIZE(Clamp, 40);
SIZE(Convolve, 48);
SIZE(DeltaGates, 40);
SIZE(DeltaUpdate, 80);
SIZE(MambaUpdate, 72);
SIZE(Route, 80);
SIZE(ExpertLinear, 80);
SIZE(CombineExperts, 40);
SIZE(Gather, 40);
SIZE(SumRows, 64);
SIZE(CopyParts, 40);
SIZE(FinishLogits, 24);
SIZE(Largest, 24);
SIZE(DrawTokens, 24);

OFFSET(Step, tables, 16);
OFFSET(Tables, page_runs, 72);
OFFSET(RowTable, before, 16);
OFFSET(KvRef, format, 48);
OFFSET(Norm, function, 52);
OFFSET(Linear, batch, 56);
OFFSET(LowRank, rows, 56);
OFFSET(ScaleRows, scales, 88);
OFFSET(EmbedLowRank, rank, 56);
OFFSET(Attend, sinks, 104);
OFFSET(Activate, function, 40);
OFFSET(DeltaUpdate, per_head, 64);
OFFSET(Route, normalise_eps, 68);
OFFSET(ExpertLinear, input_stride, 64);

#undef SIZE
#undef OFFSET

constexpr uint32_t WARP = 32;
constexpr uint32_t ALL_LANES = 0xffffffff;

// A bf16 value: the upper half of an f32.
struct Bf16 {
    uint16_t bits;
};

__device__ inline float widen(float value) {
    return value;
}

__device__ inline float widen(Bf16 value) {
    return __uint_as_float((uint32_t)value.bits << 16);
}

__device__ inline void narrow(float value, float *to) {
    *to = value;
}

// Rounds to nearest, ties to even; NaN stays NaN.
__device__ inline void narrow(float value, Bf16 *to) {
    uint32_t bits = __float_as_uint(value);
    bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    to->bits = (uint16_t)((is_nan ? bits | 0x400000 : rounded) >> 16);
}

// Two values, `from` aligned to both.
__device__ inline float2 widen_pair(const float *from) {
    return *reinterpret_cast<const float2 *>(from);
}

__device__ inline float2 widen_pair(const Bf16 *from) {
    uint32_t pair = *reinterpret_cast<const uint32_t *>(from);
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
}

// Eight values, `from` aligned to 16 bytes.
__device__ inline void widen_eight(const float *from, float (&to)[8]) {
    float4 low = reinterpret_cast<const float4 *>(from)[0];
    float4 high = reinterpret_cast<const float4 *>(from)[1];
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

__device__ inline void widen_eight(const Bf16 *from, float (&to)[8]) {
    uint4 packed = *reinterpret_cast<const uint4 *>(from);
    uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[2 * i] = __uint_as_float(words[i] << 16);
        to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000);
    }
}

// A matrix's value where its format is not worth a kernel of its own.
__device__ inline float element(const MatrixRef &matrix, size_t index) {
    if (matrix.format == FORMAT_BF16) {
        return widen(at<const Bf16>(matrix.values)[index]);
    }
    return at<const float>(matrix.values)[index];
}

__device__ inline float not_a_number() {
    return __uint_as_float(0x7fc00000);
}

// The sum over a warp in each of its lanes: halves onto halves.
__device__ inline float warp_sum(float value) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, offset);
    }
    return value;
}

// The largest number; NaN is passed over.
__device__ inline float warp_max(float value) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, offset));
    }
    return value;
}

// `N` sums over a warp, each bit for bit as `warp_sum` computes it, with fewer exchanges. From 32
// sums on, a lane receives `N / 32` of them, from sum `lane * N / 32` on; of fewer, `32 / N` lanes
// receive the first of theirs, sum `lane * N / 32`.
template <int N>
__device__ inline void warp_sums(float (&values)[N], uint32_t lane) {
    int held = N;
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        if (held > 1) {
            held /= 2;
            bool upper = lane & offset;
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                if (i < held) {
                    float given = upper ? values[i] : values[i + held];
                    float kept = upper ? values[i + held] : values[i];
                    values[i] = kept + __shfl_xor_sync(ALL_LANES, given, offset);
                }
            }
        } else {
            values[0] += __shfl_xor_sync(ALL_LANES, values[0], offset);
        }
    }
}

// The sum over a block in each of its threads: warps first, then their sums in order. `scratch` has
// a value per warp.
__device__ inline float block_sum(float value, float *scratch) {
    uint32_t warps = blockDim.x / WARP;
    value = warp_sum(value);
    if (warps == 1) {
        return value;
    }
    if (threadIdx.x % WARP == 0) {
        scratch[threadIdx.x / WARP] = value;
    }
    __syncthreads();
    value = 0;
    for (uint32_t warp = 0; warp < warps; warp++) {
        value += scratch[warp];
    }
    // The next sum may use the same scratch.
    __syncthreads();
    return value;
}
