// architectures: 90a
#include "fast.cuh"

// Names: fused_linear_<epilogue>_m<tokens>_<variant>. Variants: see fused.rs.
//   ring16  16 fragments in flight per warp, up to 8 parts, two blocks or more per SM; even parts
//   odd16   the same for parts that are not multiples of 16 fragments
//   ring8   8 fragments in flight, three blocks per SM
//   wide16  up to 16 parts, one block per SM
#define LINEAR(NAME, EPI, M, VARIANT, D, EVEN, WARPS, BLOCKS)                                                              \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) fused_linear_##NAME##_m##M##_##VARIANT(FusedLinear p, Step s) { \
        fused_linear_body<M, D, EVEN, EPI, WARPS>(p, s);                                                                   \
    }
#define LINEAR_ALL(M)                                \
    LINEAR(store, STORE, M, ring16, 16, true, 8, 2)   \
    LINEAR(store, STORE, M, odd16, 16, false, 8, 2)   \
    LINEAR(store, STORE, M, ring8, 8, true, 8, 3)     \
    LINEAR(store, STORE, M, wide16, 16, true, 16, 1)   \
    LINEAR(residual, RESIDUAL, M, ring16, 16, true, 8, 2) \
    LINEAR(residual, RESIDUAL, M, odd16, 16, false, 8, 2) \
    LINEAR(residual, RESIDUAL, M, wide16, 16, true, 16, 1) \
    LINEAR(gated, GATED, M, ring16, 16, true, 8, 2)   \
    LINEAR(gated, GATED, M, odd16, 16, false, 8, 2)   \
    LINEAR(largest, LARGEST, M, ring16, 16, true, 8, 2) \
    LINEAR(largest, LARGEST, M, odd16, 16, false, 8, 2)
LINEAR_ALL(1)
#ifndef FAST_FEW
LINEAR_ALL(2)
LINEAR_ALL(4)
#endif
LINEAR_ALL(8)

// fused_attention_d<head_dim>_q<8 or 16>_g<groups>_c<cluster>: up to 8 or 16 query heads per KV head.
#define ATTENTION(HD, Q, GROUPS, CL, BLOCKS)                                                                            \
    extern "C" __global__ void __launch_bounds__(128 * GROUPS, BLOCKS) fused_attention_d##HD##_q##Q##_g##GROUPS##_c##CL(FusedAttention p, Step s) { \
        fused_attention_body<HD, Q / 8, GROUPS, CL>(p, s);                                                              \
    }
#define ATTENTION_ALL(HD, Q, B2, B4) ATTENTION(HD, Q, 2, 8, B2) ATTENTION(HD, Q, 2, 4, B2) ATTENTION(HD, Q, 2, 2, B2) ATTENTION(HD, Q, 2, 1, B2) ATTENTION(HD, Q, 1, 1, B4)
ATTENTION_ALL(64, 8, 2, 4)
ATTENTION_ALL(128, 8, 2, 4)
#ifndef FAST_FEW
ATTENTION_ALL(80, 8, 2, 4)
ATTENTION_ALL(96, 8, 2, 4)
ATTENTION_ALL(256, 8, 1, 2)
ATTENTION_ALL(64, 16, 2, 4)
ATTENTION_ALL(128, 16, 1, 2)
#endif

extern "C" __global__ void __launch_bounds__(256) fused_embed(FusedEmbed p, Step s) { fused_embed_body(p, s); }

// Row-major [rows][cols] to fragment order; rows beyond `rows` become zeros. up: also the up matrix, interleaved with the gates.
extern "C" __global__ void __launch_bounds__(256) pack_fragments(bf16* out, const bf16* matrix, const bf16* up, uint32_t rows, uint32_t cols) {
    // A thread per pair of columns that stay together.
    const size_t packed = up ? (size_t)rows * 2 : (size_t)(rows + 15) / 16 * 16, pairs = packed * (cols / 2);
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < pairs; i += (size_t)gridDim.x * blockDim.x) {
        const size_t n = i / (cols / 2), k = i % (cols / 2) * 2;
        const size_t row = up ? n / 16 * 8 + n % 8 : n;
        const bf16* from = up && n % 16 >= 8 ? up : matrix;
        *(uint32_t*)(out + fragment_index(n, k, cols)) = row < rows ? *(const uint32_t*)(from + row * cols + k) : 0;
    }
}
