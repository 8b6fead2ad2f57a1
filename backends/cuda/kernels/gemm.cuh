// The linears of fast.cuh for more than eight tokens, on wgmma. Weights come straight from global memory into registers as A
// operands (a warp's fragments are the same as for mma), x is tiled (x_tiled) and comes by bulk copies into shared memory.
// The order of sums is that of fused_linear, and wgmma rounds as mma does: the same bits.
//
//   gemm_batch    Up to 128 tokens: bound by memory. A cluster of blocks cuts K into its parts, so that a block needs only its
//                 part of x, and keeps it where it fits. Each warpgroup of a block walks over tiles of 64 rows; after each, the
//                 blocks send their sums through shared memory, and each adds those of its share of tokens.
//   gemm_prompt   More: bound by tensor cores. A block computes 128 rows x 128 tokens over all of K; a part's sum is added to
//                 the total in registers. A cluster of blocks with different rows shares x by multicast.
#pragma once
#include "wgmma.cuh"

static constexpr int MAX_QUADS = 512;

// K as a list of quads: 64 columns (four steps of k16) of which a part may have only some. A quad on the border of two parts is
// there twice. Entry: column / 64, mask of the steps << 16, first of its part << 20, last << 21.
__device__ inline int list_quads(uint32_t* list, int cols, int parts, int first_part, int end_part) {  // by all threads; a barrier follows
    const int blocks = cols / 32;
    int n = 0;
    for (int part = first_part; part < end_part; part++) {
        const int b0 = part * blocks / parts, b1 = (part + 1) * blocks / parts, q0 = b0 / 2, q1 = (b1 + 1) / 2;
        for (int q = q0 + threadIdx.x; q < q1; q += blockDim.x) {
            const uint32_t mask = (2 * q >= b0 ? 3 : 0) | (2 * q + 1 < b1 ? 12 : 0);
            list[n + q - q0] = q | mask << 16 | (uint32_t)(q == q0) << 20 | (uint32_t)(q + 1 == q1) << 21;
        }
        n += q1 - q0;
    }
    return n;
}
struct Fragments {  // of a quad
    uint4 a[4];
};
// The weights on their way: each warp has a ring of quads of its own 16 rows, which bulk copies fill. Loads into registers would do,
// but the compiler has too few scoreboards to wait for one quad and not for those behind it.
template <int R> struct WarpRing {
    uint32_t data, bars;  // R quads of 2048 bytes; R barriers
    int lane;
    __device__ void fill(int slot, const bf16* tile, uint32_t quad, int cols, bool there) const {  // tile: of 16 rows
        if (there && lane == 0) {
            const int k = quad & 0xffff, bytes = min(2048, (cols / 16 - k * 4) * 512);
            barrier_expect(bars + slot * 8, bytes);
            bulk_copy(data + slot * 2048, tile + (size_t)k * 1024, bytes, bars + slot * 8);
        }
    }
    __device__ void take(Fragments& f, int slot, uint32_t parity, uint32_t quad, bool there) const {
        if (there) barrier_wait(bars + slot * 8, parity);
        UNROLL for (int j = 0; j < 4; j++) {
            uint4& v = f.a[j];
            asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(data + slot * 2048 + j * 512 + lane * 16) : "memory");
        }
        if (!there || (quad >> 16 & 15) != 15) {
            UNROLL for (int j = 0; j < 4; j++)
                if (!there || !(quad >> (16 + j) & 1)) f.a[j] = make_uint4(0, 0, 0, 0);
        }
        __syncwarp();  // all lanes have read: the slot may be filled again
    }
};
// acc (+)= fragments * stage. Waits for the result: other warpgroups keep the tensor cores busy meanwhile.
template <int NT> __device__ inline void multiply(float (&acc)[NT / 2], const Fragments& f, uint32_t stage, bool first) {
    const uint64_t b = wgmma_operand(stage);
    wgmma_fence();
    UNROLL for (int j = 0; j < 4; j++) wgmma<NT>(acc, f.a[j], b + 2 * j, j > 0 || !first);
    wgmma_commit();
    wgmma_wait<0>();
}

// ------------------------------------------------------------------- batch

// A cluster of four blocks cuts K: each has per = parts / 4 parts. Warpgroup w of a block has part w % per of tile w / per (64 rows),
// pass after pass. A block ends NT / 4 of the tokens: the others send it their sums of parts.
static constexpr int BATCH_CLUSTER = 4;
__host__ __device__ constexpr int batch_threads(int nt) { return nt <= 64 ? 512 : 256; }  // at most
__host__ __device__ constexpr int batch_stages(int nt) { return nt <= 32 ? 16 : 6; }  // of x, 64 columns each
__host__ __device__ constexpr int batch_ring(int nt) { return nt <= 16 ? 5 : 3; }  // quads of weights per warp
__host__ __device__ constexpr int batch_stride(int nt) { return nt / BATCH_CLUSTER + 2; } // floats between rows of a received part
__host__ __device__ constexpr size_t batch_smem(int nt, int warpgroups) {
    return 1024 + (size_t)batch_stages(nt) * nt * 128 + (size_t)warpgroups * 4 * batch_ring(nt) * 2048 + (size_t)warpgroups * BATCH_CLUSTER * 64 * batch_stride(nt) * 4;
}

// blockDim = 128 * warpgroups, a multiple of per; grid = clusters * 4 x blocks of NT tokens. The first warpgroup of each part also
// brings its x.
template <int NT, int EPI> __device__ void gemm_batch_body(const FusedLinear& p, const Step& s) {
    constexpr int CL = BATCH_CLUSTER, RQ = batch_ring(NT), STAGES = batch_stages(NT), STAGE = NT * 128, TS = NT / CL, STRIDE = batch_stride(NT);
    extern __shared__ uint8_t smem_raw[];
    __shared__ __align__(8) uint64_t full[STAGES], empty[STAGES], landed[batch_threads(NT) / 32 * RQ], received, taken;
    __shared__ uint32_t list[MAX_QUADS];
    __shared__ float scale[TS];
    __shared__ float2 top[TS][8];
    __shared__ bool last;
    uint8_t* smem = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, wg = tid / 128, g = lane / 4, t = lane % 4, threads = blockDim.x, groups = threads / 128;
    const int rank = blockIdx.x % CL, cluster = blockIdx.x / CL, clusters = gridDim.x / CL, per = p.parts / CL, my_part = wg % per, my_tile = wg / per, per_pass = groups / per;
    const int tiles16 = (p.rows + 15) / 16, tiles = (p.rows + 63) / 64, passes = (tiles + clusters * per_pass - 1) / (clusters * per_pass), token0 = blockIdx.y * NT, count = s.count;
    const int bytes = p.parts * per_pass * 64 * TS * 4;  // that a pass brings
    const WarpRing<RQ> ring_w{smem_address(smem + STAGES * STAGE + warp * RQ * 2048), smem_address(landed + warp * RQ), lane};
    float* parts = (float*)(smem + STAGES * STAGE + groups * 4 * RQ * 2048);  // [part][tile][row][STRIDE]
    if (tid == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(smem_address(&full[i]), 1), barrier_init(smem_address(&empty[i]), per_pass);
        for (int i = 0; i < groups * 4 * RQ; i++) barrier_init(smem_address(&landed[i]), 1);
        barrier_init(smem_address(&received), 1), barrier_init(smem_address(&taken), CL * groups);
        barrier_init_done();
        barrier_expect(smem_address(&received), bytes);
    }
    int n = 0;  // quads of this warpgroup's part
    const uint32_t* quads = list;
    for (int i = 0, at = 0; i < per; i++) {
        const int c = list_quads(list + at, p.cols, p.parts, rank * per + i, rank * per + i + 1);
        if (i == my_part) quads = list + at, n = c;
        at += c;
    }
    if (EPI == LARGEST)
        for (int i = tid; i < TS * 8; i += threads) top[i / 8][i % 8] = make_float2(-INFINITY, __int_as_float(0x7fffffff));
    __syncthreads();
    cluster_arrive();

    const int ring = STAGES / per, ring0 = my_part * ring;  // of x
    const bool resident = n <= ring, brings = my_tile == 0 && tid % 128 == 0;
    const int copies = resident ? n : n * passes;
    auto bring = [&](int i) {
        const int stage = ring0 + i % ring;
        const uint32_t bar = smem_address(&full[stage]);
        if (i >= ring) barrier_wait(smem_address(&empty[stage]), (i / ring - 1) & 1);
        barrier_expect(bar, STAGE);
        bulk_copy(smem_address(smem + stage * STAGE), p.x + ((size_t)(quads[i % n] & 0xffff) * p.groups + (s.first + token0) / 8) * 512, STAGE, bar);
    };
    auto tile_of = [&](int pass) { return (pass * clusters + cluster) * per_pass + my_tile; };
    const bf16* weights = p.weights + (size_t)(warp % 4) * (p.cols / 16) * 256;
    auto place = [&](int pass) { return weights + (size_t)tile_of(pass) * 4 * (p.cols / 16) * 256; };
    auto there = [&](int pass) { return tile_of(pass) * 4 + warp % 4 < tiles16; };
    // Fills: quad q of the list of all passes goes to slot q % RQ.
    for (int i = 0; i < RQ && i < n * passes; i++) ring_w.fill(i, place(i / n), quads[i % n], p.cols, there(i / n));
    pdl_wait();
    if (brings) {
        asm volatile("fence.proxy.async.global;" ::: "memory");
        for (int i = 0; i < ring && i < copies; i++) bring(i);
    }
    __syncwarp();
    for (int i = warp; i < TS; i += groups * 4) {
        const int token = token0 + rank * TS + i;
        float v = 1;
        if (p.sums && token < count) v = inverse_rms(p.sums + (size_t)(s.first + token) * p.sum_count, p.sum_count, p.cols, p.eps);
        if (lane == 0) scale[i] = v;
    }
    __syncthreads();
    // Ends the tokens of this block for the tiles of a pass: a half-warp has the 16 rows of a tile for one token.
    auto finish = [&](int pass) {
        barrier_wait(smem_address(&received), pass & 1);
        if (tid == 0 && pass + 1 < passes) barrier_expect(smem_address(&received), bytes);
#pragma unroll 1
        for (int e0 = tid; e0 < per_pass * 64 * TS; e0 += 2 * threads) {
            float old[2], gain[2], bias[2];
            UNROLL for (int k = 0; k < 2; k++) {
                const int e = e0 + k * threads, local = e / 64 % TS, r = ((pass * clusters + cluster) * per_pass + e / 64 / TS) * 64 + e % 64, token = token0 + rank * TS + local;
                const bool live = e < per_pass * 64 * TS && r < p.rows && token < count;
                old[k] = gain[k] = bias[k] = 0;
                if (EPI == RESIDUAL && live) old[k] = __ldcg(p.out + (size_t)(s.first + token) * p.rows + r), gain[k] = p.gain[r];
                if (EPI != GATED && live && p.bias) bias[k] = p.bias[r];
            }
            UNROLL for (int k = 0; k < 2; k++) {
                const int e = e0 + k * threads, local = e / 64 % TS, tile = e / 64 / TS, r = ((pass * clusters + cluster) * per_pass + tile) * 64 + e % 64, token = token0 + rank * TS + local;
                if (e >= per_pass * 64 * TS) break;
                const bool live = r < p.rows && token < count;
                const size_t m = s.first + token, at = m * p.rows + r;
                float y = 0;
                const float* from = parts + (tile * 64 + e % 64) * STRIDE + local;
#pragma unroll 8
                for (int i = 0; i < p.parts; i++) y += from[i * per_pass * 64 * STRIDE];
                y = y * scale[local] + bias[k];
                if (EPI == STORE && live) p.out[at] = y;
                if (EPI == GATED) {
                    const float up = __shfl_down_sync(~0u, y, 8);
                    if (live && r % 16 < 8) p.next[x_tiled(m, r / 16 * 8 + r % 8, p.groups)] = __float2bfloat16(activate(y, p.activation) * up);
                }
                if (EPI == RESIDUAL) {
                    y = fmaf(p.factor, y, old[k]);
                    if (live) p.out[at] = y, p.next[x_tiled(m, r, p.groups)] = __float2bfloat16(y * gain[k]);
                    float q = y * y;
                    UNROLL for (int o = 8; o; o /= 2) q += __shfl_xor_sync(~0u, q, o);
                    if (live && r % 16 == 0) p.next_sums[m * tiles16 + r / 16] = q;
                }
                if (EPI == LARGEST) {
                    float2 b = live ? candidate(y, r) : make_float2(-INFINITY, __int_as_float(0x7fffffff));
                    for (int o = 16; o; o /= 2) b = better(b, shuffle(b, o));
                    if (lane == 0) {  // nobody else has this entry
                        float2& to = top[local][tile * 2 + e % 64 / 32];
                        to = better(to, b);
                    }
                }
            }
        }
    };

    float acc[NT / 2];
    int used = 0, slot = 0, fill_pass = RQ / n, fill_q = RQ % n;  // quads used; where the ring is; what fills it next
    uint32_t parity = 0;
    for (int pass = 0; pass < passes; pass++) {
        if ((p.flags & TRIGGER) && pass + 1 == passes) pdl_trigger();
        const bool here = there(pass);
        for (int q = 0; q < n; q++) {
            Fragments f;
            ring_w.take(f, slot, parity, quads[q], here);
            if (fill_pass < passes) {
                ring_w.fill(slot, place(fill_pass), quads[fill_q], p.cols, there(fill_pass));
                if (++fill_q == n) fill_q = 0, fill_pass++;
            }
            if (++slot == RQ) slot = 0, parity ^= 1;
            const int stage = ring0 + (resident ? q : used % ring);
            barrier_wait(smem_address(&full[stage]), resident ? 0 : used / ring & 1);
            multiply<NT>(acc, f, smem_address(smem + stage * STAGE), q == 0);
            if (!resident && tid % 128 == 0) {
                barrier_arrive(smem_address(&empty[stage]));
                // The others have had some time to be done with a stage before it is filled again.
                const int next = used - max(1, ring / 4) + ring;
                if (brings && next >= ring && next < copies) bring(next);
            }
            __syncwarp();
            used++;
        }
        // The sums of the pass before have arrived by now. They are taken, then these are sent.
        if (pass == 0) cluster_wait();
        else {
            finish(pass - 1);
            asm volatile("bar.sync %0, 128;" ::"r"(wg + 1) : "memory");
            if (tid % 128 < CL) barrier_arrive_remote(smem_address(&taken), tid % 128);
            barrier_wait(smem_address(&taken), (pass - 1) & 1);
        }
        const uint32_t to = (((rank * per + my_part) * per_pass + my_tile) * 64 + warp % 4 * 16 + g) * STRIDE * 4;
        UNROLL for (int j = 0; j < NT / 8; j++) {
            const int token = j * 8 + 2 * t, owner = token / TS;
            const uint32_t at = of_rank(parts, owner) + to + token % TS * 4, bar = of_rank(&received, owner);
            send2(at, acc[j * 4], acc[j * 4 + 1], bar), send2(at + 8 * STRIDE * 4, acc[j * 4 + 2], acc[j * 4 + 3], bar);
        }
    }
    finish(passes - 1);
    if constexpr (EPI == LARGEST) {
        __syncthreads();
        if (tid < TS && token0 + rank * TS + tid < count) {
            float2 b = top[tid][0];
            for (int i = 1; i < per_pass * 2; i++) b = better(b, top[tid][i]);
            p.candidates[(size_t)(token0 + rank * TS + tid) * clusters + cluster] = b;
            __threadfence();
        }
        __syncthreads();
        if (tid == 0) last = atomicAdd(p.arrivals, 1) == gridDim.x * gridDim.y - 1;
        __syncthreads();
        if (last) {
            __threadfence();
            for (int m = warp; m < count; m += groups * 4) {
                float2 b = make_float2(-INFINITY, __int_as_float(0x7fffffff));
                for (int i = lane; i < clusters; i += 32) b = better(b, __ldcg(&p.candidates[(size_t)m * clusters + i]));
                for (int o = 16; o; o /= 2) b = better(b, shuffle(b, o));
                if (lane == 0) p.tokens[s.first + m] = __float_as_int(b.y);
            }
            if (tid == 0) *p.arrivals = 0;
        }
    }
}

// ------------------------------------------------------------------ prompt

static constexpr int PROMPT_STAGES = 8, PROMPT_STAGE = 128 * 128, PROMPT_RING = 5, PROMPT_THREADS = 384;
static constexpr size_t PROMPT_SMEM = 1024 + PROMPT_STAGES * PROMPT_STAGE + 8 * PROMPT_RING * 2048;

// Work items: 128 tokens x CL * 128 rows, tokens first; a cluster walks over them.
template <int CL, int EPI> __device__ void gemm_prompt_body(const FusedLinear& p, const Step& s) {
    constexpr int RQ = PROMPT_RING, NT = 128, JU = 2;
    extern __shared__ uint8_t smem_raw[];
    __shared__ __align__(8) uint64_t full[PROMPT_STAGES], empty[PROMPT_STAGES], landed[8 * RQ];
    __shared__ uint32_t list[MAX_QUADS];
    __shared__ float scales[2][NT];
    uint8_t* smem = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int rank = CL > 1 ? blockIdx.x % CL : 0, cluster = blockIdx.x / CL, clusters = gridDim.x / CL, count = s.count;
    const int tiles16 = (p.rows + 15) / 16, panels = (p.rows + CL * 128 - 1) / (CL * 128), token_blocks = (count + NT - 1) / NT, items = panels * token_blocks;
    const int n = list_quads(list, p.cols, p.parts, 0, p.parts);
    if (tid == 0) {
        for (int i = 0; i < PROMPT_STAGES; i++) barrier_init(smem_address(&full[i]), 1), barrier_init(smem_address(&empty[i]), 2 * CL);
        for (int i = 0; i < 8 * RQ; i++) barrier_init(smem_address(&landed[i]), 1);
        barrier_init_done();
    }
    __syncthreads();
    if constexpr (CL > 1) cluster_arrive(), cluster_wait();

    if (warp < 4) {
        registers_shrink<40>();
        pdl_wait();
        if (warp == 0) {
            if (lane == 0) {
                asm volatile("fence.proxy.async.global;" ::: "memory");
                int i = 0;
                for (int item = cluster; item < items; item += clusters) {
                    const bf16* x = p.x + (size_t)((s.first + item % token_blocks * NT) / 8 + rank * (16 / CL)) * 512;
                    for (int q = 0; q < n; q++, i++) {
                        const int stage = i % PROMPT_STAGES;
                        const uint32_t bar = smem_address(&full[stage]);
                        if (i >= PROMPT_STAGES) barrier_wait(smem_address(&empty[stage]), (i / PROMPT_STAGES - 1) & 1);
                        barrier_expect(bar, PROMPT_STAGE);
                        const uint32_t to = smem_address(smem + stage * PROMPT_STAGE) + rank * (PROMPT_STAGE / CL);
                        const bf16* from = x + (size_t)(list[q] & 0xffff) * p.groups * 512;
                        if constexpr (CL > 1) bulk_copy_multicast(to, from, PROMPT_STAGE / CL, bar, (1 << CL) - 1);
                        else bulk_copy(to, from, PROMPT_STAGE, bar);
                    }
                }
            }
        } else if (p.sums) {  // 1/rms of each token, while the first tile is multiplied
            int block = -1, turn = 0;
            for (int item = cluster; item < items; item += clusters) {
                if (item % token_blocks == block) continue;
                block = item % token_blocks;
                for (int i = warp - 1; i < NT; i += 3) {
                    const int token = block * NT + i;
                    float v = 1;
                    if (token < count) v = inverse_rms(p.sums + (size_t)(s.first + token) * p.sum_count, p.sum_count, p.cols, p.eps);
                    if (lane == 0) scales[turn][i] = v;
                }
                turn ^= 1;
                asm volatile("bar.sync 1, 352;" ::: "memory");
            }
        }
    } else {
        registers_grow<232>();
        const int wg = warp / 4 - 1, g = lane / 4, t = lane % 4;
        auto tile16_of = [&](int item) { return (item / token_blocks * CL + rank) * 8 + wg * 4 + warp % 4; };
        auto place = [&](int item) { return p.weights + (size_t)tile16_of(item) * (p.cols / 16) * 256; };
        const WarpRing<RQ> ring{smem_address(smem + PROMPT_STAGES * PROMPT_STAGE + (warp - 4) * RQ * 2048), smem_address(landed + (warp - 4) * RQ), lane};
        int fill_item = cluster, fill_q = 0, slot = 0, used = 0, block = -1, turn = 1;
        uint32_t parity = 0;
        auto fill = [&](int to) {
            if (fill_item >= items) return;
            ring.fill(to, place(fill_item), list[fill_q], p.cols, tile16_of(fill_item) < tiles16);
            if (++fill_q == n) fill_q = 0, fill_item += clusters;
        };
        for (int i = 0; i < RQ; i++) fill(i);
        pdl_wait();
        float acc[NT / 2], sum[NT / 2];
        for (int item = cluster; item < items; item += clusters) {
            if ((p.flags & TRIGGER) && item + clusters >= items) pdl_trigger();
            const int tile16 = tile16_of(item);
            const bool there = tile16 < tiles16;
            UNROLL for (int j = 0; j < NT / 2; j++) sum[j] = 0;
            for (int q = 0; q < n; q++) {
                const uint32_t quad = list[q];
                const int stage = used % PROMPT_STAGES;
                Fragments f;
                ring.take(f, slot, parity, quad, there);
                fill(slot);
                if (++slot == RQ) slot = 0, parity ^= 1;
                barrier_wait(smem_address(&full[stage]), used / PROMPT_STAGES & 1);
                multiply<NT>(acc, f, smem_address(smem + stage * PROMPT_STAGE), quad >> 20 & 1);
                if (CL == 1) {
                    if (tid % 128 == 0) barrier_arrive(smem_address(&empty[stage]));
                } else if (tid % 128 < CL) barrier_arrive_remote(smem_address(&empty[stage]), tid % 128);
                used++;
                if (quad >> 21 & 1) {
                    UNROLL for (int j = 0; j < NT / 2; j++) sum[j] += acc[j];
                }
            }
            if (p.sums && item % token_blocks != block) {
                block = item % token_blocks, turn ^= 1;
                asm volatile("bar.sync 1, 352;" ::: "memory");
            }
            if (!there) continue;
            const int r0 = tile16 * 16 + g, r8 = r0 + 8;
            const float bias0 = EPI != GATED && p.bias && r0 < p.rows ? p.bias[r0] : 0, bias8 = EPI != GATED && p.bias && r8 < p.rows ? p.bias[r8] : 0;
            const float gain0 = EPI == RESIDUAL && r0 < p.rows ? p.gain[r0] : 0, gain8 = EPI == RESIDUAL && r8 < p.rows ? p.gain[r8] : 0;
            UNROLL for (int j0 = 0; j0 < NT / 8; j0 += JU) {
                float old[JU][2][2];
                if (EPI == RESIDUAL) {
                    UNROLL for (int j = 0; j < JU; j++)
                        UNROLL for (int c = 0; c < 2; c++) {
                            const int token = item % token_blocks * NT + (j0 + j) * 8 + 2 * t + c;
                            const float* from = p.out + (size_t)(s.first + token) * p.rows + r0;
                            old[j][c][0] = token < count && r0 < p.rows ? __ldcg(from) : 0, old[j][c][1] = token < count && r8 < p.rows ? __ldcg(from + 8) : 0;
                        }
                }
                UNROLL for (int j = 0; j < JU; j++)
                    UNROLL for (int c = 0; c < 2; c++) {
                        const int local = (j0 + j) * 8 + 2 * t + c, token = item % token_blocks * NT + local;
                        const size_t m = s.first + token;
                        const bool live = token < count, live0 = live && r0 < p.rows, live8 = live && r8 < p.rows;
                        const float factor = p.sums ? scales[turn][local] : 1;
                        float y0 = sum[(j0 + j) * 4 + c] * factor + bias0, y8 = sum[(j0 + j) * 4 + 2 + c] * factor + bias8;
                        float* out = p.out + m * p.rows + r0;
                        if (EPI == STORE) {
                            if (live0) out[0] = y0;
                            if (live8) out[8] = y8;
                        }
                        if (EPI == GATED && live) p.next[x_tiled(m, tile16 * 8 + g, p.groups)] = __float2bfloat16(activate(y0, p.activation) * y8);
                        if (EPI == RESIDUAL) {
                            y0 = fmaf(p.factor, y0, old[j][c][0]), y8 = fmaf(p.factor, y8, old[j][c][1]);
                            if (live0) out[0] = y0, p.next[x_tiled(m, r0, p.groups)] = __float2bfloat16(y0 * gain0);
                            if (live8) out[8] = y8, p.next[x_tiled(m, r8, p.groups)] = __float2bfloat16(y8 * gain8);
                            float v = __fadd_rn(__fmul_rn(y0, y0), __fmul_rn(y8, y8));  // the tree of fused_linear
                            v += __shfl_xor_sync(~0u, v, 16), v += __shfl_xor_sync(~0u, v, 8), v += __shfl_xor_sync(~0u, v, 4);
                            if (live && g == 0) p.next_sums[m * tiles16 + tile16] = v;
                        }
                    }
            }
        }
    }
    if constexpr (CL > 1) {
        __syncwarp();
        cluster_arrive(), cluster_wait();  // no block leaves while others write to its shared memory
    }
}
