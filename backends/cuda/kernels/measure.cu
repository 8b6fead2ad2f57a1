// Reads memory as fast as the GPU can: the limit that decoding is measured against.

#include <cstdint>

struct MeasureRead {
    const uint4 *words;
    uint64_t count;
    uint32_t *sum;
};

static __device__ uint4 load_once(const uint4 *from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

static __device__ uint32_t fold(uint4 v) {
    return v.x ^ v.y ^ v.z ^ v.w;
}

// The sum keeps the compiler from leaving the loads out.
extern "C" __global__ void __launch_bounds__(512) measure_read(const MeasureRead p) {
    constexpr int LOADS = 8;
    uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
    uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    uint32_t sum = 0;
    for (; i + (LOADS - 1) * stride < p.count; i += LOADS * stride) {
        uint4 loaded[LOADS];
#pragma unroll
        for (int load = 0; load < LOADS; load++) {
            loaded[load] = load_once(p.words + i + load * stride);
        }
#pragma unroll
        for (int load = 0; load < LOADS; load++) {
            sum ^= fold(loaded[load]);
        }
    }
    for (; i < p.count; i += stride) {
        sum ^= fold(load_once(p.words + i));
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        sum ^= __shfl_xor_sync(~0u, sum, lanes);
    }
    if (threadIdx.x % 32 == 0) {
        atomicXor(p.sum, sum);
    }
}
