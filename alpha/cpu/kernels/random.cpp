// What:    Philox4x32-10 bits, and dropout that draws from them
//          element k is lane (offset + k) % 4 of block (offset + k) / 4;  counter = (block low, block high, stream, 0),
//          key = (seed low, seed high);  dropout keeps x * factor where (bits >> 8) * 2^-24 >= p
// Source:  Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11.
// Layout:  flat arrays. BATCH blocks are computed side by side.
// Threads: batches; every element depends on its own counter alone.
#include "vec.hpp"

namespace {

constexpr int64_t BATCH = LANES, NUMBERS = 4 * BATCH, ALONE_BELOW = 8192;
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
  for (int64_t j = 0; j < BATCH; j++) {
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
  uint64_t words[4 * BATCH];
  memcpy(words, c, sizeof words);
  for (int64_t j = 0; j < BATCH; j++)
    for (int64_t word = 0; word < 4; word++) bits[4 * j + word] = static_cast<uint32_t>(words[word * BATCH + j]);
}

// Calls body(first, last, bits): bits[i - first] belongs to element i.
template <class Body>
INLINE void for_each_batch(uint64_t seed, uint32_t stream, uint64_t offset, int64_t n, Body body) {
  const int64_t skipped = offset % 4;  // numbers of the first block that come before element 0
#pragma omp parallel for schedule(static) num_threads(team(n, ALONE_BELOW))
  for (int64_t batch = 0; batch < ceil_div(n + skipped, NUMBERS); batch++) {
    uint32_t bits[NUMBERS];
    philox(seed, stream, offset / 4 + batch * BATCH, bits);
    const int64_t start = batch * NUMBERS - skipped, first = std::max<int64_t>(0, start);
    body(first, std::min(n, start + NUMBERS), bits + (first - start));
  }
}

}  // namespace

EXPORT void random_bits(uint64_t seed, uint32_t stream, uint64_t offset, uint32_t* out, int64_t n) {
  for_each_batch(seed, stream, offset, n, [=](int64_t first, int64_t last, const uint32_t* bits) {
    memcpy(out + first, bits, (last - first) * sizeof(uint32_t));
  });
}

EXPORT void dropout(const float* x, float* y, int64_t n, float p, float factor, uint64_t seed, uint32_t stream,
                    uint64_t offset) {
  for_each_batch(seed, stream, offset, n, [=](int64_t first, int64_t last, const uint32_t* bits) {
#pragma omp simd  // a branch would be mispredicted half of the time
    for (int64_t i = first; i < last; i++) {
      const float uniform = static_cast<float>(static_cast<int32_t>(bits[i - first] >> 8)) * 0x1p-24f;
      const float kept = x[i] * factor;
      y[i] = uniform >= p ? kept : 0;
    }
  });
}
