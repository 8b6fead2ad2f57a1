// architectures: 90a
#include "gemm.cuh"

// gemm_<epilogue>_n<tokens of a block>[_k<blocks that cut K>][_t<blocks that share weights>]
#define GEMM(NAME, EPI, NT, CK, CT, SUFFIX)                                                                       \
    extern "C" __global__ void __launch_bounds__(gemm_threads(NT), 1) gemm_##NAME##_##SUFFIX(FusedLinear p, Step s) { \
        gemm_body<NT, CK, CT, EPI>(p, s);                                                                         \
    }
#define GEMM_STEP(NT, CK, CT, SUFFIX) GEMM(store, STORE, NT, CK, CT, SUFFIX) GEMM(residual, RESIDUAL, NT, CK, CT, SUFFIX) GEMM(gated, GATED, NT, CK, CT, SUFFIX)
#define GEMM_ALL(NT, CK, CT, SUFFIX) GEMM_STEP(NT, CK, CT, SUFFIX) GEMM(largest, LARGEST, NT, CK, CT, SUFFIX)
GEMM_ALL(16, 1, 1, n16)
GEMM_ALL(16, 2, 1, n16_k2)
GEMM_ALL(32, 1, 1, n32)
GEMM_ALL(32, 2, 1, n32_k2)
GEMM_ALL(64, 1, 1, n64)
GEMM_ALL(64, 2, 1, n64_k2)
GEMM_ALL(128, 1, 1, n128)
GEMM_STEP(128, 1, 2, n128_t2)
