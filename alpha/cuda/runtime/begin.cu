// What:     what stands before and behind a recording's graph (recording.py), in one launch each. begin: to[k] = numbers[k],
//           where kernels read the seed and the counter of random numbers and what an optimizer's step computes with; and
//           the inputs are copied. copies: the outputs are.
// Layout:   of each copy the target, the source and the bytes, in turn; both are aligned to 16 bytes.
// Threads:  one per word of 8 bytes of the numbers; 16 bytes of a copy at a time, by all blocks
// Measured: not by itself
#include "ptx.cuh"

constexpr int WORDS = 480;
struct Numbers { long long words[WORDS]; };
struct Copies { long long words[24]; };

INLINE void copy_all(const Copies &copies, int count) {
  for (int k = 0; k < count; k++) {
    char *to = reinterpret_cast<char *>(copies.words[3 * k]);
    const char *from = reinterpret_cast<const char *>(copies.words[3 * k + 1]);
    const long long nbytes = copies.words[3 * k + 2], whole = nbytes / 16, at = blockIdx.x * blockDim.x + threadIdx.x;
    for (long long i = at; i < whole; i += gridDim.x * blockDim.x)
      reinterpret_cast<int4 *>(to)[i] = reinterpret_cast<const int4 *>(from)[i];
    if (at < nbytes % 16) to[16 * whole + at] = from[16 * whole + at];
  }
}

ALPHA_ENTRY(begin, (WORDS), (long long *to, const __grid_constant__ Numbers numbers,
                             const __grid_constant__ Copies copies, int count),
            if (blockIdx.x == 0 && to) to[threadIdx.x] = numbers.words[threadIdx.x];
            copy_all(copies, count))
ALPHA_ENTRY(copies, (WORDS), (const __grid_constant__ Copies copies, int count), copy_all(copies, count))
