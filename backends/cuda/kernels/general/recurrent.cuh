// Operations with a recurrent state. A row's tokens follow one another, so that chunks of any
// length give the same bits; rows, heads and columns run in parallel. The state before a row is
// only read.

#pragma once

#include "../ops.cuh"
#include "elementwise.cuh"

// A row's copies to save, in the order of their tokens.
struct Snapshots {
    const StateCopy *next;
    const StateCopy *end;

    __device__ Snapshots(const Tables &tables, const RowTable &row) {
        next = at<const StateCopy>(tables.snapshots) + row.first_snapshot;
        end = next + row.snapshots;
    }

    // Calls `store` with each place that receives the state after so many tokens.
    template <class Store>
    __device__ void save(uint32_t tokens, Store store) {
        for (; next != end && next->tokens <= tokens; next++) {
            if (next->tokens == tokens) {
                store(at<float>(next->to));
            }
        }
    }
};

constexpr uint32_t CONVOLVE_THREADS = 128;

// A thread per row and channel. Shared memory holds each channel's last inputs, in a ring.
extern "C" __global__ void __launch_bounds__(CONVOLVE_THREADS)
    convolve(const Convolve p, const Step step) {
    extern __shared__ float ring[];
    uint32_t blocks = (p.channels + CONVOLVE_THREADS - 1) / CONVOLVE_THREADS;
    uint32_t index = blockIdx.x / blocks;
    uint32_t channel = blockIdx.x % blocks * CONVOLVE_THREADS + threadIdx.x;
    if (index >= step.count || channel >= p.channels) {
        return;
    }
    RowTable row = at<const RowTable>(step.tables.rows)[step.first + index];
    Snapshots snapshots(step.tables, row);
    uint32_t taps = p.kernel - 1;
    const float *weights = at<const float>(p.weights) + (size_t)channel * p.kernel;
    float bias = p.bias == 0 ? 0 : at<const float>(p.bias)[channel];
    float *values = at<float>(p.values) + (size_t)row.first * p.stride + channel;

    float *past = ring + threadIdx.x;
    const float *before = at<const float>(row.before) + p.state + channel;
    for (uint32_t tap = 0; tap < taps; tap++) {
        past[tap * CONVOLVE_THREADS] = row.before == 0 ? 0 : before[(size_t)tap * p.channels];
    }
    uint32_t oldest = 0;
    auto store = [&](float *state) {
        for (uint32_t tap = 0; tap < taps; tap++) {
            uint32_t slot = oldest + tap < taps ? oldest + tap : oldest + tap - taps;
            state[p.state + (size_t)tap * p.channels + channel] = past[slot * CONVOLVE_THREADS];
        }
    };
    float next = row.tokens > 0 ? values[0] : 0;
    for (uint32_t token = 0; token < row.tokens; token++) {
        float value = next;
        if (token + 1 < row.tokens) {
            next = values[(size_t)(token + 1) * p.stride];
        }
        float total = bias;
        uint32_t slot = oldest;
        for (uint32_t tap = 0; tap < taps; tap++) {
            total = fmaf(weights[tap], past[slot * CONVOLVE_THREADS], total);
            slot = slot + 1 < taps ? slot + 1 : 0;
        }
        total = fmaf(weights[taps], value, total);
        values[(size_t)token * p.stride] = p.silu ? silu_of(total) : total;
        if (taps > 0) {
            past[oldest * CONVOLVE_THREADS] = value;
            oldest = oldest + 1 < taps ? oldest + 1 : 0;
            snapshots.save(token + 1, store);
        }
    }
    if (taps > 0) {
        store(at<float>(row.after));
    }
}

constexpr uint32_t STATE_THREADS = 256;
constexpr uint32_t STATE_WARPS = STATE_THREADS / WARP;

// Values of a column at most, and columns of a warp: longer columns are spread thinner, to fit in
// registers, by kernels of their own.
constexpr uint32_t SHORT_LEN = 256;
constexpr uint32_t SHORT_COLUMNS = 4;
constexpr uint32_t LONG_LEN = 512;
constexpr uint32_t LONG_COLUMNS = 2;

// A block's row and head, and its warp's first column.
struct StateColumns {
    RowTable row;
    uint32_t head;
    uint32_t column;
    bool is_used;

    __device__ StateColumns(const Step &step, uint32_t heads, uint32_t per_warp, uint32_t columns) {
        uint32_t per_block = per_warp * STATE_WARPS;
        uint32_t blocks = (columns + per_block - 1) / per_block;
        uint32_t index = blockIdx.x / blocks / heads;
        head = blockIdx.x / blocks % heads;
        column = blockIdx.x % blocks * per_block + threadIdx.x / WARP * per_warp;
        is_used = index < step.count && column < columns;
        if (is_used) {
            row = at<const RowTable>(step.tables.rows)[step.first + index];
        }
    }
};

// Some columns of a state in a warp's registers: value `lane + 32 i` of each column in each lane.
template <int PER_LANE, int COLUMNS>
struct StateTile {
    float values[COLUMNS][PER_LANE];
    uint32_t lane;
    uint32_t len;
    uint32_t columns;
    size_t start;
    size_t value_step;
    size_t column_step;

    // The tile begins at value `start` of a state, and has `columns` of `len` values.
    __device__ StateTile(
        const RowTable &row, size_t start, uint32_t len, size_t value_step, uint32_t columns,
        size_t column_step
    ) :
        lane(threadIdx.x % WARP),
        len(len),
        columns(columns),
        start(start),
        value_step(value_step),
        column_step(column_step) {
        const float *before = at<const float>(row.before);
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) {
                values[column][i] = 0;
            }
        }
        each([&](float &value, size_t index) { value = row.before == 0 ? 0 : before[index]; });
    }

    __device__ void store(float *state) {
        each([&](float &value, size_t index) { state[index] = value; });
    }

    // Calls `visit` with each value that the state has, and its index. The rest stays zero.
    template <class Visit>
    __device__ void each(Visit visit) {
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) {
                uint32_t index = lane + i * WARP;
                if (index < len && column < columns) {
                    visit(values[column][i], start + index * value_step + column * column_step);
                }
            }
        }
    }
};

// A lane's part of a vector; zeros past its end.
template <int PER_LANE>
__device__ inline void load_lane(const float *from, uint32_t len, float (&to)[PER_LANE]) {
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        uint32_t index = threadIdx.x % WARP + i * WARP;
        to[i] = index < len ? from[index] : 0;
    }
}

// What the delta rule reads of a token.
template <int PER_LANE>
struct DeltaInput {
    float query[PER_LANE];
    float key[PER_LANE];
    float decay[PER_LANE];
    // Of the lane's column.
    float value;
    float beta;

    __device__ DeltaInput() {}

    __device__ DeltaInput(
        const DeltaUpdate &p, size_t token, uint32_t head, uint32_t key_head, uint32_t column
    ) {
        size_t of_key = (token * p.key_heads + key_head) * p.key_dim;
        load_lane(at<const float>(p.query) + of_key, p.key_dim, query);
        load_lane(at<const float>(p.key) + of_key, p.key_dim, key);
        size_t of_head = token * p.value_heads + head;
        const float *decays = at<const float>(p.decay) + of_head * p.per_head;
        if (p.per_head == 1) {
            float shared = decays[0];
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) {
                decay[i] = shared;
            }
        } else {
            load_lane(decays, p.key_dim, decay);
        }
        value = at<const float>(p.value)[of_head * p.value_dim + column];
        beta = at<const float>(p.beta)[of_head];
    }
};

// The warp's columns of a row and value head.
template <int PER_LANE, int COLUMNS>
__device__ inline void
delta_columns(const DeltaUpdate &p, const Tables &tables, const StateColumns &place) {
    const RowTable &row = place.row;
    uint32_t head = place.head;
    uint32_t column = place.column;
    uint32_t lane = threadIdx.x % WARP;
    uint32_t columns = min((uint32_t)COLUMNS, p.value_dim - column);
    size_t start = p.state + (size_t)head * p.key_dim * p.value_dim + column;
    StateTile<PER_LANE, COLUMNS> state(row, start, p.key_dim, p.value_dim, columns, 1);
    Snapshots snapshots(tables, row);
    uint32_t shared_by = p.value_heads / p.key_heads;
    uint32_t key_head = p.strided ? head % p.key_heads : head / shared_by;
    // Sums of a column end up in these lanes.
    constexpr uint32_t LANES_PER_SUM = WARP / COLUMNS;
    uint32_t own = lane / LANES_PER_SUM;
    uint32_t own_column = column + min(own, columns - 1);
    float *out = at<float>(p.out) + (size_t)head * p.value_dim + own_column;

    DeltaInput<PER_LANE> input;
    if (row.tokens > 0) {
        input = DeltaInput<PER_LANE>(p, row.first, head, key_head, own_column);
    }
    for (uint32_t token = 0; token < row.tokens; token++) {
        DeltaInput<PER_LANE> now = input;
        if (token + 1 < row.tokens) {
            size_t next = (size_t)row.first + token + 1;
            input = DeltaInput<PER_LANE>(p, next, head, key_head, own_column);
        }
        float sums[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            sums[c] = 0;
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) {
                state.values[c][i] *= now.decay[i];
                sums[c] = fmaf(now.key[i], state.values[c][i], sums[c]);
            }
        }
        warp_sums(sums, lane);
        float change = (now.value - sums[0]) * now.beta;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            float of_column = __shfl_sync(ALL_LANES, change, c * LANES_PER_SUM);
            sums[c] = 0;
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) {
                state.values[c][i] = fmaf(now.key[i], of_column, state.values[c][i]);
                sums[c] = fmaf(now.query[i], state.values[c][i], sums[c]);
            }
        }
        warp_sums(sums, lane);
        if (lane % LANES_PER_SUM == 0 && own < columns) {
            out[((size_t)row.first + token) * p.value_heads * p.value_dim] = sums[0];
        }
        snapshots.save(token + 1, [&](float *to) { state.store(to); });
    }
    state.store(at<float>(row.after));
}

extern "C" __global__ void __launch_bounds__(STATE_THREADS)
    delta_update(const DeltaUpdate p, const Step step) {
    StateColumns place(step, p.value_heads, SHORT_COLUMNS, p.value_dim);
    if (!place.is_used) {
        return;
    }
    if (p.key_dim <= SHORT_LEN / 4) {
        delta_columns<SHORT_LEN / 4 / WARP, SHORT_COLUMNS>(p, step.tables, place);
    } else if (p.key_dim <= SHORT_LEN / 2) {
        delta_columns<SHORT_LEN / 2 / WARP, SHORT_COLUMNS>(p, step.tables, place);
    } else {
        delta_columns<SHORT_LEN / WARP, SHORT_COLUMNS>(p, step.tables, place);
    }
}

extern "C" __global__ void __launch_bounds__(STATE_THREADS)
    delta_update_long(const DeltaUpdate p, const Step step) {
    StateColumns place(step, p.value_heads, LONG_COLUMNS, p.value_dim);
    if (place.is_used) {
        delta_columns<LONG_LEN / WARP, LONG_COLUMNS>(p, step.tables, place);
    }
}

// What Mamba-2 reads of a token.
template <int PER_LANE>
struct MambaInput {
    float b[PER_LANE];
    float c[PER_LANE];
    // Of the lane's column.
    float x;
    float step;

    __device__ MambaInput() {}

    __device__ MambaInput(const MambaUpdate &p, size_t token, uint32_t head, uint32_t column) {
        uint32_t inner = p.heads * p.head_dim;
        uint32_t group = head / (p.heads / p.groups);
        const float *projected = at<const float>(p.projected) + token * p.width;
        const float *of_b = projected + 2 * (size_t)inner + (size_t)group * p.state_len;
        load_lane(of_b, p.state_len, b);
        load_lane(of_b + (size_t)p.groups * p.state_len, p.state_len, c);
        x = projected[inner + head * p.head_dim + column];
        step = projected[p.width - p.heads + head];
    }
};

// The warp's channels of a row and head.
template <int PER_LANE, int COLUMNS>
__device__ inline void
mamba_columns(const MambaUpdate &p, const Tables &tables, const StateColumns &place) {
    const RowTable &row = place.row;
    uint32_t head = place.head;
    uint32_t column = place.column;
    uint32_t lane = threadIdx.x % WARP;
    uint32_t columns = min((uint32_t)COLUMNS, p.head_dim - column);
    size_t start = p.state + ((size_t)head * p.head_dim + column) * p.state_len;
    StateTile<PER_LANE, COLUMNS> state(row, start, p.state_len, 1, columns, p.state_len);
    Snapshots snapshots(tables, row);
    constexpr uint32_t LANES_PER_SUM = WARP / COLUMNS;
    uint32_t own = lane / LANES_PER_SUM;
    uint32_t own_column = column + min(own, columns - 1);
    float step_bias = at<const float>(p.step_bias)[head];
    float rate = at<const float>(p.rate)[head];
    float skip = at<const float>(p.skip)[head];
    float *out = at<float>(p.out) + (size_t)head * p.head_dim + own_column;

    MambaInput<PER_LANE> input;
    if (row.tokens > 0) {
        input = MambaInput<PER_LANE>(p, row.first, head, own_column);
    }
    for (uint32_t token = 0; token < row.tokens; token++) {
        MambaInput<PER_LANE> now = input;
        if (token + 1 < row.tokens) {
            input = MambaInput<PER_LANE>(p, (size_t)row.first + token + 1, head, own_column);
        }
        // NaN stays.
        float dt = softplus(now.step + step_bias);
        dt = dt < p.min_step ? p.min_step : dt;
        dt = dt > p.max_step ? p.max_step : dt;
        float decay = expf(rate * dt);
        float added = dt * now.x;
        float sums[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            float of_column = __shfl_sync(ALL_LANES, added, c * LANES_PER_SUM);
            sums[c] = 0;
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) {
                float &value = state.values[c][i];
                value = fmaf(value, decay, of_column * now.b[i]);
                sums[c] = fmaf(value, now.c[i], sums[c]);
            }
        }
        warp_sums(sums, lane);
        if (lane % LANES_PER_SUM == 0 && own < columns) {
            size_t at_token = ((size_t)row.first + token) * p.heads * p.head_dim;
            out[at_token] = fmaf(skip, now.x, sums[0]);
        }
        snapshots.save(token + 1, [&](float *to) { state.store(to); });
    }
    state.store(at<float>(row.after));
}

extern "C" __global__ void __launch_bounds__(STATE_THREADS)
    mamba_update(const MambaUpdate p, const Step step) {
    StateColumns place(step, p.heads, SHORT_COLUMNS, p.head_dim);
    if (!place.is_used) {
        return;
    }
    if (p.state_len <= SHORT_LEN / 4) {
        mamba_columns<SHORT_LEN / 4 / WARP, SHORT_COLUMNS>(p, step.tables, place);
    } else if (p.state_len <= SHORT_LEN / 2) {
        mamba_columns<SHORT_LEN / 2 / WARP, SHORT_COLUMNS>(p, step.tables, place);
    } else {
        mamba_columns<SHORT_LEN / WARP, SHORT_COLUMNS>(p, step.tables, place);
    }
}

extern "C" __global__ void __launch_bounds__(STATE_THREADS)
    mamba_update_long(const MambaUpdate p, const Step step) {
    StateColumns place(step, p.heads, LONG_COLUMNS, p.head_dim);
    if (place.is_used) {
        mamba_columns<LONG_LEN / WARP, LONG_COLUMNS>(p, step.tables, place);
    }
}
