// What:     where the random numbers of a recording's next replay begin: from[0] = seed, from[1] = counter, which kernels
//           read that draw some (recording.py)
// Threads:  one
// Measured: not by itself
#include "ptx.cuh"

extern "C" __global__ void begin_random(unsigned long long *from, unsigned long long seed, unsigned long long counter) {
  from[0] = seed, from[1] = counter;
}
ALPHA_KERNEL(begin_random)
