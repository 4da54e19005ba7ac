// y[r] = sum over k of x[r][k] w[k]: rows and w stream through a double buffer of cp.async, 16 floats of K per stage.
// Block 128 = 128 rows; K any multiple of 4: the tail of the last chunk is zero-filled by src-size.
#include "ptx.cuh"
constexpr int CHUNK = 16;  // floats of K per stage

extern "C" __global__ void __launch_bounds__(128)
    dot_rows(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y, int rows, int K) {
  DYNAMIC_SHARED(float, smem);  // [2][128 + 1][CHUNK]: rows, then w
  const int t = threadIdx.x, row0 = blockIdx.x * 128, chunks = (K + CHUNK - 1) / CHUNK;
  auto load = [&](int chunk, int stage) {
    float* s = smem + stage * 129 * CHUNK;
    for (int i = t; i < 129 * CHUNK / 4; i += 128) {
      int r = i / (CHUNK / 4), k = chunk * CHUNK + i % (CHUNK / 4) * 4;
      const float* src = r < 128 ? x + (size_t)(row0 + r) * K + k : w + k;
      bool in = k < K && (r == 128 || row0 + r < rows);
      ptx::cp_async<16>(s + r * CHUNK + k % CHUNK, in ? src : x, in ? 16 : 0);
    }
    ptx::cp_async_commit();
  };
  float acc = 0;
  load(0, 0);
  for (int c = 0; c < chunks; c++) {
    if (c + 1 < chunks) load(c + 1, (c + 1) % 2);
    else ptx::cp_async_commit();
#ifndef BUG_NO_WAIT  // the tests build this bug on purpose
    ptx::cp_async_wait<1>();
#endif
    __syncthreads();
    const float* s = smem + c % 2 * 129 * CHUNK;
    for (int k = 0; k < CHUNK; k++) acc = fmaf(s[t * CHUNK + k], s[128 * CHUNK + k], acc);
    __syncthreads();
  }
  if (row0 + t < rows) y[row0 + t] = acc;
}
ALPHA_KERNEL(dot_rows)
