// The linears of fast.cuh for more than eight tokens, on wgmma, with the same order of sums; wgmma rounds as mma does: the same bits.
//
// A block computes panels of 64 rows for each of its warpgroups x NT tokens. Two warps bring, 64 columns at a time (a quad of k16
// steps), the weights of the panel and the tokens' x into a ring of stages in shared memory by bulk copies; each warpgroup loads its
// weights from there into registers, where a warp's fragments are the same as for mma, and multiplies them by x (x_tiled).
//
//   CK > 1  The blocks of a cluster cut K and keep the sums of their parts; a block adds all parts of its share of the tokens. For
//           matrices of too few rows to fill the GPU.
//   CT > 1  The blocks of a cluster have the same rows, but other tokens, and share the weights by multicast.
#pragma once
#include "wgmma.cuh"

static constexpr int MAX_QUADS = 512, MAX_GROUPS = 4;

// K as a list of quads: 64 columns (four steps of k16) of which a part may have only some. A quad on the border of two parts is
// there twice. Entry: column / 64, mask of the steps << 16, last of its part << 20.
__device__ inline int list_quads(uint32_t* list, int cols, int parts, int first_part, int end_part) {  // by all threads; a barrier follows
    const int blocks = cols / 32;
    int n = 0;
    for (int part = first_part; part < end_part; part++) {
        const int b0 = part * blocks / parts, b1 = (part + 1) * blocks / parts, q0 = b0 / 2, q1 = (b1 + 1) / 2;
        for (int q = q0 + threadIdx.x; q < q1; q += blockDim.x) {
            const uint32_t mask = (2 * q >= b0 ? 3 : 0) | (2 * q + 1 < b1 ? 12 : 0);
            list[n + q - q0] = q | mask << 16 | (uint32_t)(q + 1 == q1) << 20;
        }
        n += q1 - q0;
    }
    return n;
}
__host__ __device__ constexpr int gemm_stage(int nt, int groups) { return groups * 8192 + nt * 128; }
// The sums of parts that a block keeps for its cluster; per: parts of a block.
__host__ __device__ constexpr int gemm_kept(int nt, int ck, int groups, int per) { return ck > 1 ? per * groups * nt * 256 : 0; }
static constexpr int GEMM_MAX_STAGES = 10, GEMM_SMEM = 212 * 1024;
__host__ __device__ constexpr int gemm_stages(int nt, int ck, int groups, int per) {
    const int n = (GEMM_SMEM - gemm_kept(nt, ck, groups, per)) / gemm_stage(nt, groups);
    return n < GEMM_MAX_STAGES ? n : GEMM_MAX_STAGES;
}
__host__ __device__ constexpr int gemm_smem(int nt, int ck, int groups, int per) {  // 1024: to begin at a multiple of it
    return 1024 + gemm_kept(nt, ck, groups, per) + gemm_stages(nt, ck, groups, per) * gemm_stage(nt, groups);
}
__host__ __device__ constexpr int gemm_threads(int nt) { return 128 + 128 * (nt > 64 ? 2 : MAX_GROUPS); }  // at most

__device__ inline bool elect() {  // one lane, known as such to the compiler
    uint32_t one;
    asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(one));
    return one;
}
__device__ inline uint32_t of_rank(uint32_t at, int rank) {
    uint32_t a;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(at), "r"(rank));
    return a;
}
__device__ inline float4 load_remote(uint32_t at) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
    return v;
}
// Barriers after which one block reads what another wrote.
__device__ inline void barrier_arrive_cluster(uint32_t bar, int rank) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(of_rank(bar, rank)) : "memory");
}
__device__ inline void barrier_wait_cluster(uint32_t bar, uint32_t parity) {
    asm volatile("{.reg .pred p;\n WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n @p bra DONE;\n bra WAIT;\n DONE:}" ::"r"(bar), "r"(parity) : "memory");
}
// inverse_rms of up to four tokens: their loads are in flight together.
__device__ inline void inverse_rms4(float* scales, const FusedLinear& p, size_t first, int there) {
    float sum[4] = {};
#pragma unroll 2
    for (int i = threadIdx.x % 32 * 4; i < (int)p.sum_count; i += 128) {
        float4 v[4];
        UNROLL for (int k = 0; k < 4; k++) v[k] = load_sums(p.sums + (first + min(k, there - 1)) * p.sum_count, i, p.sum_count);
        UNROLL for (int k = 0; k < 4; k++) sum[k] += add4(v[k]);
    }
    UNROLL for (int k = 0; k < 4; k++) {
        for (int o = 16; o; o /= 2) sum[k] += __shfl_xor_sync(~0u, sum[k], o);
        if (threadIdx.x % 32 == 0) scales[k] = rsqrtf(sum[k] / p.cols + p.eps);
    }
}

// Threads: 128 + 128 per warpgroup that multiplies. Grid: clusters of CK * CT blocks, which walk over the items: panels of rows x CT
// blocks of NT tokens, tokens first. LARGEST: one block of tokens.
template <int NT, int CK, int CT, int EPI> __device__ void gemm_body(const FusedLinear& p, const Step& s) {
    constexpr int CL = CK * CT, J = NT / 8, JR = (J + CK - 1) / CK, X_BYTES = NT * 128;
    constexpr bool TWO = NT > 64;  // quads of weights in registers: one is loaded while the other is multiplied
    extern __shared__ uint8_t smem_raw[];
    __shared__ __align__(8) uint64_t full[GEMM_MAX_STAGES], empty[GEMM_MAX_STAGES], kept[MAX_GROUPS * 4], taken[MAX_GROUPS * 4];
    __shared__ uint32_t list[MAX_QUADS];
    __shared__ float scales[2][NT];
    __shared__ float2 top[EPI == LARGEST ? NT : 1][TWO ? 8 : MAX_GROUPS * 4];
    __shared__ bool last;
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, groups = blockDim.x / 128 - 1;
    const int rank = CL > 1 ? blockIdx.x % CL : 0, cluster = blockIdx.x / CL, clusters = gridDim.x / CL, count = s.count;
    const int k_rank = rank % CK, token_rank = rank / CK, per = p.parts / CK;
    const uint32_t full0 = smem_address(full), empty0 = smem_address(empty), kept0 = smem_address(kept), taken0 = smem_address(taken);
    const int tiles16 = (p.rows + 15) / 16, panel16 = groups * 4, panels = (tiles16 + panel16 - 1) / panel16;
    const int token_blocks = (count + NT - 1) / NT, columns = (token_blocks + CT - 1) / CT, items = panels * columns;
    const int stage_bytes = gemm_stage(NT, groups), stages = gemm_stages(NT, CK, groups, per);
    const uint32_t ring = (smem_address(smem_raw) + 1023) / 1024 * 1024, sums = ring + stages * stage_bytes;  // [part][warpgroup][8 tokens][thread][4]
    const int n = list_quads(list, p.cols, p.parts, k_rank * per, k_rank * per + per);
    if (tid < stages) barrier_init(full0 + tid * 8, 1), barrier_init(empty0 + tid * 8, panel16 * CT);
    if (CK > 1 && tid < panel16) barrier_init(kept0 + tid * 8, CK), barrier_init(taken0 + tid * 8, CK);
    if (tid < 32) barrier_init_done();
    __syncthreads();
    if constexpr (CL > 1) cluster_arrive();
    if constexpr (CT > 1) cluster_wait();
    auto tile16_of = [&](int item) { return item / columns * panel16; };
    auto block_of = [&](int item) { return item % columns * CT + token_rank; };

    if (warp < 4) {
        if constexpr (NT == 128) registers_shrink<56>();
        if constexpr (NT == 64) registers_shrink<56>();
        if (warp < 2) {  // bring weights, half of the pieces each; the first warp also brings x
            if (elect()) {
                const uint32_t row_bytes = p.cols * 32;
                const int share = panel16 / 2 / CT, first_piece = (token_rank * 2 + warp) * share;
                const uint8_t *weights, *x;
                uint32_t pieces, own;
                bool vectors;
                auto open = [&](int item) {
                    const int tile16 = tile16_of(item);
                    pieces = min(panel16, tiles16 - tile16), own = max(0, min(share, (int)pieces - first_piece)), vectors = block_of(item) < token_blocks;
                    weights = (const uint8_t*)p.weights + (size_t)(tile16 + first_piece) * row_bytes;
                    x = (const uint8_t*)p.x + (size_t)(s.first + block_of(item) * NT) / 8 * 1024;
                };
                auto bring_weights = [&](uint32_t k, int stage) {
                    const uint32_t bar = full0 + stage * 8, bytes = min(2048u, row_bytes - k * 2048);
                    uint32_t to = ring + stage * stage_bytes + first_piece * 2048;
                    const uint8_t* from = weights + k * 2048;
                    if (warp == 0) barrier_expect(bar, pieces * bytes + (vectors ? X_BYTES : 0));
                    for (uint32_t i = 0; i < own; i++, from += row_bytes, to += 2048) {
                        if constexpr (CT > 1) bulk_copy_multicast(to, from, bytes, bar, (1 << CT) - 1);
                        else bulk_copy(to, from, bytes, bar);
                    }
                };
                auto bring_x = [&](uint32_t k, int stage) {
                    if (warp == 0 && vectors) bulk_copy(ring + stage * stage_bytes + groups * 8192, x + (size_t)k * p.groups * 1024, X_BYTES, full0 + stage * 8);
                };
                // The first weights do not depend on the kernel before.
                int item = cluster, q = 0, early = 0;
                for (; early < stages && item < items; early++) {
                    if (q == 0) open(item);
                    bring_weights(list[q] & 0xffff, early);
                    if (++q == n) q = 0, item += clusters;
                }
                pdl_wait();
                asm volatile("fence.proxy.async.global;" ::: "memory");
                item = cluster, q = 0;
                for (int i = 0; i < early; i++) {
                    if (q == 0) open(item);
                    bring_x(list[q] & 0xffff, i);
                    if (++q == n) q = 0, item += clusters;
                }
                int stage = 0;
                uint32_t parity = 0;
                while (item < items) {
                    if (q == 0) open(item);
                    for (; q < n; q++) {
                        const uint32_t k = list[q] & 0xffff;
                        barrier_wait(empty0 + stage * 8, parity);
                        bring_weights(k, stage), bring_x(k, stage);
                        if (++stage == stages) stage = 0, parity ^= 1;
                    }
                    q = 0, item += clusters;
                }
            }
        } else {  // 1/rms of each token, while the first tile is multiplied
            pdl_wait();
            if (p.sums) {
                int block = -1, turn = 0;
                for (int item = cluster; item < items; item += clusters) {
                    if (block_of(item) == block) continue;
                    block = block_of(item);
                    for (int i = (warp - 2) * 4; i < NT && block * NT + i < count; i += 8) inverse_rms4(scales[turn] + i, p, s.first + block * NT + i, count - block * NT - i);
                    turn ^= 1;
                    asm volatile("bar.sync 1, %0;" ::"r"(64 + groups * 128) : "memory");
                }
            }
        }
        __syncwarp();
        if constexpr (CL > 1 && CT == 1) cluster_wait();
    } else {
        if constexpr (NT == 128) registers_grow<224>();
        if constexpr (NT == 64) registers_grow<104>();
        const int w = warp - 4, wg = w / 4, thread = tid % 128, g = lane / 4, t = lane % 4;
        pdl_wait();
        if constexpr (CL > 1 && CT == 1) cluster_wait();
        if constexpr (EPI == LARGEST)
            for (int i = lane; i < NT; i += 32) top[i][w] = make_float2(-INFINITY, __int_as_float(0x7fffffff));
        float acc[NT / 2], sum[CK > 1 ? 1 : NT / 2];
        int stage = 0, before = -1, block = -1, turn = 1;  // before: the stage that is being multiplied
        uint32_t parity = 0, turn_kept = 0;
        const uint32_t mine = ring + w * 2048 + lane * 16;
        auto release = [&] {
            if constexpr (CT == 1) {
                if (lane == 0) barrier_arrive(empty0 + before * 8);
            } else if (lane < CT) barrier_arrive_remote(empty0 + before * 8, lane);
        };
        auto step = [&](uint4 (&f)[4], uint32_t quad, bool first) {
            barrier_wait(full0 + stage * 8, parity);
            if (!TWO && !first) wgmma_wait<0>(), release();
            UNROLL for (int j = 0; j < 4; j++)
                asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(f[j].x), "=r"(f[j].y), "=r"(f[j].z), "=r"(f[j].w) : "r"(mine + stage * stage_bytes + j * 512) : "memory");
            if ((quad >> 16 & 15) != 15) {
                UNROLL for (int j = 0; j < 4; j++)
                    if (!(quad >> (16 + j) & 1)) f[j] = make_uint4(0, 0, 0, 0);
            }
            const uint64_t b = wgmma_operand(ring + stage * stage_bytes + groups * 8192);
            wgmma_fence();
            UNROLL for (int j = 0; j < 4; j++) wgmma<NT>(acc, f[j], b + 2 * j, j > 0 || !first);
            wgmma_commit();
            if (TWO && !first) wgmma_wait<1>(), release();
            before = stage;
            if (++stage == stages) stage = 0, parity ^= 1;
        };
        for (int item = cluster; item < items; item += clusters) {
            if ((p.flags & TRIGGER) && item + clusters >= items) pdl_trigger();
            if constexpr (CK == 1) {
                UNROLL for (int j = 0; j < NT / 2; j++) sum[j] = 0;
            }
            for (int q = 0, part = 0; q < n; part++) {
                uint4 f[TWO ? 2 : 1][4];
                uint32_t quad = list[q++];
                step(f[0], quad, true);
                while (!(quad >> 20)) {
                    quad = list[q++];
                    step(f[TWO ? 1 : 0], quad, false);
                    if (!TWO || quad >> 20) continue;
                    quad = list[q++];
                    step(f[0], quad, false);
                }
                wgmma_wait<0>(), release();
                if constexpr (CK == 1) {
                    UNROLL for (int j = 0; j < NT / 2; j++) sum[j] += acc[j];
                } else {
                    if (part == 0 && item != cluster) barrier_wait_cluster(taken0 + w * 8, turn_kept ^ 1);
                    UNROLL for (int j = 0; j < J; j++)
                        asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(sums + ((part * groups + wg) * J + j) * 2048 + thread * 16), "f"(acc[j * 4]), "f"(acc[j * 4 + 1]), "f"(acc[j * 4 + 2]), "f"(acc[j * 4 + 3]) : "memory");
                }
            }
            if (p.sums && block_of(item) != block) {
                block = block_of(item), turn ^= 1;
                asm volatile("bar.sync 1, %0;" ::"r"(64 + groups * 128) : "memory");
            }
            if constexpr (CK > 1) {  // a warp needs the sums of the warps that have the same rows
                __syncwarp();
                if (lane < CK) barrier_arrive_cluster(kept0 + w * 8, token_rank * CK + lane);
                barrier_wait_cluster(kept0 + w * 8, turn_kept);
            }
            const int tile16 = tile16_of(item) + w, j0 = k_rank * JR, r0 = tile16 * 16 + g, r8 = r0 + 8;
            if (tile16 < tiles16 && j0 < J) {
                const bool there0 = r0 < p.rows, there8 = r8 < p.rows;
                const float bias0 = EPI != GATED && p.bias && there0 ? p.bias[r0] : 0, bias8 = EPI != GATED && p.bias && there8 ? p.bias[r8] : 0;
                const float gain0 = EPI == RESIDUAL && there0 ? p.gain[r0] : 0, gain8 = EPI == RESIDUAL && there8 ? p.gain[r8] : 0;
                const int first = block_of(item) * NT + j0 * 8 + 2 * t, left = count - first;  // this lane's tokens: first + 8 * i + c
                const size_t m = s.first + first;
                float* out = p.out + m * p.rows + r0;
                bf16* next[2][2];  // of token c, row r0 or r8
                UNROLL for (int c = 0; c < 2; c++) {
                    if (EPI == GATED) next[c][0] = p.next + x_tiled(m + c, tile16 * 8 + g, p.groups);
                    if (EPI == RESIDUAL) next[c][0] = p.next + x_tiled(m + c, r0, p.groups), next[c][1] = p.next + x_tiled(m + c, r8, p.groups);
                }
                const float2* scale = (const float2*)(scales[turn] + j0 * 8 + 2 * t);
                constexpr int JU = JR < 2 ? 1 : 2;
                UNROLL for (int i0 = 0; i0 < JR; i0 += JU) {
                    float y[JU][4], old[JU][4];
                    if (EPI == RESIDUAL) {
                        UNROLL for (int i = 0; i < JU; i++)
                            UNROLL for (int c = 0; c < 2; c++) {
                                const bool live = (i0 + i) * 8 + c < left;
                                const float* from = out + (size_t)((i0 + i) * 8 + c) * p.rows;
                                old[i][c] = live && there0 ? __ldcg(from) : 0, old[i][2 + c] = live && there8 ? __ldcg(from + 8) : 0;
                            }
                    }
                    if constexpr (CK > 1) {
                        UNROLL for (int i = 0; i < JU; i++) y[i][0] = y[i][1] = y[i][2] = y[i][3] = 0;
                        for (int part0 = 0; part0 < (int)p.parts; part0 += 4) {
                            float4 v[4][JU];
                            UNROLL for (int k = 0; k < 4; k++) {
                                const int part = part0 + k, from = part / per;
                                const uint32_t at = of_rank(sums + ((part - from * per) * groups + wg) * J * 2048 + (j0 + i0) * 2048 + thread * 16, token_rank * CK + from);
                                UNROLL for (int i = 0; i < JU; i++) v[k][i] = load_remote(at + i * 2048);
                            }
                            UNROLL for (int k = 0; k < 4; k++)
                                UNROLL for (int i = 0; i < JU; i++) y[i][0] += v[k][i].x, y[i][1] += v[k][i].y, y[i][2] += v[k][i].z, y[i][3] += v[k][i].w;
                        }
                    } else {
                        UNROLL for (int i = 0; i < JU; i++)
                            UNROLL for (int c = 0; c < 4; c++) y[i][c] = sum[CK > 1 ? 0 : (i0 + i) * 4 + c];
                    }
                    UNROLL for (int i = 0; i < JU; i++) {
                        const float2 f = p.sums ? scale[(i0 + i) * 4] : make_float2(1, 1);
                        UNROLL for (int c = 0; c < 2; c++) {
                            const bool live = (i0 + i) * 8 + c < left;
                            const float factor = c ? f.y : f.x;
                            float y0 = y[i][c] * factor + bias0, y8 = y[i][2 + c] * factor + bias8;
                            float* to = out + (size_t)((i0 + i) * 8 + c) * p.rows;
                            if (EPI == STORE) {
                                if (live && there0) to[0] = y0;
                                if (live && there8) to[8] = y8;
                            }
                            if (EPI == GATED && live) next[c][0][(i0 + i) * 512] = __float2bfloat16(activate(y0, p.activation) * y8);
                            if (EPI == RESIDUAL) {
                                y0 = fmaf(p.factor, y0, old[i][c]), y8 = fmaf(p.factor, y8, old[i][2 + c]);
                                if (live && there0) to[0] = y0, next[c][0][(i0 + i) * 512] = __float2bfloat16(y0 * gain0);
                                if (live && there8) to[8] = y8, next[c][1][(i0 + i) * 512] = __float2bfloat16(y8 * gain8);
                                float v = __fadd_rn(__fmul_rn(y0, y0), __fmul_rn(y8, y8));  // the tree of fused_linear
                                v += __shfl_xor_sync(~0u, v, 16), v += __shfl_xor_sync(~0u, v, 8), v += __shfl_xor_sync(~0u, v, 4);
                                if (live && g == 0) p.next_sums[(m + (i0 + i) * 8 + c) * tiles16 + tile16] = v;
                            }
                            if (EPI == LARGEST) {
                                const float2 none = make_float2(-INFINITY, __int_as_float(0x7fffffff));
                                float2 b = better(live && there0 ? candidate(y0, r0) : none, live && there8 ? candidate(y8, r8) : none);
                                b = better(b, shuffle(b, 16)), b = better(b, shuffle(b, 8)), b = better(b, shuffle(b, 4));
                                float2& to = top[EPI == LARGEST ? (j0 + i0 + i) * 8 + 2 * t + c : 0][w];
                                if (g == 0) to = better(to, b);
                            }
                        }
                    }
                }
            }
            if constexpr (CK > 1) {
                __syncwarp();
                if (lane < CK) barrier_arrive_cluster(taken0 + w * 8, token_rank * CK + lane);
                turn_kept ^= 1;
            }
        }
        if constexpr (EPI == LARGEST) {
            const int threads = groups * 128, me = tid - 128;
            asm volatile("bar.sync 2, %0;" ::"r"(threads) : "memory");
            if (me < NT && me < count && me / 8 / JR == k_rank) {
                float2 b = top[EPI == LARGEST ? me : 0][0];
                for (int i = 1; i < groups * 4; i++) b = better(b, top[EPI == LARGEST ? me : 0][i]);
                p.candidates[(size_t)me * clusters + cluster] = b;
                __threadfence();
            }
            asm volatile("bar.sync 2, %0;" ::"r"(threads) : "memory");
            if (me == 0) last = atomicAdd(p.arrivals, 1) == gridDim.x - 1;
            asm volatile("bar.sync 2, %0;" ::"r"(threads) : "memory");
            if (last) {
                __threadfence();
                for (int i = w; i < count; i += groups * 4) {
                    float2 b = make_float2(-INFINITY, __int_as_float(0x7fffffff));
                    for (int k = lane; k < clusters; k += 32) b = better(b, __ldcg(&p.candidates[(size_t)i * clusters + k]));
                    for (int o = 16; o; o /= 2) b = better(b, shuffle(b, o));
                    if (lane == 0) p.tokens[s.first + i] = __float_as_int(b.y);
                }
                if (me == 0) *p.arrivals = 0;
            }
        }
    }
    if constexpr (CL > 1) {
        __syncwarp();
        cluster_arrive(), cluster_wait();  // no block leaves while others use its shared memory
    }
}
