// ldmatrix and stmatrix in every form (x1, x2, x4, each plain and transposed) on four 8 x 8 matrices of 16 bits, by a
// warp. Matrix i has its rows, 16 bytes each, in reverse order. What a form leaves out is 0.
// from [4][8][4 words]; loaded [form][4 registers][lane]; registers [4][lane]; stored [form][4][8][4 words].
#include "ptx_more.cuh"
constexpr int FORMS = 6, WORDS = 4 * 8 * 4;

extern "C" __global__ void __launch_bounds__(32)
    matrix_moves(const unsigned* from, const unsigned* registers, unsigned* loaded, unsigned* stored) {
  __shared__ __align__(16) unsigned s[WORDS];
  const int lane = threadIdx.x;
  unsigned* row = s + lane / 8 * 32 + (7 - lane % 8) * 4;
  for (int i = lane; i < WORDS; i += 32) s[i] = from[i];
  __syncwarp();
  unsigned r[FORMS][4] = {};
  unsigned r1[1], r2[2];
  ptx::ldmatrix_x1(r1, row);
  r[0][0] = r1[0];
  ptx::ldmatrix_x2(r2, row);
  r[1][0] = r2[0], r[1][1] = r2[1];
  ptx::ldmatrix_x4(r[2], row);
  ptx::ldmatrix_x1_trans(r1, row);
  r[3][0] = r1[0];
  ptx::ldmatrix_x2_trans(r2, row);
  r[4][0] = r2[0], r[4][1] = r2[1];
  ptx::ldmatrix_x4_trans(r[5], row);
#pragma unroll
  for (int i = 0; i < FORMS * 4; i++) loaded[i * 32 + lane] = r[i / 4][i % 4];
  const unsigned q[4] = {registers[lane], registers[32 + lane], registers[64 + lane], registers[96 + lane]};
  const unsigned q1[1] = {q[0]}, q2[2] = {q[0], q[1]};
#pragma unroll
  for (int form = 0; form < FORMS; form++) {
    __syncwarp();
    for (int i = lane; i < WORDS; i += 32) s[i] = 0;
    __syncwarp();
    if (form == 0) ptx::stmatrix_x1(row, q1);
    if (form == 1) ptx::stmatrix_x2(row, q2);
    if (form == 2) ptx::stmatrix_x4(row, q);
    if (form == 3) ptx::stmatrix_x1_trans(row, q1);
    if (form == 4) ptx::stmatrix_x2_trans(row, q2);
    if (form == 5) ptx::stmatrix_x4_trans(row, q);
    __syncwarp();
    for (int i = lane; i < WORDS; i += 32) stored[form * WORDS + i] = s[i];
  }
}
ALPHA_KERNEL(matrix_moves)
