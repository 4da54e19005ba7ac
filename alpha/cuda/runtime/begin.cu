// What:     the numbers that a recording's next replay begins with (recording.py): to[k] = numbers[k]. Kernels read there
//           the seed and the counter of random numbers, and what an optimizer's step computes with.
// Threads:  one per word of 8 bytes
// Measured: not by itself
#include "ptx.cuh"

struct Numbers { long long words[480]; };

extern "C" __global__ void __launch_bounds__(480) begin(long long *to, const __grid_constant__ Numbers numbers) {
  to[threadIdx.x] = numbers.words[threadIdx.x];
}
ALPHA_KERNEL(begin)
