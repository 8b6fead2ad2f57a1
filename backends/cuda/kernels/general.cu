// A plain kernel for every operation: any size, f32 arithmetic. They are the reference on the
// device, and what runs where no special kernel does.
//
// What a kernel computes of a token depends neither on the step's other tokens nor on the grid, bit
// for bit: sums have an order that depends on their length only, and there are no atomics.

#include "ops.cuh"

#include "general/elementwise.cuh"
#include "general/attention.cuh"
#include "general/draw.cuh"
#include "general/experts.cuh"
#include "general/linear.cuh"
#include "general/low_rank.cuh"
#include "general/norm.cuh"
#include "general/readout.cuh"
#include "general/recurrent.cuh"
