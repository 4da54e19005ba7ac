// What kernels of rules are made of (alpha/cuda/ops/update), which are generated: one step of an optimizer over all
// parameters at once, in place. A Step has the numbers of a rule as its members, and computes an element.
//
// Layout:   flat tensors, in lists: what is changed, the states in the order of the rule, and last what is read. States
//           of a wide rule are float32 beside parameters of 16 bits, where squares would underflow. A step that is
//           recorded finds its numbers in memory, in *kept, which each replay writes.
// Factor:   where the loss was scaled, the gradients are multiplied by *factor, and a factor of 0 skips the step: `decide`
//           makes it on the device, so that the host need not wait for the gradients.
// Requires: 16-byte aligned tensors; CHUNK a multiple of 8.
// Threads:  a block per chunk of a tensor (multi_tensor.cuh), a packet of 16 bytes per thread and list at a time.
// Measured: H100, share of a copy's bandwidth (benchmarks.cuda_bandwidth): SGD 95 %, AdamW 94 %, moving average 95 %
#pragma once
#include "elementwise.cuh"
#include "multi_tensor.cuh"
#include "ops/pointwise/equation.cuh"

// On sm_75 nvcc keeps to fewer registers than three blocks have, and spills, unless it is told.
#if ALPHA_ARCH < 80
#define UPDATE_BOUNDS (THREADS, 3)
#else
#define UPDATE_BOUNDS (THREADS)
#endif
// Step and T: what the parameters are stored as; S: what the states are stored as
#define UPDATE(name, Step, dtype, T, S) \
  ALPHA_ENTRY(name##_##dtype, UPDATE_BOUNDS, \
              (const __grid_constant__ Table table, int count, int chunk, const float *factor, const Step *kept, \
               const Step step), \
              update_all<T, S>(table, count, chunk, factor, kept ? *kept : step))
