// Philox4x32-10, PHILOX_BLOCKS blocks side by side: numbers that are a function of (seed, stream, counter).
// counter = (block low, block high, stream, 0), key = (seed low, seed high); a block has four numbers.
#pragma once

#include "vec.hpp"

namespace {

constexpr int64_t PHILOX_BLOCKS = LANES, NUMBERS = 4 * PHILOX_BLOCKS;
constexpr uint32_t MULTIPLIER[2] = {0xD2511F53, 0xCD9E8D57}, WEYL[2] = {0x9E3779B9, 0xBB67AE85};

typedef uint64_t vword __attribute__((vector_size(LANES * 4), may_alias));  // 32-bit words, one to a 64-bit lane

INLINE vword multiply(vword a, uint32_t b) {
#if defined(__AVX512F__)
  return (vword)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
  return (vword)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#else
  return a * b;
#endif
}

// bits[4 * j + word] of the blocks first, first + 1, ...
INLINE void philox(uint64_t seed, uint32_t stream, uint64_t first, uint32_t* bits) {
  constexpr uint64_t low = 0xFFFFFFFF;
  vword c[4][2] = {};  // two registers of blocks, to hide the latency of the multiplications
  for (int64_t j = 0; j < PHILOX_BLOCKS; j++) {
    c[0][j / (LANES / 2)][j % (LANES / 2)] = (first + j) & low;
    c[1][j / (LANES / 2)][j % (LANES / 2)] = (first + j) >> 32;
    c[2][j / (LANES / 2)][j % (LANES / 2)] = stream;
  }
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; round++, key0 += WEYL[0], key1 += WEYL[1]) {
    UNROLL for (int r = 0; r < 2; r++) {
      const vword product0 = multiply(c[0][r], MULTIPLIER[0]), product1 = multiply(c[2][r], MULTIPLIER[1]);
      c[0][r] = (product1 >> 32) ^ c[1][r] ^ uint64_t(key0);
      c[2][r] = (product0 >> 32) ^ c[3][r] ^ uint64_t(key1);
      c[1][r] = product1 & low;
      c[3][r] = product0 & low;
    }
  }
  uint64_t words[4 * PHILOX_BLOCKS];
  memcpy(words, c, sizeof words);
  for (int64_t j = 0; j < PHILOX_BLOCKS; j++)
    for (int64_t word = 0; word < 4; word++) bits[4 * j + word] = static_cast<uint32_t>(words[word * PHILOX_BLOCKS + j]);
}

// The number in [0, 1) of 32 bits, a multiple of 2^-24
INLINE float uniform_of(uint32_t bits) { return static_cast<float>(static_cast<int32_t>(bits >> 8)) * 0x1p-24f; }

}  // namespace
