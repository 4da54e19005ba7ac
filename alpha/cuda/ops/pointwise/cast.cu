// What:     casts; where(cond, x, y), which moves bits whatever they mean; and a constant everywhere
// Layout:   flat, C-contiguous; see elementwise.cuh for broadcasting and the thread map
// Requires: 16-byte aligned tensors
// Threads:  see elementwise.cuh
// Measured: H100, share of a copy's bandwidth (benchmarks.cuda_bandwidth): float32 to bfloat16 96 %, where 99 %
#include "elementwise.cuh"

// ---- casts: bool is stored as a byte, 0 or 1, and read as uint8 -----------------------------------------------------

#define CASTS(from, T, C) \
  KERNEL1(cast_##from, float32, T, float, C, x, x) \
  KERNEL1(cast_##from, bfloat16, T, bf16, C, x, x) \
  KERNEL1(cast_##from, float16, T, f16, C, x, x) \
  KERNEL1(cast_##from, int32, T, int, C, x, x) \
  KERNEL1(cast_##from, int64, T, i64, C, x, x) \
  KERNEL1(cast_##from, uint8, T, u8, C, x, x) \
  KERNEL1(cast_##from, bool, T, u8, C, x, x != 0)
CASTS(float32, float, float)
CASTS(bfloat16, bf16, float)
CASTS(float16, f16, float)
CASTS(int32, int, int)
CASTS(int64, i64, i64)
CASTS(uint8, u8, int)

// ---- where: bits move, whatever they mean ---------------------------------------------------------------------------

#define WHERE(size, T) \
  ALPHA_ENTRY(where_##size, (THREADS), \
              (const u8 *cond, const T *x, u64 x_number, const T *y, u64 y_number, T *out, i64 n, \
               const __grid_constant__ Layout<3> layout), \
              constexpr int E = ELEMENTS<T, T>; \
              using In = Operand<T, E, 1>; \
              map_broadcast<E, 1, T>([=](T c, T a, T b) { return c ? a : b; }, out, n, layout, \
                                     Operand<u8, E, 1>{cond, 0}, In{x, i64(x_number)}, In{y, i64(y_number)}))
WHERE(1, u8)
WHERE(2, u16)
WHERE(4, u32)
WHERE(8, u64)

// y[0 .. nbytes) = the 8 bytes of `pattern`, over and over
ALPHA_GLOBAL(fill, (THREADS), (u8 *y, u64 pattern, i64 nbytes)) {
  ptx::follow();
  const u32 low = static_cast<u32>(pattern), high = static_cast<u32>(pattern >> 32);
  const uint4 packet = {low, high, low, high};
  const i64 packets = nbytes / 16, step = static_cast<i64>(gridDim.x) * THREADS;
  for (i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; i < packets; i += step)
    reinterpret_cast<uint4 *>(y)[i] = packet;
  const i64 tail = packets * 16 + threadIdx.x;
  if (blockIdx.x == 0 && tail < nbytes) y[tail] = static_cast<u8>(pattern >> threadIdx.x % 8 * 8);
}
