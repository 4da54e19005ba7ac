// Vectors of floats in GCC's vector extensions, with partial loads and stores, and the helpers of every kernel file.
//
// The width follows the instruction set that the compiler targets: 16 lanes (AVX-512), 8 (AVX) or 4 (any other).
// A register tile holds ACCUMULATORS vectors: as many as leave room for the operands of one multiply-add.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16, TILE_VECTORS = 4, ACCUMULATORS = 24;
#elif defined(__AVX__)
constexpr int LANES = 8, TILE_VECTORS = 2, ACCUMULATORS = 12;
#else
constexpr int LANES = 4, TILE_VECTORS = 2, ACCUMULATORS = 12;
#endif

typedef float vfloat __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t vint __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef double vdouble __attribute__((vector_size(LANES * 4)));

#define UNROLL _Pragma("GCC unroll 64")
#define INLINE static inline __attribute__((always_inline))
#define INLINED __attribute__((always_inline))  // of a lambda, where the compiler would call it
#define EXPORT extern "C" __attribute__((visibility("default")))

INLINE vfloat load(const float* p) { return *reinterpret_cast<const vfloat*>(p); }
INLINE void store(float* p, vfloat v) { *reinterpret_cast<vfloat*>(p) = v; }
INLINE vint load(const int32_t* p) { return *reinterpret_cast<const vint*>(p); }
INLINE void store(int32_t* p, vint v) { *reinterpret_cast<vint*>(p) = v; }
INLINE vfloat broadcast(float x) { return x - vfloat{}; }
// p[0] in lanes 0, 2, ..., p[1] in lanes 1, 3, ...: bits, of which nothing is computed
INLINE vfloat broadcast_pair(const float* p) {
  double pair;
  memcpy(&pair, p, sizeof pair);
  return (vfloat)(pair - vdouble{});
}
// A NaN stays a NaN: only what is truly below zero is cut.
INLINE vfloat relu(vfloat v) { return v < 0 ? vfloat{} : v; }
INLINE float relu(float v) { return v < 0 ? 0 : v; }

// The first n lanes (n may be 0 or more than LANES) of memory that may end there; the other lanes are 0.
#if defined(__AVX512F__)
INLINE __mmask16 first_lanes(int64_t n) { return n >= LANES ? 0xffff : n <= 0 ? 0 : (1u << n) - 1; }
INLINE vfloat load_part(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
INLINE void store_part(float* p, vfloat v, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
#elif defined(__AVX__)
INLINE __m256i first_lanes(int64_t n) {
  const vint lane = {0, 1, 2, 3, 4, 5, 6, 7};
  return (__m256i)(lane < static_cast<int32_t>(std::min<int64_t>(n, LANES)));
}
INLINE vfloat load_part(const float* p, int64_t n) { return _mm256_maskload_ps(p, first_lanes(n)); }
// Not a masked store: those are microcoded, some forty instructions each, on several generations of AMD's processors.
INLINE void store_part(float* p, vfloat v, int64_t n) {
  if (n >= LANES) return store(p, v);
  if (n <= 0) return;
  __m128 rest = _mm256_castps256_ps128(v);
  if (n & 4) {
    _mm_storeu_ps(p, rest);
    rest = _mm256_extractf128_ps(v, 1);
    p += 4;
  }
  if (n & 2) {
    _mm_storel_pi(reinterpret_cast<__m64*>(p), rest);
    rest = _mm_movehl_ps(rest, rest);
    p += 2;
  }
  if (n & 1) _mm_store_ss(p, rest);
}
#else
INLINE int64_t bytes_of(int64_t n) { return 4 * std::max<int64_t>(0, std::min<int64_t>(n, LANES)); }
INLINE vfloat load_part(const float* p, int64_t n) {
  vfloat v = {};
  memcpy(&v, p, bytes_of(n));
  return v;
}
INLINE void store_part(float* p, vfloat v, int64_t n) { memcpy(p, &v, bytes_of(n)); }
#endif

INLINE vint load_part(const int32_t* p, int64_t n) {
  return (vint)load_part(reinterpret_cast<const float*>(p), n);
}
INLINE void store_part(int32_t* p, vint v, int64_t n) { store_part(reinterpret_cast<float*>(p), (vfloat)v, n); }

// Copies n elements. Short runs of floats stay here: a call of memcpy takes longer than they do.
template <class T>
INLINE void copy_elements(T* to, const T* from, int64_t n) {
  if (sizeof(T) != 4 || n > 16 * LANES) {
    memcpy(to, from, n * sizeof(T));
    return;
  }
  const float* source = reinterpret_cast<const float*>(from);
  float* target = reinterpret_cast<float*>(to);
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) store(target + i, load(source + i));
  if (i < n) store_part(target + i, load_part(source + i, n - i), n - i);
}

// Lane i is v[from[i]].
INLINE vfloat permuted(vfloat v, vint from) {
#if defined(__clang__)
  vfloat r;
  for (int i = 0; i < LANES; i++) r[i] = v[from[i]];
  return r;
#else
  return __builtin_shuffle(v, from);
#endif
}

// Sum over the lanes, pairwise.
#if defined(__AVX512F__)
INLINE float sum_lanes(vfloat v) { return _mm512_reduce_add_ps(v); }
#elif defined(__AVX__)
INLINE float sum_lanes(vfloat v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
#else
INLINE float sum_lanes(vfloat v) { return (v[0] + v[2]) + (v[1] + v[3]); }
#endif

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
// Start of part k out of n nearly equal parts of [0, total).
constexpr int64_t part_start(int64_t total, int64_t k, int64_t n) { return total * k / n; }

// Threads for `work` multiply-adds or elements: below the cost of waking a team, the caller does it alone. OpenMP keeps
// a number of its own for every thread that calls; all callers share this one.
inline int most_threads = 1;
INLINE int team(int64_t work, int64_t alone_below) { return work < alone_below ? 1 : most_threads; }

// A buffer per thread and SLOT that is kept between calls, since fresh memory page-faults. Contents are undefined.
template <int SLOT = 0>
inline float* scratch(int64_t floats) {
  struct Buffer {
    float* data = nullptr;
    int64_t floats = 0;
    ~Buffer() { free(data); }
  };
  static thread_local Buffer buffer;
  if (floats > buffer.floats) {
    free(buffer.data);
    buffer.floats = round_up(floats, 1024);
    buffer.data = static_cast<float*>(aligned_alloc(64, buffer.floats * sizeof(float)));
    if (!buffer.data) abort();
  }
  return buffer.data;
}

// Exchanges the rows and columns of a square of LANES x LANES.
#if defined(__AVX__)
#if defined(__AVX512F__)
INLINE vfloat low_pairs(vfloat a, vfloat b) { return _mm512_unpacklo_ps(a, b); }
INLINE vfloat high_pairs(vfloat a, vfloat b) { return _mm512_unpackhi_ps(a, b); }
INLINE vfloat low_halves(vfloat a, vfloat b) { return (vfloat)_mm512_unpacklo_pd((__m512d)a, (__m512d)b); }
INLINE vfloat high_halves(vfloat a, vfloat b) { return (vfloat)_mm512_unpackhi_pd((__m512d)a, (__m512d)b); }
INLINE vfloat even_quarters(vfloat a, vfloat b) { return _mm512_shuffle_f32x4(a, b, 0x88); }
INLINE vfloat odd_quarters(vfloat a, vfloat b) { return _mm512_shuffle_f32x4(a, b, 0xdd); }
#else
INLINE vfloat low_pairs(vfloat a, vfloat b) { return _mm256_unpacklo_ps(a, b); }
INLINE vfloat high_pairs(vfloat a, vfloat b) { return _mm256_unpackhi_ps(a, b); }
INLINE vfloat low_halves(vfloat a, vfloat b) { return (vfloat)_mm256_unpacklo_pd((__m256d)a, (__m256d)b); }
INLINE vfloat high_halves(vfloat a, vfloat b) { return (vfloat)_mm256_unpackhi_pd((__m256d)a, (__m256d)b); }
INLINE vfloat even_quarters(vfloat a, vfloat b) { return _mm256_permute2f128_ps(a, b, 0x20); }
INLINE vfloat odd_quarters(vfloat a, vfloat b) { return _mm256_permute2f128_ps(a, b, 0x31); }
#endif
INLINE void transpose_square(vfloat (&r)[LANES]) {
  vfloat t[LANES];
  UNROLL for (int i = 0; i < LANES; i += 2) {
    t[i] = low_pairs(r[i], r[i + 1]);
    t[i + 1] = high_pairs(r[i], r[i + 1]);
  }
  UNROLL for (int i = 0; i < LANES; i++) {  // its quarter q has column 4 q + i % 4 of four rows
    const int from = i / 4 * 4 + i % 4 / 2;
    r[i] = i % 2 ? high_halves(t[from], t[from + 2]) : low_halves(t[from], t[from + 2]);
  }
  UNROLL for (int groups = LANES / 4; groups > 1; groups /= 2) {  // quarters of two vectors become one
    UNROLL for (int i = 0; i < LANES; i++) t[i] = r[i];
    UNROLL for (int i = 0; i < LANES / 2; i++) {
      const int from = i / 4 * 8 + i % 4;
      r[i] = even_quarters(t[from], t[from + 4]);
      r[LANES / 2 + i] = odd_quarters(t[from], t[from + 4]);
    }
  }
}
#else
INLINE void transpose_square(vfloat (&r)[LANES]) {
  vfloat t[LANES];
  for (int i = 0; i < LANES; i++) t[i] = r[i];
  for (int i = 0; i < LANES; i++)
    for (int j = 0; j < LANES; j++) r[i][j] = t[j][i];
}
#endif

// Transposes LANES x LANES; rows of src from `rows` on are taken as 0.
INLINE void transpose(const float* src, int64_t src_ld, int64_t rows, float* dst, int64_t dst_ld) {
  vfloat r[LANES];
  UNROLL for (int i = 0; i < LANES; i++) r[i] = i < rows ? load(src + i * src_ld) : vfloat{};
  transpose_square(r);
  UNROLL for (int i = 0; i < LANES; i++) store(dst + i * dst_ld, r[i]);
}
