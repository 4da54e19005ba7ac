// Lists of the elements that are not zero. -0 is a zero, a NaN is not.
#pragma once

#include <array>

#include "../vec.hpp"

#if defined(__AVX512F__)
INLINE int64_t append_vector(vfloat v, vint at, int32_t* index, float* value) {
  const __mmask16 found = _mm512_cmp_ps_mask(v, vfloat{}, _CMP_NEQ_UQ);
  store(value, _mm512_maskz_compress_ps(found, v));
  store(index, (vint)_mm512_maskz_compress_epi32(found, (__m512i)at));
  return __builtin_popcount(found);
}
#elif defined(__AVX2__)
// SELECT[mask]: the lanes whose bits are set, in order; the others are any.
constexpr std::array<std::array<uint8_t, 8>, 256> selections() {
  std::array<std::array<uint8_t, 8>, 256> all = {};
  for (int mask = 0; mask < 256; mask++)
    for (int lane = 0, k = 0; lane < 8; lane++)
      if (mask >> lane & 1) all[mask][k++] = static_cast<uint8_t>(lane);
  return all;
}
constexpr auto SELECT = selections();

INLINE int64_t append_vector(vfloat v, vint at, int32_t* index, float* value) {
  const int found = _mm256_movemask_ps(_mm256_cmp_ps(v, vfloat{}, _CMP_NEQ_UQ));
  const __m256i lanes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(&SELECT[found])));
  store(value, _mm256_permutevar8x32_ps(v, lanes));
  store(index, (vint)_mm256_permutevar8x32_epi32((__m256i)at, lanes));
  return __builtin_popcount(found);
}
#else
INLINE int64_t append_vector(vfloat v, vint at, int32_t* index, float* value) {
  int64_t filled = 0;
  for (int lane = 0; lane < LANES; lane++) {
    index[filled] = at[lane];
    value[filled] = v[lane];
    filled += v[lane] != 0;
  }
  return filled;
}
#endif

INLINE vint lane_numbers() {
  vint lanes;
  for (int i = 0; i < LANES; i++) lanes[i] = i;
  return lanes;
}

// Writes (first + i, x[i]) for each x[i] that is not zero, i < n, and returns how many there are. Up to LANES entries
// behind them are overwritten.
INLINE int64_t append_nonzeros(const float* x, int64_t n, int32_t first, int32_t* index, float* value) {
  int64_t filled = 0;
  vint at = lane_numbers() + first;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES, at += LANES) filled += append_vector(load(x + i), at, index + filled, value + filled);
  if (i < n) filled += append_vector(load_part(x + i, n - i), at, index + filled, value + filled);
  return filled;
}
