// Random numbers that are a function of (seed, stream, block), the same as alpha/random.py makes on the host:
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once
#include "ptx.cuh"

// Numbers 4 * block .. 4 * block + 3 of a stream.
INLINE uint4 philox(unsigned long long seed, unsigned stream, unsigned long long block) {
  uint4 c{static_cast<unsigned>(block), static_cast<unsigned>(block >> 32), stream, 0};
  unsigned key0 = static_cast<unsigned>(seed), key1 = static_cast<unsigned>(seed >> 32);
  UNROLL for (int round = 0; round < 10; round++) {
    constexpr unsigned M0 = 0xD2511F53, M1 = 0xCD9E8D57;
    c = {__umulhi(M1, c.z) ^ c.y ^ key0, M1 * c.z, __umulhi(M0, c.x) ^ c.w ^ key1, M0 * c.x};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return c;
}

// Numbers at .. at + N - 1 of a stream, in [0, 1)
template <int N> INLINE void uniforms(float (&u)[N], unsigned long long seed, unsigned stream, unsigned long long at) {
  const int skipped = at % 4;  // numbers of the first block that are not asked for
  unsigned bits[(N + 6) / 4 * 4] = {};
  UNROLL for (int k = 0; k < (N + 6) / 4 * 4; k += 4) {
    if (k >= skipped + N) break;
    const uint4 four = philox(seed, stream, (at + k) / 4);
    bits[k] = four.x, bits[k + 1] = four.y, bits[k + 2] = four.z, bits[k + 3] = four.w;
  }
  UNROLL for (int e = 0; e < N; e++) {
    const unsigned even = skipped & 2 ? bits[e + 2] : bits[e], odd = skipped & 2 ? bits[e + 3] : bits[e + 1];
    u[e] = static_cast<float>((skipped & 1 ? odd : even) >> 8) * 0x1p-24f;
  }
}
