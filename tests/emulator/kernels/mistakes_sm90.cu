// Mistakes with the instructions of Hopper, which the emulator must catch: a launch chooses one by number, 0 is none.
#include "ptx_more.cuh"
#ifdef __CUDACC__
#define WRONG(n) false  // the assembler would complain
#else
#define WRONG(n) (mistake == n)
#endif
#define MAP const __grid_constant__ CUtensorMap

// Without a mistake: d = a b over tiles of ones, 64 x 64 x 16. Block 128 and more.
extern "C" __global__ void __launch_bounds__(384) multiply(float* d, int mistake) {
  DYNAMIC_SHARED(unsigned, smem);  // [a, b][64][32]
  for (int i = threadIdx.x; i < 4096; i += blockDim.x) smem[i] = 0x3C003C00u;
  if (!WRONG(1)) ptx::fence_proxy_async_shared();
  __syncthreads();
  const uint64_t a = ptx::wgmma_desc(smem), b = ptx::wgmma_desc(smem + 2048);
  float acc[32];
  if (WRONG(2) && threadIdx.x >= 96) return;
  if (!WRONG(3)) ptx::wgmma_fence();
  if (WRONG(4)) ptx::wgmma_ss_f16(acc, a + 7, b, false);  // 16 of k that are not in one row
  else ptx::wgmma_ss_f16(acc, a, b, false);
  if (WRONG(5)) d[4096 + threadIdx.x] = acc[3];
  if (WRONG(6)) acc[5] = 0;
  ptx::wgmma_commit();
  if (WRONG(7)) ptx::wgmma_wait<1>();
  else ptx::wgmma_wait<0>();
  if (WRONG(8)) {
    acc[1] += 1;
    ptx::wgmma_ss_f16(acc, a, b, true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
  }
  if (WRONG(9) && threadIdx.x < 128) ptx::setmaxnreg_inc<240>();
  if (WRONG(10) && threadIdx.x < 32) ptx::setmaxnreg_dec<40>();
  if (WRONG(11)) ptx::setmaxnreg_inc<256>();
  for (int i = 0; i < 32; i++) d[threadIdx.x * 32 + i] = acc[i];
}
ALPHA_KERNEL(multiply)

// Without a mistake: copies a tile of 32 floats. Block 64.
extern "C" __global__ void __launch_bounds__(64) copy_tile(MAP x, MAP y, int mistake) {
  DYNAMIC_SHARED(float, tile);
  __shared__ uint64_t bar[2];
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&bar[0], WRONG(20) ? 0 : 1);
    ptx::fence_mbarrier_init();
    if (WRONG(21)) ptx::mbarrier_arrive(&bar[1]);
    ptx::mbarrier_arrive_expect(&bar[0], WRONG(22) ? 1 << 20 : WRONG(23) ? 256 : 128);
    if (WRONG(24)) ptx::mbarrier_arrive(&bar[0]);
    if (WRONG(33)) ptx::tma_load_2d(tile, x, 0, 0, &bar[0]);
    ptx::tma_load_1d(WRONG(25) ? tile + 4 : WRONG(26) ? tile + 992 : tile, x, 0, &bar[0]);
  }
  __syncthreads();
  if (!WRONG(27)) ptx::mbarrier_wait(&bar[0], 0);
  if (threadIdx.x < 32) tile[threadIdx.x] += 1;
  if (!WRONG(28)) ptx::fence_proxy_async_shared();
  if (!WRONG(29)) __syncthreads();
  if (threadIdx.x == 32) {
    if (WRONG(30)) ptx::tma_store_2d(y, tile, 0, 0);
    else ptx::tma_store_1d(y, tile, 0);
    ptx::bulk_commit();
    if (WRONG(31)) ptx::bulk_wait<1>();
    else ptx::bulk_wait<0>();
  }
  if (WRONG(32))
    while (!ptx::mbarrier_try_wait(&bar[0], 1)) {}
}
ALPHA_KERNEL(copy_tile)

// Without a mistake: two warps at a named barrier, where one only arrives. Block 64.
extern "C" __global__ void __launch_bounds__(64) named_barriers(int* x, int mistake) {
  __shared__ int word;
  const int id = WRONG(40) ? 16 : 1, count = WRONG(41) ? 60 : 64;
  if (threadIdx.x < 32) {
    if (threadIdx.x == 0) word = 7;
    ptx::bar_arrive(id, count);
  } else {
    ptx::bar_sync(id, WRONG(42) ? 32 : count);
    x[threadIdx.x - 32] = word;
  }
}
ALPHA_KERNEL(named_barriers)

// Without a mistake: every block reads a word of the next one. Clusters of two blocks of 32.
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(32) neighbours(MAP map, int* x, int mistake) {
  DYNAMIC_SHARED(float, tile);
  __shared__ int word;
  __shared__ uint64_t bar;
  const int rank = ptx::cluster_rank();
  if (threadIdx.x == 0) {
    word = blockIdx.x;
    ptx::mbarrier_init(&bar, 2);
    ptx::fence_mbarrier_init();
  }
  __syncwarp();
  if (WRONG(50)) ptx::mbarrier_arrive_remote(&bar, rank ^ 1);
  if (WRONG(51)) ptx::cluster_wait();
  if (!WRONG(52)) ptx::cluster_arrive();
  if (WRONG(53)) ptx::cluster_arrive();
  if (!WRONG(52)) ptx::cluster_wait();
  if (WRONG(54)) ptx::mbarrier_arrive_remote(&bar, 2);
  if (WRONG(55)) ptx::tma_load_multicast_1d(tile, map, 0, &bar, 5);
  if (WRONG(56)) ptx::tma_load_multicast_1d(tile, map, 0, &bar, 0);
  if (WRONG(57)) ptx::cluster_map(x, 1);
  if (WRONG(58)) ptx::cluster_map(&word, 2);
  if (WRONG(59)) ptx::mbarrier_wait(ptx::cluster_map(&bar, rank ^ 1), 0);
  if (WRONG(60) && rank == 1) return;
  if (WRONG(60)) __nanosleep(1000);
  if (WRONG(61) && threadIdx.x == 0) word = 3;
  if (WRONG(62) && rank == 0) ptx::mbarrier_wait(&bar, 0);
  x[blockIdx.x] = *ptx::cluster_map(&word, rank ^ 1);
  ptx::cluster_arrive();
  ptx::cluster_wait();
}
ALPHA_KERNEL(neighbours)
