// Blocks of a cluster that work together: distributed shared memory, remote mbarriers, multicast.
#include "ptx_more.cuh"

// out[block][64]: what the blocks of its cluster sent to a block, summed. Clusters of 2 x 2 blocks of 64 threads.
extern "C" __global__ void __cluster_dims__(2, 2, 1) __launch_bounds__(64) exchange(int* out) {
  DYNAMIC_SHARED(int, inbox);  // [sender][64]
  __shared__ int own[64], visitors;
  __shared__ uint64_t sent;
  const int t = threadIdx.x, rank = ptx::cluster_rank(), size = ptx::cluster_size();
  const int block = blockIdx.y * gridDim.x + blockIdx.x;
  own[t] = block * 100 + t;
  if (t == 0) {
    visitors = 0;
    ptx::mbarrier_init(&sent, size);
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_arrive();
  ptx::cluster_wait();
  const int next = ptx::cluster_map(own, (rank + 1) % size)[t];  // loads from, stores to and atomics on other blocks
  for (int to = 0; to < size; to++) ptx::cluster_map(inbox, to)[rank * 64 + t] = own[t] * (to + 1);
  if (t < size) atomicAdd(ptx::cluster_map(&visitors, t), 1000000 << rank);
  __syncthreads();
  if (t < size) ptx::mbarrier_arrive_remote(&sent, t);
  ptx::mbarrier_wait_cluster(&sent, 0);
  int sum = next;
  for (int from = 0; from < size; from++) sum += inbox[from * 64 + t];
  ptx::cluster_arrive();
  ptx::cluster_wait();  // nobody returns before the last access to it
  out[block * 64 + t] = sum + visitors;
}
ALPHA_KERNEL(exchange)

// out[block]: rank + 100 x size. The launch says how large clusters are, if there are any.
extern "C" __global__ void where_am_i(int* out) {
  __shared__ int first;
  if (threadIdx.x == 0) first = ptx::cluster_rank();
  ptx::cluster_arrive();
  ptx::cluster_wait();
  const int of_last = *ptx::cluster_map(&first, ptx::cluster_size() - 1);
  ptx::cluster_arrive();
  ptx::cluster_wait();
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) out[block] = first + 100 * (of_last + 1);
}
ALPHA_KERNEL(where_am_i)

// C = A B^T, bf16: two blocks share 64 rows of A, of which each loads a half for both; each has 64 columns of its own.
// Block 160: threads 0..127 multiply, thread 128 loads. Stages: A, B, 64 rows of 128 bytes each, 128-byte swizzle.
constexpr int STAGES = 2, TILE_BYTES = 64 * 128;
#define MAP const __grid_constant__ CUtensorMap
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(160)
    matmul_multicast(MAP A, MAP B, float* C, int N, int K) {
  DYNAMIC_SHARED(char, smem);  // [STAGES][A, B][TILE_BYTES]
  __shared__ uint64_t full[STAGES], empty[STAGES];
  const int rank = ptx::cluster_rank(), steps = K / 64;
  if (threadIdx.x == 0) {
    ptx::tma_prefetch(A);
    for (int s = 0; s < STAGES; s++) {
      ptx::mbarrier_init(&full[s], 1);
      ptx::mbarrier_init(&empty[s], 2);  // an arrival from each block
    }
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_arrive();
  ptx::cluster_wait();
  if (threadIdx.x == 128)
    for (int k = 0; k < steps; k++) {
      const int s = k % STAGES;
      char* stage = smem + 2 * s * TILE_BYTES;
      if (k >= STAGES) ptx::mbarrier_wait(&empty[s], k / STAGES % 2 ^ 1);
      ptx::mbarrier_arrive_expect(&full[s], 2 * TILE_BYTES);
      ptx::tma_load_multicast_2d(stage + rank * (TILE_BYTES / 2), A, k * 64, blockIdx.y * 64 + rank * 32, &full[s], 3);
      ptx::tma_load_2d(stage + TILE_BYTES, B, k * 64, blockIdx.x * 64, &full[s]);
    }
  if (threadIdx.x < 128) {
    float acc[32];
    for (int k = 0; k < steps; k++) {
      const int s = k % STAGES;
      ptx::mbarrier_wait(&full[s], k / STAGES % 2);
      const uint64_t a = ptx::wgmma_desc(smem + 2 * s * TILE_BYTES), b = a + TILE_BYTES / 16;
      ptx::wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < 4; kk++) ptx::wgmma_ss_bf16(acc, a + kk * 2, b + kk * 2, k + kk > 0);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::bar_sync(1, 128);
      if (threadIdx.x < 2) ptx::mbarrier_arrive_remote(&empty[s], threadIdx.x);
    }
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 32; i++)
      C[(size_t)(blockIdx.y * 64 + row + i / 2 % 2 * 8) * N + blockIdx.x * 64 + i / 4 * 8 + lane % 4 * 2 + i % 2] =
          acc[i];
  }
  __syncwarp();
  ptx::cluster_arrive();
  ptx::cluster_wait();
}
ALPHA_KERNEL(matmul_multicast)
