// Kernels without a use of their own: tests launch them to check that the driver layer passes
// parameters, grids, clusters and dependent launches on as it should.

#include <cstdint>

struct SelfCheckParameters {
    uint32_t *values;
    uint32_t count;
    uint32_t operand;
};

extern "C" __global__ void self_check_fill(SelfCheckParameters p) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.count) {
        p.values[i] = p.operand + i;
    }
}

// Reads what the launch before it wrote. With a dependent launch it must wait for that.
extern "C" __global__ void self_check_multiply(SelfCheckParameters p) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.count) {
        p.values[i] *= p.operand;
    }
}

// Writes the number of blocks in each block's cluster, through dynamic shared memory.
extern "C" __global__ void self_check_cluster(SelfCheckParameters p) {
    extern __shared__ uint32_t shared[];
    if (threadIdx.x == 0) {
        uint32_t blocks = 1;
#if __CUDA_ARCH__ >= 900
        asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
#endif
        shared[p.operand] = blocks;
        if (blockIdx.x < p.count) {
            p.values[blockIdx.x] = shared[p.operand];
        }
    }
}
