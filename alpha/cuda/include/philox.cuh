// Random numbers that are a function of (seed, stream, block), the same as alpha/random.py makes on the host:
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once
#include "ptx.cuh"

// Numbers 4 * block .. 4 * block + 3 of a stream.
__device__ __forceinline__ uint4 philox(unsigned long long seed, unsigned stream, unsigned long long block) {
  uint4 c{static_cast<unsigned>(block), static_cast<unsigned>(block >> 32), stream, 0};
  unsigned key0 = static_cast<unsigned>(seed), key1 = static_cast<unsigned>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++) {
    constexpr unsigned M0 = 0xD2511F53, M1 = 0xCD9E8D57;
    c = {__umulhi(M1, c.z) ^ c.y ^ key0, M1 * c.z, __umulhi(M0, c.x) ^ c.w ^ key1, M0 * c.x};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return c;
}
