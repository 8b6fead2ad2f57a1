// architectures: 90a
#include "gemm.cuh"

// gemm_batch_<epilogue>_n<tokens>: up to so many tokens a block.
#define BATCH(NAME, EPI, NT)                                                                                             \
    extern "C" __global__ void __launch_bounds__(batch_threads(NT), 1) gemm_batch_##NAME##_n##NT(FusedLinear p, Step s) { \
        gemm_batch_body<NT, EPI>(p, s);                                                                                  \
    }
#define BATCH_ALL(NT) BATCH(store, STORE, NT) BATCH(residual, RESIDUAL, NT) BATCH(gated, GATED, NT) BATCH(largest, LARGEST, NT)
BATCH_ALL(16)
BATCH_ALL(32)
BATCH_ALL(64)
BATCH_ALL(128)

// gemm_prompt_<epilogue>_c<cluster>
#define PROMPT(NAME, EPI, CL)                                                                                            \
    extern "C" __global__ void __launch_bounds__(PROMPT_THREADS, 1) gemm_prompt_##NAME##_c##CL(FusedLinear p, Step s) { \
        gemm_prompt_body<CL, EPI>(p, s);                                                                                \
    }
#define PROMPT_ALL(CL) PROMPT(store, STORE, CL) PROMPT(residual, RESIDUAL, CL) PROMPT(gated, GATED, CL)
PROMPT_ALL(1)
PROMPT_ALL(2)
PROMPT_ALL(4)
