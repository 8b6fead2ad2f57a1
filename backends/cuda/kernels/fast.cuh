// The fast path: dense transformers with bf16 weights on Hopper.
//
// Data between these kernels
//   stream      f32 [token][hidden], the residual stream.
//   x           bf16 [token][K], what a matrix multiplies. A norm before a matrix is cut in two: the kernel that
//               writes x multiplies by the norm's gain and leaves sums of squares, and the kernel that reads x
//               scales its results by 1/rms. So no kernel reads the stream twice.
//   sums        f32 [token][n]: parts of the sum of squares, to be added in order (one part per 16 rows).
//   order of x  "fragment": permuted inside each block of 32 by x_pos, so that 16 bytes are a lane's operand of two
//               mma steps. "tiled": as wgmma wants it in shared memory (x_tiled), so that a plain copy brings a tile there.
//               A step of up to 8 tokens uses the first, a larger one the second (the flag TILED); the head reads
//               either. Where K is not a multiple of 64, a tiled buffer must have been zeroed once.
//   weights     fragment order: see pack_fragments.
//
// Order of sums, the same in all kernels whatever the batch: K is cut into `parts` (block b of 32 columns belongs to
// part p when p * B / parts <= b < (p+1) * B / parts); a part is one chain of k16 steps; parts are added in order.
//
// Dependent launches. A kernel reads only what is constant during a step (weights, tables) before its griddepcontrol.wait,
// and every thread waits before its first access to anything else. All blocks of all kernels wait, so when a
// kernel has ended, all kernels before it have: buffers may be written again by any later kernel. Old pages of keys and
// values are read before the wait: they were written before the step, and the one place written now is masked.
#pragma once
#include <cooperative_groups.h>
#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

using bf16 = __nv_bfloat16;
using bf162 = __nv_bfloat162;
#define UNROLL _Pragma("unroll")
#ifndef MARK
#define MARK(i)  // a test counts cycles here
#endif

// ------------------------------------------------- parameters, as in ops.rs and fused.rs

static constexpr int PAGE = 64;
static constexpr uint32_t MEDIA_ID = 0xffffffffu, NOT_A_NUMBER = 0xffffffffu;

struct PageRun { uint32_t start, first; };
struct Tables {
    const uint32_t *ids, *positions, *rope, *seen_end, *token_row;
    const uint64_t* features;
    uint64_t feature_stride;
    const void *rows, *snapshots;
    const PageRun* page_runs;
    uint64_t run_stride;
    const uint32_t *pages, *emitted;
    const void* draws;
};
struct Step { uint32_t first, count, rows, reserved; Tables tables; };
struct KvRef {
    uint8_t* pages;
    uint64_t page_bytes, keys, values;
    uint32_t group, heads, head_dim, value_dim, format, values_in_keys;
};

enum FusedFlags : uint32_t {
    TRIGGER = 1,  // let the next kernel start as soon as this one needs no more blocks
    TILED = 2,    // x is tiled (written by embed and attention, read by the head)
    PACKED = 4,   // embed: the table is in fragment order (a head's matrix)
};
enum FusedActivation : uint32_t { SILU = 0, GELU_TANH = 1 };

struct AngleSet {
    float *cos, *sin;          // [token][pairs]
    const float* frequencies;  // [pairs]
    const uint32_t* axes;      // [pairs], or none
    uint32_t pairs;
    float factor;
};
struct FusedEmbed {
    const bf16* table;
    const float* gain;  // of the first norm
    float* stream;
    bf16* x;
    float* sums;
    AngleSet angles[2];  // computed beside; as many as the grid has planes after the first
    uint32_t hidden, sum_count;
    float scale;
    uint32_t flags;
    uint32_t groups, reserved;  // of a tiled x, see x_tiled
};
struct FusedLinear {
    const bf16* weights;
    const bf16* x;
    const float* sums;    // none: x is not normed
    const float* bias;    // [rows], or none
    float* out;           // STORE: [token][rows]; RESIDUAL: the stream
    bf16* next;           // RESIDUAL: [token][rows]; GATED: [token][rows / 2]
    const float* gain;    // RESIDUAL: [rows], of the next norm
    float* next_sums;     // RESIDUAL: [token][rows / 16]
    float2* candidates;   // LARGEST: [token][gridDim.x]
    uint32_t* arrivals;   // LARGEST: 0 before and after
    uint32_t* tokens;     // LARGEST: [token]
    const uint32_t* index;  // token m of the launch is index[m] in x and sums; none: itself
    uint32_t rows, cols, parts, sum_count;
    float eps, factor;    // RESIDUAL: stream += factor * y
    uint32_t activation, flags;
    uint32_t groups, reserved;  // of a tiled x (and next), see x_tiled
};
struct FusedAttention {
    KvRef kv;
    const float* qkv;        // [token][(heads + 2 * kv.heads) * head_dim]
    const float *cos, *sin;  // [token][pairs]
    const float *query_gain, *key_gain;  // [head_dim], or none: no norm of heads
    bf16* out;               // [token][heads * head_dim]
    uint32_t heads, pairs;
    uint32_t reach_len;      // 0: all
    uint32_t first_row;      // token m of the launch belongs to row first_row + m
    float scale, softcap, eps;
    uint32_t flags;
    uint32_t groups, reserved;  // of a tiled out, see x_tiled
};

// ------------------------------------------------------------------ pieces

__host__ __device__ inline int x_pos(int k) {
    return (k & ~31) | ((k & 7) >> 1) << 3 | ((k >> 4) & 1) << 2 | ((k >> 3) & 1) << 1 | (k & 1);
}
// Where x of (token, k) lies in a tiled buffer for 8 * groups tokens: tiles of 8 tokens x 64 columns, 1024 bytes, in which
// pieces of 16 bytes are swizzled; first all tokens of columns 0..63, then those of 64...
__host__ __device__ inline size_t x_tiled(size_t token, size_t k, size_t groups) {
    return ((k / 64) * groups + token / 8) * 512 + token % 8 * 64 + ((k % 64 / 8) ^ token % 8) * 8 + k % 8;
}
__host__ __device__ inline size_t x_index(bool tiled, size_t token, size_t k, size_t width, size_t groups) {
    return tiled ? x_tiled(token, k, groups) : token * width + x_pos((int)k);
}
// Where the weight (n, k) of a matrix with `cols` columns lies in fragment order, in values: tiles of 16 rows; in a tile, fragments
// of 16 columns, 512 bytes each, which are the A operands of mma m16n8k16 and of a warp's quarter of wgmma m64nNk16: lane
// 4 * (n % 8) + k % 8 / 2, of whose eight values (n, k) is number 2 * (n % 16 / 8 + 2 * (k % 16 / 8)) + k % 2.
__host__ __device__ inline size_t fragment_index(size_t n, size_t k, size_t cols) {
    return ((n / 16) * (cols / 16) + k / 16) * 256 + (4 * (n % 8) + k % 8 / 2) * 8 + 2 * (n % 16 / 8 + 2 * (k % 16 / 8)) + k % 2;
}
// Gate and up matrices share tiles: rows 0-7 of tile i are gates 8i.., rows 8-15 ups 8i...
__host__ __device__ inline size_t gated_row(size_t n, bool up) { return n / 8 * 16 + n % 8 + (up ? 8 : 0); }

__device__ inline void pdl_trigger() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ inline void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// Weak loads with a memory clobber stay where they are written; ptxas sinks .nc loads to their first use, past the wait.
__device__ inline uint4 load_weights(const void* p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
// Volatile, so that it stays in front of the load that reuses a.
__device__ inline void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ inline void mma(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) { mma(c, a.x, a.y, a.z, a.w, b0, b1); }
__device__ inline uint32_t pack2(float a, float b) {
    bf162 v = __floats2bfloat162_rn(a, b);
    return *(uint32_t*)&v;
}
__device__ inline float round_bf16(float x) { return __bfloat162float(__float2bfloat16(x)); }

// A logit and its token. NaN comes before everything, as NOT_A_NUMBER; of equal ones the lowest token does.
__device__ inline float2 candidate(float y, int token) { return y == y ? make_float2(y, __int_as_float(token)) : make_float2(INFINITY, __int_as_float(-1)); }
__device__ inline float2 better(float2 a, float2 b) { return a.x > b.x || (a.x == b.x && __float_as_int(a.y) < __float_as_int(b.y)) ? a : b; }
__device__ inline float2 shuffle(float2 a, int o) { return make_float2(__shfl_xor_sync(~0u, a.x, o), __shfl_xor_sync(~0u, a.y, o)); }

__device__ inline float activate(float x, uint32_t function) {
    if (function == SILU) return __fdividef(x, 1 + __expf(-x));
    return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}
// A lane's share of a token's sums: each 128th four, from sums[4 * lane] on. Tokens whose sums are not multiples of 16 bytes apart
// are read one by one, in the same order.
__device__ inline float4 load_sums(const float* sums, int i, int count) {
    if (count % 4 == 0) return __ldcg((const float4*)(sums + i));
    auto at = [&](int k) { return i + k < count ? __ldcg(sums + i + k) : 0; };
    return make_float4(at(0), at(1), at(2), at(3));
}
__device__ inline float add4(const float4& v) { return ((v.x + v.y) + v.z) + v.w; }
// 1/rms from a token's sums; a warp's work. The order depends on their count alone.
__device__ inline float inverse_rms(const float* sums, int count, int cols, float eps) {
    float s = 0;
    for (int i = threadIdx.x % 32 * 4; i < count; i += 128) s += add4(load_sums(sums, i, count));
    for (int o = 16; o; o /= 2) s += __shfl_xor_sync(~0u, s, o);
    return rsqrtf(s / cols + eps);
}

// ------------------------------------------------------------------- embed

// A block per token; in further planes, its angles.
__device__ inline void fused_embed_body(const FusedEmbed& p, const Step& s) {
    __shared__ float part[8];
    const int m = s.first + blockIdx.x, tid = threadIdx.x;
    pdl_wait();
    if (p.flags & TRIGGER) pdl_trigger();
    if (blockIdx.y > 0) {
        const AngleSet& a = p.angles[blockIdx.y - 1];
        const uint32_t position = s.tables.positions[m];
        for (int i = tid; i < a.pairs; i += 256) {
            float angle = (float)(a.axes ? s.tables.rope[m * 3 + a.axes[i]] : position) * a.frequencies[i];
            a.cos[(size_t)m * a.pairs + i] = cosf(angle) * a.factor;
            a.sin[(size_t)m * a.pairs + i] = sinf(angle) * a.factor;
        }
        return;
    }
    const uint32_t id = s.tables.ids[m];
    const float* features = id == MEDIA_ID && s.tables.features ? (const float*)s.tables.features[m] : nullptr;
    float q = 0;
    for (int k = tid; k < p.hidden; k += 256) {
        float v = 0;
        if (features) v = features[k];
        else if (id != MEDIA_ID) v = __bfloat162float(p.table[p.flags & PACKED ? fragment_index(id, k, p.hidden) : (size_t)id * p.hidden + k]) * p.scale;
        p.stream[(size_t)m * p.hidden + k] = v;
        p.x[x_index(p.flags & TILED, m, k, p.hidden, p.groups)] = __float2bfloat16(v * p.gain[k]);
        q += v * v;
    }
    for (int o = 16; o; o /= 2) q += __shfl_xor_sync(~0u, q, o);
    if (tid % 32 == 0) part[tid / 32] = q;
    __syncthreads();
    for (int i = tid; i < p.sum_count; i += 256) {
        float sum = 0;
        for (int w = 0; w < 8; w++) sum += part[w];
        p.sums[(size_t)m * p.sum_count + i] = i == 0 ? sum : 0;
    }
}

// ------------------------------------------------------------------ linear

enum Epilogue {
    STORE,     // out = y + bias
    RESIDUAL,  // out += factor * (y + bias); next = bf16(out * gain); next_sums = sums of out^2 per tile
    GATED,     // next = bf16(activation(gate) * up)
    LARGEST,   // tokens = the index of the largest y
};

// y = matrix * x for up to M tokens. One-wave grids; a block walks over tiles of 16 rows, its warps are the parts of K. A
// warp keeps D fragments in flight in registers: one is loaded again as soon as its mma is issued, across tiles; the first ones
// are loaded before the wait. EVEN: each part is a multiple of D fragments; otherwise the last round of a part is short.
template <int M, int D, bool EVEN, int EPI, int WARPS> __device__ void fused_linear_body(const FusedLinear& p, const Step& s) {
    constexpr int STEP = D * 512, COL = M == 1 ? 16 : 20;  // 20: no bank conflicts
    constexpr int AHEAD = M == 1 ? 1 : 4;                  // operands of x loaded this many pairs of fragments ahead
    extern __shared__ __align__(128) uint8_t smem[];       // M == 1: x
    __shared__ float part[2][WARPS][COL * M], scale[M];
    __shared__ float2 top[WARPS > M ? WARPS : M];
    __shared__ bool last;
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
    const int G = p.parts, blocks = p.cols / 32, begin = warp * blocks / G, fragments = 2 * ((warp + 1) * blocks / G - begin);
    const int steps = (fragments + D - 1) / D, tail = fragments - (steps - 1) * D;
    const int tiles = (p.rows + 15) / 16, items = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x, count = s.count;
    const uint8_t* src = (const uint8_t*)p.weights + ((size_t)blockIdx.x * (p.cols / 16) + 2 * begin) * 512 + lane * 16;
    const ptrdiff_t jump = ((ptrdiff_t)gridDim.x * (p.cols / 16) - steps * D) * 512;
    int left = steps, togo = items * steps - 1;  // rounds to load: of this tile, in all
    auto advance = [&] {
        src += STEP;
        if (--left == 0) left = steps, src += jump;
    };
    auto loadable = [&] { return EVEN || left > 1 ? D : tail; };  // fragments of the round to load
    uint4 v[D];
    {
        const int n = loadable();
        UNROLL for (int u = 0; u < D; u++)
            if (EVEN || u < n) v[u] = load_weights(src + u * 512);
        advance();
    }
    // Which token: constant during a step, so before the wait.
    const int token = M == 1 ? (p.index ? p.index[0] : s.first) : g < count ? (p.index ? p.index[g] : s.first + g) : 0;
    pdl_wait();

    const bool tiled = (EPI == STORE || EPI == LARGEST) && (p.flags & TILED);
    const bf16* x = p.x + (size_t)token * p.cols + begin * 32;
    uint8_t* sx = smem + begin * 64;
    if (M == 1) {
        for (int i = lane; i < fragments * 2; i += 32) {
            const uint4 r = __ldcg((const uint4*)(tiled ? p.x + x_tiled(token, begin * 32 + i * 8, p.groups) : x + i * 8));
            if (tiled) {  // columns 8 * (i % 4).. of block i / 4 go to four places
                uint32_t* to = (uint32_t*)sx + i / 4 * 16 + i % 4;
                to[0] = r.x, to[4] = r.y, to[8] = r.z, to[12] = r.w;
            } else ((uint4*)sx)[i] = r;
        }
    }
    for (int m = warp; m < count; m += G) {
        float f = 1;
        if (p.sums) f = inverse_rms(p.sums + (size_t)(p.index ? p.index[m] : s.first + m) * p.sum_count, p.sum_count, p.cols, p.eps);
        if (lane == 0) scale[m] = f;  // read after a block barrier
    }
    __syncwarp();
    auto operand = [&](int pair) {  // of x, for fragments 2 * pair and 2 * pair + 1 of this part
        uint4 b = make_uint4(0, 0, 0, 0);
        if (M == 1) {
            if (lane < 4) b = ((const uint4*)sx)[pair * 4 + t];
        } else if (g < count) {
            if (tiled) {
                const int k = (begin + pair) * 32 + 2 * t;
                auto piece = [&](int i) { return *(const uint32_t*)(p.x + x_tiled(token, k + i, p.groups)); };
                b = make_uint4(piece(0), piece(8), piece(16), piece(24));
            } else b = *(const uint4*)(x + pair * 32 + t * 8);
        }
        return b;
    };
    uint4 xb[AHEAD];
    if (M > 1) {
        UNROLL for (int i = 0; i < AHEAD; i++)
            if (EVEN || 2 * i < (steps > 1 ? D : tail)) xb[i] = operand(i);
    }

    float2 best = make_float2(-INFINITY, __int_as_float(0x7fffffff));
    int round = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, round++) {
        if ((p.flags & TRIGGER) && tile + (int)gridDim.x >= tiles) pdl_trigger();
        const bool ends = M == 1 ? warp == round % G : tid < 16 * M;  // these threads end the tile
        const int row = (M == 1 ? lane : tid) % 16, m = M == 1 ? 0 : tid / 16, n = tile * 16 + row;
        const bool live = ends && n < p.rows && (M == 1 ? lane < 16 : m < count);
        const size_t at = (size_t)(s.first + m) * p.rows + n;
        float old = 0, gain = 0, bias = 0;  // fetched ahead: their latency would otherwise end the kernel
        if (live) {
            if (EPI == RESIDUAL) old = __ldcg(p.out + at), gain = p.gain[n];
            if (EPI != GATED && p.bias) bias = p.bias[n];
        }
        float acc[4] = {};
        for (int st = 0; st < steps; st++) {
            const int now = EVEN || st + 1 < steps ? D : tail, then = loadable();
            const bool wrap = st + 1 == steps;
            const int after = EVEN || (wrap ? steps > 1 : st + 2 < steps) ? D : tail;  // fragments of the next round
            auto step = [&](auto more) {
                constexpr bool MORE = decltype(more)::value;
                UNROLL for (int u = 0; u < D; u += 2) {
                    if (EVEN || u < now) {
                        const uint4 b = M == 1 ? operand(st * (D / 2) + u / 2) : xb[u / 2 % AHEAD];
                        mma(acc, v[u], b.x, b.y);
                        if (MORE && EVEN) v[u] = load_weights(src + u * 512);
                        mma(acc, v[u + 1], b.z, b.w);
                        if (MORE && EVEN) v[u + 1] = load_weights(src + (u + 1) * 512);
                    }
                    if (MORE && !EVEN && u < then) v[u] = load_weights(src + u * 512), v[u + 1] = load_weights(src + (u + 1) * 512);
                    if (M > 1) {
                        const int to = u / 2 + AHEAD;
                        if (to < D / 2) {
                            if (EVEN || 2 * to < now) xb[u / 2 % AHEAD] = operand(st * (D / 2) + to);
                        } else if (EVEN || 2 * (to - D / 2) < after) xb[u / 2 % AHEAD] = operand((wrap ? 0 : st + 1) * (D / 2) + to - D / 2);
                    }
                }
            };
            if (togo > 0) step(std::true_type()), advance();
            else step(std::false_type());
            togo--;
        }
        float(&mine)[COL * M] = part[round % 2][warp];
        if (M == 1) {
            if (t == 0) mine[g] = acc[0], mine[8 + g] = acc[2];
        } else if (2 * t < M) {
            UNROLL for (int c = 0; c < 4; c++)
                if (2 * t + c % 2 < M) mine[(2 * t + c % 2) * COL + c / 2 * 8 + g] = acc[c];
        }
        __syncthreads();
        if (!ends) continue;
        float y = 0;
        for (int k = 0; k < G; k++) y += part[round % 2][k][m * COL + row];
        y = y * (m < count ? scale[m] : 0.0f) + bias;
        if (EPI == STORE && live) p.out[at] = y;
        if (EPI == GATED) {
            const float up = __shfl_down_sync(~0u, y, 8);
            if (live && row < 8) p.next[(size_t)(s.first + m) * (p.rows / 2) + x_pos(tile * 8 + row)] = __float2bfloat16(activate(y, p.activation) * up);
        }
        if (EPI == RESIDUAL) {
            y = fmaf(p.factor, y, old);
            if (live) p.out[at] = y, p.next[(size_t)(s.first + m) * p.rows + x_pos(n)] = __float2bfloat16(y * gain);
            float q = y * y;
            UNROLL for (int o = 8; o; o /= 2) q += __shfl_xor_sync(~0u, q, o);
            if (live && row == 0) p.next_sums[(size_t)(s.first + m) * tiles + tile] = q;
        }
        if (EPI == LARGEST && n < p.rows) best = better(best, candidate(y, n));
    }
    if constexpr (EPI == LARGEST) {
        for (int o = M == 1 ? 16 : 8; o; o /= 2) best = better(best, shuffle(best, o));
        if (M == 1 ? lane == 0 : tid < 16 * M && tid % 16 == 0) top[M == 1 ? warp : tid / 16] = best;
        __syncthreads();
        if (tid < M) {
            best = top[tid];
            if (M == 1)
                for (int k = 1; k < G; k++) best = better(best, top[k]);
            p.candidates[(size_t)tid * gridDim.x + blockIdx.x] = best;
            __threadfence();
        }
        __syncthreads();
        if (tid == 0) last = atomicAdd(p.arrivals, 1) == gridDim.x - 1;
        __syncthreads();
        if (!last) return;
        __threadfence();
        for (int m = warp; m < count; m += G) {
            best = make_float2(-INFINITY, __int_as_float(0x7fffffff));
            for (int i = lane; i < (int)gridDim.x; i += 32) best = better(best, __ldcg(&p.candidates[(size_t)m * gridDim.x + i]));
            for (int o = 16; o; o /= 2) best = better(best, shuffle(best, o));
            if (lane == 0) p.tokens[s.first + m] = __float_as_int(best.y);
        }
        if (tid == 0) *p.arrivals = 0;
    }
}

// --------------------------------------------------------------- attention

// cos and sin of this lane's pairs lane, lane + 32, ... Pairs beyond the rope's pass through.
template <int HD> struct LaneAngles {
    static constexpr int PAIRS = (HD / 2 + 31) / 32;
    float c[PAIRS], s[PAIRS];
    __device__ LaneAngles(const float* cos, const float* sin, int pairs) {
        UNROLL for (int i = 0; i < PAIRS; i++) {
            const int j = threadIdx.x % 32 + 32 * i;
            c[i] = j < pairs ? __ldcg(cos + j) : 1, s[i] = j < pairs ? __ldcg(sin + j) : 0;
        }
    }
};
// A head of qkv: its norm, then its rope; a warp's work. A lane's pair j is values low(j) and high(j).
template <int HD> struct RotatedHead {
    static constexpr int PAIRS = (HD / 2 + 31) / 32;
    float lo[PAIRS], hi[PAIRS], gl[PAIRS], gh[PAIRS];
    __device__ static int low(int j, int pairs) { return j < pairs ? j : pairs + j; }
    __device__ static int high(int j, int pairs) { return j < pairs ? j + pairs : HD / 2 + j; }
    __device__ void load(const float* from, const float* gain, int pairs) {
        UNROLL for (int i = 0; i < PAIRS; i++) {
            const int j = threadIdx.x % 32 + 32 * i;
            const bool there = HD % 64 == 0 || j < HD / 2;
            lo[i] = there ? __ldcg(from + low(j, pairs)) : 0, hi[i] = there ? __ldcg(from + high(j, pairs)) : 0;
            gl[i] = gain && there ? gain[low(j, pairs)] : 1, gh[i] = gain && there ? gain[high(j, pairs)] : 1;
        }
    }
    __device__ void rotate(bool norm, float eps, const LaneAngles<HD>& a) {
        if (norm) {
            float q = 0;
            UNROLL for (int i = 0; i < PAIRS; i++) q += lo[i] * lo[i] + hi[i] * hi[i];
            for (int o = 16; o; o /= 2) q += __shfl_xor_sync(~0u, q, o);
            const float f = rsqrtf(q / HD + eps);
            UNROLL for (int i = 0; i < PAIRS; i++) lo[i] *= f * gl[i], hi[i] *= f * gh[i];
        }
        UNROLL for (int i = 0; i < PAIRS; i++) {
            const float x = lo[i] * a.c[i] - hi[i] * a.s[i], y = hi[i] * a.c[i] + lo[i] * a.s[i];
            lo[i] = x, hi[i] = y;
        }
    }
    template <class To> __device__ void store(To* to, int pairs) const {
        UNROLL for (int i = 0; i < PAIRS; i++) {
            const int j = threadIdx.x % 32 + 32 * i;
            if (HD % 64 == 0 || j < HD / 2) to[low(j, pairs)] = To(__float2bfloat16(lo[i])), to[high(j, pairs)] = To(__float2bfloat16(hi[i]));
        }
    }
};

__device__ inline float exp2_fast(float x) {  // 0 for -inf
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float finite(float top) { return top == -INFINITY ? 0.0f : top; }  // -inf - finite(-inf) is -inf, not NaN
template <int GROUPS> __device__ inline void group_barrier(int group) {  // constant names: a variable one would reserve all sixteen
    if (GROUPS == 1) __syncthreads();
    else if (group == 0) asm volatile("bar.sync 1, 128;" ::: "memory");
    else if (group == 1) asm volatile("bar.sync 2, 128;" ::: "memory");
    else if (group == 2) asm volatile("bar.sync 3, 128;" ::: "memory");
    else asm volatile("bar.sync 4, 128;" ::: "memory");
}

static constexpr int SPLITS = 16;  // of a row's pages
template <int HD> __host__ __device__ constexpr size_t attention_smem(int gq, int cluster) { return sizeof(float) * SPLITS * (size_t)((gq * HD + cluster - 1) / cluster); }
// The address in the block of rank r of the cluster that corresponds to p here.
__device__ inline uint32_t of_rank(const void* p, int r) {
    uint32_t a;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"((uint32_t)__cvta_generic_to_shared(p)), "r"(r));
    return a;
}
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Barriers in shared memory. Default scopes, as libraries do: at cluster scope they would wait for all of a thread's loads in flight.
__device__ inline uint32_t smem_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ inline void barrier_init(uint32_t bar, int arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory"); }
__device__ inline void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_expect(uint32_t bar, int bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory"); }
__device__ inline void barrier_arrive(uint32_t bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
__device__ inline void barrier_arrive_remote(uint32_t bar, int rank) {
    asm volatile("{.reg .b32 a; mapa.shared::cluster.u32 a, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [a];}" ::"r"(bar), "r"(rank) : "memory");
}
__device__ inline void barrier_wait(uint32_t bar, uint32_t parity) {
    asm volatile("{.reg .pred p;\n WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @p bra DONE;\n bra WAIT;\n DONE:}" ::"r"(bar), "r"(parity) : "memory");
}
// A float to another block's shared memory, whose barrier counts the bytes. Both addresses are the cluster's.
__device__ inline void send(uint32_t to, float a, uint32_t bar) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(a), "r"(bar) : "memory");
}

// One new token per row against its row's pages, for one KV head and its query heads, which a cluster of CL blocks shares.
// Order of sums: a row's pages are cut into 16 splits of adjacent pages (ceil(pages / 16) each); the softmax of a split runs over its
// pages in order; then splits and the new token are added in order. So it depends on the row's length alone, and neither on CL nor on
// GROUPS (of four warps, one split each at a time).
// A group and a page: warp w scores slots 16w.. (K is the A operand, heads are the columns of B), the group shares its probabilities,
// and warp w sums its dimensions (V is A). Blocks send their splits to the block that adds them: nobody reads another's memory.
template <int HD, int NQ, int GROUPS, int CL> __device__ void fused_attention_body(const FusedAttention& p, const Step& s) {
    constexpr int JK = (HD + 31) / 32, DT = (HD + 63) / 64, T = 128 * GROUPS, LOCAL = SPLITS / CL, Q = 8 * NQ, QS = JK * 32 + 8, WARPS = T / 32;
    static_assert(HD % 16 == 0, "head_dim");
    extern __shared__ __align__(16) float ro[];  // [split][share]
    __shared__ __align__(16) bf16 sq[Q][QS], sp[GROUPS][Q][PAGE + 8];
    __shared__ float smax[GROUPS][4][Q], kn[HD], sn[Q], rm[SPLITS][Q], rl[SPLITS][Q];
    __shared__ __align__(8) uint64_t received;
    const int tid = threadIdx.x, lane = tid % 32, g = lane / 4, t = lane % 4, group = tid / 128, w = tid / 32 % 4;
    const int rank = CL > 1 ? blockIdx.x : 0, h = blockIdx.y, token = s.first + blockIdx.z;
    MARK(0);
    if constexpr (CL > 1) {
        if (tid == 0) barrier_init(smem_address(&received), 1), barrier_init_done();
        __syncwarp();
        cluster_arrive();  // that all blocks have started, before the first send
    }
    const int position = s.tables.positions[token];
    const PageRun run = s.tables.page_runs[p.kv.group * s.tables.run_stride + p.first_row + blockIdx.z];
    const LaneAngles<HD> angles(p.cos + (size_t)token * p.pairs, p.sin + (size_t)token * p.pairs, p.pairs);  // written two kernels ago or more
    const int gq = p.heads / p.kv.heads, total = gq * HD, share = (total + CL - 1) / CL, inverse = (1 << 22) / share + 1;  // outputs; those that a block ends
    const int from = p.reach_len && position + 1 > (int)p.reach_len ? position + 1 - (int)p.reach_len : 0;
    const int page0 = from / PAGE, pages = position > from ? (position - 1) / PAGE + 1 - page0 : 0;
    const int per = (pages + SPLITS - 1) / SPLITS, splits = pages ? (pages + per - 1) / per : 0;
    const bool newest = rank == CL - 1;  // this block has the new token's score, and writes it
    const uint32_t* page_ids = s.tables.pages + run.start + (page0 - (int)run.first / PAGE);
    auto base_of = [&](int page) { return p.kv.pages + page_ids[page] * p.kv.page_bytes; };

    uint4 kf[JK][2], vf[DT][2][2];
    auto load_k = [&](const uint8_t* base) {
        const bf16* k = (const bf16*)(base + p.kv.keys) + ((size_t)h * PAGE + w * 16 + g) * HD + t * 8;
        UNROLL for (int half = 0; half < 2; half++)
            UNROLL for (int j = 0; j < JK; j++)
                kf[j][half] = (j + 1) * 32 <= HD || j * 32 + t * 8 < HD ? load_weights(k + half * 8 * HD + j * 32) : make_uint4(0, 0, 0, 0);
    };
    auto load_v = [&](const uint8_t* base) {
        const bf16* v = (const bf16*)(base + p.kv.values) + ((size_t)h * HD + w * DT * 16 + g) * PAGE + t * 8;
        UNROLL for (int dt = 0; dt < DT; dt++)
            if (HD % 64 == 0 || (w * DT + dt) * 16 < HD) {
                UNROLL for (int half = 0; half < 2; half++)
                    UNROLL for (int j = 0; j < 2; j++) vf[dt][j][half] = load_weights(v + (dt * 16 + half * 8) * PAGE + j * 32);
            }
    };
    // Pages are counted from page0. A group's splits ascend, and only the last ones are empty.
    int local = group, page = (local * CL + rank) * per;
    bool some = page < pages;
    if (some) {
        const uint8_t* base = base_of(page);
        load_k(base), load_v(base);
    }
    MARK(1);
    uint8_t* place = nullptr;
    if (newest) place = base_of(position / PAGE - page0);
    for (int i = tid; i < Q * QS / 8; i += T) ((uint4*)sq)[i] = make_uint4(0, 0, 0, 0);  // heads and dimensions that are not there
    if (CL > 1 && tid == 0) barrier_expect(smem_address(&received), 4 * (splits * (min(share, total - rank * share) + 2 * gq) + gq));
    __syncthreads();
    pdl_wait();  // only now: older tokens are final since the last step, and the new one's place is masked
    MARK(2);
    if (p.flags & TRIGGER) pdl_trigger();

    const float* qkv = p.qkv + (size_t)token * (p.heads + 2 * p.kv.heads) * HD;
    const float* new_value = qkv + (size_t)(p.heads + p.kv.heads + h) * HD;
    const int mine = rank * share + tid;  // the first output that this thread ends
    {
        const int heads = gq + newest;  // "head" gq is the new key
        for (int head = tid / 32; head < heads; head += 2 * WARPS) {
            RotatedHead<HD> r[2];
            UNROLL for (int i = 0; i < 2; i++) {
                const int at = head + i * WARPS;
                if (at < heads) r[i].load(qkv + (size_t)(at < gq ? h * gq + at : p.heads + h) * HD, at < gq ? p.query_gain : p.key_gain, p.pairs);
            }
            UNROLL for (int i = 0; i < 2; i++) {
                const int at = head + i * WARPS;
                if (at < heads) {
                    r[i].rotate((at < gq ? p.query_gain : p.key_gain) != nullptr, p.eps, angles);
                    if (at < gq) r[i].store(sq[at], p.pairs);
                    else r[i].store(kn, p.pairs);
                }
            }
        }
    }
    float value = tid < share && mine < total ? __ldcg(new_value + mine % HD) : 0;
    __syncthreads();
    MARK(3);
    const float factor = p.scale * 1.44269504f;  // scores are times log2(e)
    auto capped = [&](float x) { return tanhf(x * p.scale / p.softcap) * p.softcap * 1.44269504f; };
    bool met = CL == 1;  // all blocks of the cluster have started
    auto meet = [&] {
        if (!met) cluster_wait();
        met = true;
    };
    auto score_new = [&] {  // of the new token
        for (int head = w; head < gq; head += 4) {
            float x = 0;
            for (int d = lane; d < HD; d += 32) x += __bfloat162float(sq[head][d]) * kn[d];
            for (int o = 16; o; o /= 2) x += __shfl_xor_sync(~0u, x, o);
            x = p.softcap > 0 ? capped(x) : x * factor;
            if (lane < CL) {
                if constexpr (CL > 1) send(of_rank(&sn[head], lane), x, of_rank(&received, lane));
                else sn[head] = x;
            }
        }
    };
    if (newest && GROUPS > 1 && group == GROUPS - 1) meet(), score_new();

    for (; local < LOCAL && some; local += GROUPS) {
        const int split = local * CL + rank, end = min(pages, (split + 1) * per), following = ((local + GROUPS) * CL + rank) * per;
        float m[NQ][2], l[NQ][4], o[NQ][DT][4];  // of heads 2t and 2t+1
        UNROLL for (int nq = 0; nq < NQ; nq++) {
            m[nq][0] = m[nq][1] = -INFINITY;
            UNROLL for (int i = 0; i < 4; i++) {
                l[nq][i] = 0;
                UNROLL for (int dt = 0; dt < DT; dt++) o[nq][dt][i] = 0;
            }
        }
        while (page < end) {
            const int next = page + 1 < end ? page + 1 : local + GROUPS < LOCAL ? following : pages;
            const bool more = next < pages;  // loaded as the registers of this page become free
            const uint8_t* base = more ? base_of(next) : nullptr;
            const int first = (page0 + page) * PAGE, slot = first + w * 16 + g;
            float c[NQ][4];
            UNROLL for (int nq = 0; nq < NQ; nq++) {
                float c2[2][4] = {};  // two chains: half the latency
                UNROLL for (int j = 0; j < JK; j++) {  // 32 dimensions, permuted alike in both operands
                    const uint4 b = *(const uint4*)&sq[nq * 8 + g][j * 32 + t * 8];
                    mma(c2[0], kf[j][0].x, kf[j][1].x, kf[j][0].y, kf[j][1].y, b.x, b.y);
                    mma(c2[1], kf[j][0].z, kf[j][1].z, kf[j][0].w, kf[j][1].w, b.z, b.w);
                }
                UNROLL for (int i = 0; i < 4; i++) c[nq][i] = c2[0][i] + c2[1][i];
            }
            MARK(4);
            if (more) load_k(base);
            UNROLL for (int nq = 0; nq < NQ; nq++) {
                if (p.softcap > 0) {
                    UNROLL for (int i = 0; i < 4; i++) c[nq][i] = capped(c[nq][i]);
                } else {
                    UNROLL for (int i = 0; i < 4; i++) c[nq][i] *= factor;
                }
                UNROLL for (int i = 0; i < 4; i++)
                    if (slot + i / 2 * 8 < from || slot + i / 2 * 8 >= position) c[nq][i] = -INFINITY;
                UNROLL for (int i = 0; i < 2; i++) {
                    float top = fmaxf(c[nq][i], c[nq][i + 2]);
                    for (int d = 4; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
                    if (g == 0) smax[group][w][nq * 8 + 2 * t + i] = top;
                }
            }
            group_barrier<GROUPS>(group);
            UNROLL for (int nq = 0; nq < NQ; nq++)
                UNROLL for (int i = 0; i < 2; i++) {
                    const int head = nq * 8 + 2 * t + i;
                    float top = m[nq][i];
                    UNROLL for (int k = 0; k < 4; k++) top = fmaxf(top, smax[group][k][head]);
                    const float base2 = finite(top), alpha = exp2_fast(m[nq][i] - base2);
                    m[nq][i] = top, l[nq][i] *= alpha;
                    sp[group][head][w * 16 + g] = __float2bfloat16(exp2_fast(c[nq][i] - base2)), sp[group][head][w * 16 + g + 8] = __float2bfloat16(exp2_fast(c[nq][i + 2] - base2));
                    UNROLL for (int dt = 0; dt < DT; dt++) o[nq][dt][i] *= alpha, o[nq][dt][i + 2] *= alpha;
                }
            if (first + PAGE > position) {  // what lies beyond the sequence may be anything, and 0 * NaN is NaN
                UNROLL for (int j = 0; j < 2; j++) {
                    const int valid = position - first - j * 32 - t * 8;  // of eight slots
                    auto mask = [&](int pair) { return valid >= 2 * pair + 2 ? ~0u : valid == 2 * pair + 1 ? 0xffffu : 0u; };
                    UNROLL for (int dt = 0; dt < DT; dt++)
                        UNROLL for (int half = 0; half < 2; half++) vf[dt][j][half].x &= mask(0), vf[dt][j][half].y &= mask(1), vf[dt][j][half].z &= mask(2), vf[dt][j][half].w &= mask(3);
                }
            }
            group_barrier<GROUPS>(group);
            UNROLL for (int nq = 0; nq < NQ; nq++)
                UNROLL for (int j = 0; j < 2; j++) {
                    const uint4 b = *(const uint4*)&sp[group][nq * 8 + g][j * 32 + t * 8];
                    const uint32_t one = 0x3f803f80u;  // a row of ones sums the probabilities
                    mma(l[nq], one, one, one, one, b.x, b.y), mma(l[nq], one, one, one, one, b.z, b.w);
                    UNROLL for (int dt = 0; dt < DT; dt++) {
                        mma(o[nq][dt], vf[dt][j][0].x, vf[dt][j][1].x, vf[dt][j][0].y, vf[dt][j][1].y, b.x, b.y);
                        mma(o[nq][dt], vf[dt][j][0].z, vf[dt][j][1].z, vf[dt][j][0].w, vf[dt][j][1].w, b.z, b.w);
                    }
                }
            MARK(5);
            if (more) load_v(base);
            page++;
        }
        meet();
        MARK(6);
        UNROLL for (int nq = 0; nq < NQ; nq++)
            UNROLL for (int i = 0; i < 2; i++) {
                const int head = nq * 8 + 2 * t + i;
                if (head >= gq) continue;
                UNROLL for (int dt = 0; dt < DT; dt++)
                    UNROLL for (int half = 0; half < 2; half++) {
                        const int dim = (w * DT + dt) * 16 + g + 8 * half, at = head * HD + dim;
                        if (HD % 64 && (w * DT + dt) * 16 >= HD) continue;
                        if constexpr (CL > 1) {
                            const int owner = (uint32_t)at * inverse >> 22;
                            send(of_rank(ro, owner) + (split * share + at - owner * share) * 4, o[nq][dt][i + 2 * half], of_rank(&received, owner));
                        } else ro[(size_t)split * share + at] = o[nq][dt][i + 2 * half];
                    }
                if (w == 0 && g < CL) {
                    if constexpr (CL > 1) {
                        const uint32_t bar = of_rank(&received, g);
                        send(of_rank(&rm[split][head], g), m[nq][i], bar), send(of_rank(&rl[split][head], g), l[nq][i], bar);
                    } else rm[split][head] = m[nq][i], rl[split][head] = l[nq][i];
                }
            }
        page = following, some = following < pages;
    }
    meet();
    MARK(7);
    if (newest && GROUPS == 1) score_new();
    if constexpr (CL > 1) barrier_wait(smem_address(&received), 0);
    else __syncthreads();
    MARK(8);
    auto end = [&](auto parts) {
        constexpr int N = decltype(parts)::value;
        for (int j = tid; j < share; j += T) {
            const int i = rank * share + j, head = i / HD;
            if (i >= total) break;
            if (j != tid) value = __ldcg(new_value + i % HD);
            float bt[N], bs[N], by[N], top = sn[head];
            UNROLL for (int k = 0; k < N; k++) {
                const int from = k < splits ? k : 0;  // what was not sent is not read
                bt[k] = rm[from][head], bs[k] = rl[from][head], by[k] = ro[(size_t)from * share + j];
            }
            UNROLL for (int k = 0; k < N; k++) bt[k] = k < splits ? bt[k] : -INFINITY, top = fmaxf(top, bt[k]);
            const float f = exp2_fast(sn[head] - top);
            float sum = 0, y = 0;
            UNROLL for (int k = 0; k < N; k++) {
                const float fk = exp2_fast(bt[k] - top);
                sum += k < splits ? fk * bs[k] : 0, y += k < splits ? fk * by[k] : 0;
            }
            sum += f, y += f * round_bf16(value);
            const int to = h * total + i;
            p.out[x_index(p.flags & TILED, token, to, p.heads * HD, p.groups)] = __float2bfloat16(y / sum);
        }
    };
    if (splits <= 8) end(std::integral_constant<int, 8>());
    else end(std::integral_constant<int, 16>());
    MARK(9);
    if (newest) {  // last: nothing in this step waits for it
        bf16* k = (bf16*)(place + p.kv.keys) + ((size_t)h * PAGE + position % PAGE) * HD;
        bf16* v = (bf16*)(place + p.kv.values) + (size_t)h * HD * PAGE + position % PAGE;
        for (int d = tid; d < HD; d += T) k[d] = __float2bfloat16(kn[d]), v[d * PAGE] = __float2bfloat16(__ldcg(new_value + d));
    }
}
