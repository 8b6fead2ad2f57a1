// Attention of many new tokens per row: their heads are finished and stored (fused_qkv_finish), then attended to (fused_prompt_attention).
#pragma once
#include "fast.cuh"

struct RowTable { uint32_t first, tokens, first_snapshot, snapshots; uint64_t before, after; };
struct FusedQkvFinish {
    KvRef kv;
    const float* qkv;        // [token][(heads + 2 * kv.heads) * head_dim]
    const float *cos, *sin;  // [token][pairs]
    const float *query_gain, *key_gain;  // [head_dim], or none
    bf16* query;             // [token][heads * head_dim], as it is
    uint32_t heads, pairs;
    float eps;
    uint32_t flags;
};
struct FusedPromptAttention {
    KvRef kv;
    const bf16* query;
    bf16* out;               // [token][heads * head_dim], as x
    uint32_t heads;
    uint32_t reach_len;      // 0: all
    uint32_t first_row, row_count;
    float scale, softcap;
    uint32_t flags, groups;  // of a tiled out
};

__device__ inline uint8_t* page_of(const KvRef& kv, const Tables& t, uint32_t row, uint32_t position) {
    const PageRun run = t.page_runs[kv.group * t.run_stride + row];
    return kv.pages + t.pages[run.start + (position - run.first) / PAGE] * kv.page_bytes;
}

// Norm and rope of queries and keys, and keys and values to their pages: a block per 32 tokens and head. Grid: (count + 31) / 32 x
// heads + 2 * kv.heads; 256 threads.
template <int HD> __device__ void fused_qkv_finish_body(const FusedQkvFinish& p, const Step& s) {
    __shared__ bf16 tile[32][HD + 2];
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, head = blockIdx.y, first = blockIdx.x * 32, width = (p.heads + 2 * p.kv.heads) * HD;
    pdl_wait();
    if (p.flags & TRIGGER) pdl_trigger();
    if (head < (int)(p.heads + p.kv.heads)) {
        for (int i = warp; i < 32 && first + i < (int)s.count; i += 8) {
            const size_t m = s.first + first + i;
            const bool key = head >= (int)p.heads;
            const float* gain = key ? p.key_gain : p.query_gain;
            const LaneAngles<HD> angles(p.cos + m * p.pairs, p.sin + m * p.pairs, p.pairs);
            RotatedHead<HD> r;
            r.load(p.qkv + m * width + head * HD, gain, p.pairs), r.rotate(gain != nullptr, p.eps, angles);
            bf16* to = p.query + (m * p.heads + head) * HD;
            if (key) {
                const uint32_t position = s.tables.positions[m];
                to = (bf16*)(page_of(p.kv, s.tables, s.tables.token_row[m], position) + p.kv.keys) + ((head - p.heads) * PAGE + position % PAGE) * HD;
            }
            r.store(to, p.pairs);
        }
        return;
    }
    const int h = head - p.heads - p.kv.heads;
    for (int i = warp; i < 32 && first + i < (int)s.count; i += 8)
        for (int d = lane; d < HD; d += 32) tile[i][d] = __float2bfloat16(__ldcg(p.qkv + (s.first + first + i) * (size_t)width + head * HD + d));
    __syncthreads();
    if (first + lane < (int)s.count) {  // a lane per token: neighbours lie side by side in a page
        const size_t m = s.first + first + lane;
        const uint32_t position = s.tables.positions[m];
        bf16* v = (bf16*)(page_of(p.kv, s.tables, s.tables.token_row[m], position) + p.kv.values) + (size_t)h * HD * PAGE + position % PAGE;
        for (int d = warp; d < HD; d += 8) v[d * PAGE] = tile[lane][d];
    }
}

__device__ inline void copy16(uint32_t to, const void* from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); }
__device__ inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ inline void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
__device__ inline void mma_any(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {  // not volatile: the compiler may order it
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A block attends for 128 / gq tokens of a row with all query heads of one KV head: row r of its tile is token r / gq, head r % gq. It
// walks over the pages in reach; a warp has 16 rows. The softmax of a row runs over its pages in order, so it depends neither on how a
// prompt is cut nor on other rows. Grid: (tokens / (128 / gq) rounded up + rows) x kv.heads; 256 threads.
template <int HD> __host__ __device__ constexpr int prompt_stages() { return HD > 128 ? 2 : 3; }
template <int HD> __host__ __device__ constexpr size_t prompt_attention_smem() {
    return (size_t)prompt_stages<HD>() * (PAGE * (HD + 8) + HD * (PAGE + 8)) * 2 + (size_t)128 * (HD + 8) * 2;
}
template <int HD> __device__ void fused_prompt_attention_body(const FusedPromptAttention& p, const Step& s) {
    constexpr int KS = (HD + 8) * 2, VS = (PAGE + 8) * 2, STAGES = prompt_stages<HD>(), STAGE = PAGE * KS + HD * VS, KT = HD / 16, NT = HD / 8;
    constexpr bool KEEP = HD <= 128;  // queries stay in registers
    extern __shared__ __align__(128) uint8_t smem8[];
    __shared__ int found[3];
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4, h = blockIdx.y, gq = p.heads / p.kv.heads, per = 128 / gq;
    const RowTable* rows = (const RowTable*)s.tables.rows + p.first_row;
    if (warp == 0) {  // which row, and which of its blocks: the last first, since it has the most pages
        int base = 0, row = -1, block = 0;
        for (int i = 0; i < (int)p.row_count && row < 0; i += 32) {
            int mine = i + lane < (int)p.row_count ? (rows[i + lane].tokens + per - 1) / per : 0, sum = mine;
            for (int o = 1; o < 32; o *= 2) {
                const int v = __shfl_up_sync(~0u, sum, o);
                if (lane >= o) sum += v;
            }
            const int begin = base + sum - mine;
            const uint32_t hit = __ballot_sync(~0u, (int)blockIdx.x >= begin && (int)blockIdx.x < begin + mine);
            if (hit) {
                const int l = __ffs(hit) - 1;
                row = i + l, block = __shfl_sync(~0u, begin + mine - 1, l) - (int)blockIdx.x;
            }
            base = __shfl_sync(~0u, base + sum, 31);
        }
        if (lane == 0) found[0] = row, found[1] = block;
    }
    __syncthreads();
    const int row = found[0], block = found[1];
    pdl_wait();
    if (p.flags & TRIGGER) pdl_trigger();
    if (row < 0) return;
    const int token0 = rows[row].first + block * per, tokens = min(per, (int)rows[row].tokens - block * per);
    const int start = s.tables.positions[token0], limit = (int)s.tables.positions[rows[row].first] + (int)rows[row].tokens;  // no position at limit or beyond
    const PageRun run = s.tables.page_runs[p.kv.group * s.tables.run_stride + p.first_row + row];
    auto first_of = [&](int position) { return p.reach_len && position + 1 > (int)p.reach_len ? position + 1 - (int)p.reach_len : 0; };
    const int begin = first_of(start) / PAGE, end = (start + tokens - 1) / PAGE + 1;
    const uint32_t* page_ids = s.tables.pages + run.start - (int)run.first / PAGE;
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem8), sq = smem + STAGES * STAGE;

    auto load = [&](int page) {
        if (page < end) {
            const uint8_t* base = p.kv.pages + page_ids[page] * p.kv.page_bytes;
            const uint8_t *k = base + p.kv.keys + (size_t)h * PAGE * HD * 2, *v = base + p.kv.values + (size_t)h * PAGE * HD * 2;
            const uint32_t to = smem + (page - begin) % STAGES * STAGE;
            for (int i = tid; i < PAGE * HD / 8; i += 256) copy16(to + i / (HD / 8) * KS + i % (HD / 8) * 16, k + i * 16);
            for (int i = tid; i < PAGE * HD / 8; i += 256) copy16(to + PAGE * KS + i / (PAGE / 8) * VS + i % (PAGE / 8) * 16, v + i * 16);
        }
        copies_commit();
    };
    for (int i = tid; i < 128 * (HD / 8); i += 256) {
        const int r = i / (HD / 8), c = i % (HD / 8), token = r / gq;
        if (token < tokens && token < per) copy16(sq + r * KS + c * 16, p.query + ((size_t)(token0 + token) * p.heads + h * gq + r % gq) * HD + c * 8);
        else *(uint4*)(smem8 + STAGES * STAGE + r * KS + c * 16) = make_uint4(0, 0, 0, 0);
    }
    UNROLL for (int i = 0; i < STAGES - 1; i++) load(begin + i);

    // Of this lane's rows warp * 16 + g and + 8.
    int position[2], from[2];
    UNROLL for (int i = 0; i < 2; i++) {
        const int token = min((warp * 16 + g + 8 * i) / gq, tokens - 1);
        position[i] = start + token, from[i] = first_of(position[i]);
    }
    const uint32_t a_place = sq + (warp * 16 + lane % 16) * KS + lane / 16 * 16;
    uint32_t q[KEEP ? KT : 1][4];
    float o[NT][4], m[2] = {-INFINITY, -INFINITY}, l[2] = {};
    UNROLL for (int n = 0; n < NT; n++)
        UNROLL for (int i = 0; i < 4; i++) o[n][i] = 0;
    for (int page = begin; page < end; page++) {
        copies_wait<STAGES - 2>();
        const int first = page * PAGE;
        uint8_t* stage8 = smem8 + (page - begin) % STAGES * STAGE;
        if (limit < first + PAGE) {  // what lies beyond the sequence may be anything, and 0 * NaN is NaN
            __syncthreads();
            const int none = first + PAGE - limit;
            for (int i = tid; i < HD * none; i += 256) *(bf16*)(stage8 + PAGE * KS + i / none * VS + (PAGE - none + i % none) * 2) = __float2bfloat16(0);
        }
        __syncthreads();
        load(page + STAGES - 1);
        if (KEEP && page == begin) {
            UNROLL for (int k = 0; k < (KEEP ? KT : 1); k++) load_matrices(q[k], a_place + k * 32);
        }
        const uint32_t stage = smem + (page - begin) % STAGES * STAGE;
        float c[8][4];
        UNROLL for (int n = 0; n < 8; n++)
            UNROLL for (int i = 0; i < 4; i++) c[n][i] = 0;
        UNROLL for (int k = 0; k < KT; k++) {
            uint32_t qa[4];
            if (!KEEP) load_matrices(qa, a_place + k * 32);
            UNROLL for (int n = 0; n < 8; n += 2) {  // slots 8n.. and 8n + 8..
                uint32_t b[4];
                load_matrices(b, stage + (n * 8 + lane / 16 * 8 + lane % 8) * KS + k * 32 + lane / 8 % 2 * 16);
                mma_any(c[n], KEEP ? q[KEEP ? k : 0] : qa, b[0], b[1]), mma_any(c[n + 1], KEEP ? q[KEEP ? k : 0] : qa, b[2], b[3]);
            }
        }
        const bool masked = first + PAGE > start + 1 || first < first_of(start + tokens - 1);
        const float log2e = 1.44269504f;
        float top[2] = {m[0], m[1]};
        UNROLL for (int n = 0; n < 8; n++)
            UNROLL for (int i = 0; i < 4; i++) {
                float x = c[n][i] * p.scale;
                if (p.softcap > 0) x = tanhf(x / p.softcap) * p.softcap;
                x *= log2e;
                const int at = first + n * 8 + 2 * t + i % 2;
                if (masked && (at > position[i / 2] || at < from[i / 2])) x = -INFINITY;
                c[n][i] = x, top[i / 2] = fmaxf(top[i / 2], x);
            }
        float alpha[2];
        UNROLL for (int i = 0; i < 2; i++) {
            top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], 1)), top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], 2));
            const float base = finite(top[i]);  // -inf: nothing seen yet
            alpha[i] = exp2_fast(m[i] - base), m[i] = top[i], top[i] = base, l[i] *= alpha[i];
        }
        uint32_t pr[4][4];
        UNROLL for (int n = 0; n < 8; n++) {
            UNROLL for (int i = 0; i < 4; i++) c[n][i] = exp2_fast(c[n][i] - top[i / 2]), l[i / 2] += c[n][i];
            pr[n / 2][n % 2 * 2] = pack2(c[n][0], c[n][1]), pr[n / 2][n % 2 * 2 + 1] = pack2(c[n][2], c[n][3]);
        }
        UNROLL for (int n = 0; n < NT; n++)
            UNROLL for (int i = 0; i < 4; i++) o[n][i] *= alpha[i / 2];
        UNROLL for (int k = 0; k < 4; k++)
            UNROLL for (int n = 0; n < NT; n += 2) {
                uint32_t b[4];
                load_matrices(b, stage + PAGE * KS + (n * 8 + lane / 16 * 8 + lane % 8) * VS + k * 32 + lane / 8 % 2 * 16);
                mma_any(o[n], pr[k], b[0], b[1]), mma_any(o[n + 1], pr[k], b[2], b[3]);
            }
    }
    UNROLL for (int i = 0; i < 2; i++) {
        l[i] += __shfl_xor_sync(~0u, l[i], 1), l[i] += __shfl_xor_sync(~0u, l[i], 2);
        const int r = warp * 16 + g + 8 * i, token = r / gq;
        if (token >= tokens || token >= per) continue;
        const size_t at = token0 + token, head = h * gq + r % gq;
        UNROLL for (int n = 0; n < NT; n++)
            *(uint32_t*)(p.out + x_index(p.flags & TILED, at, head * HD + n * 8 + 2 * t, (size_t)p.heads * HD, p.groups)) = pack2(o[n][2 * i] / l[i], o[n][2 * i + 1] / l[i]);
    }
}
