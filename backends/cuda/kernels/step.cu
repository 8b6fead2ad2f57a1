// What steps do besides the model.

#include "ops.cuh"

// Matches `fused::Advance`.
struct Advance {
    uint64_t positions;
    uint64_t rope;
    uint64_t seen_end;
};

// One block.
extern "C" __global__ void __launch_bounds__(256) advance(const Advance p, const Step step) {
    uint32_t *positions = at<uint32_t>(p.positions);
    uint32_t *rope = at<uint32_t>(p.rope);
    uint32_t *seen_end = at<uint32_t>(p.seen_end);
    for (uint32_t token = threadIdx.x; token < step.count; token += blockDim.x) {
        positions[token] += 1;
        seen_end[token] += 1;
        for (int axis = 0; axis < 3; axis++) {
            rope[3 * token + axis] += 1;
        }
    }
}
