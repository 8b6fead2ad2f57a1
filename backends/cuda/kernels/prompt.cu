// architectures: 90a
#include "prompt.cuh"

#define PROMPT_ATTENTION(HD)                                                                                              \
    extern "C" __global__ void __launch_bounds__(256) fused_qkv_finish_d##HD(FusedQkvFinish p, Step s) { fused_qkv_finish_body<HD>(p, s); } \
    extern "C" __global__ void __launch_bounds__(256, 1) fused_prompt_attention_d##HD(FusedPromptAttention p, Step s) {    \
        fused_prompt_attention_body<HD>(p, s);                                                                             \
    }
PROMPT_ATTENTION(64)
PROMPT_ATTENTION(80)
PROMPT_ATTENTION(96)
PROMPT_ATTENTION(128)
PROMPT_ATTENTION(256)
