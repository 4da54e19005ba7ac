// A tile of a 4-D tensor through shared memory by TMA: y's tile at `to` becomes x's tile at `from`, coordinates and box
// from the innermost dimension. What lies outside x is zero; what lies outside y is dropped. Block 32.
#include "ptx_sm90.cuh"
struct Place {
  int at[4];
};
extern "C" __global__ void __launch_bounds__(32)
    move_tile(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap y, Place from, Place to,
              int bytes) {
  DYNAMIC_SHARED(char, tile);
  __shared__ uint64_t landed;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&landed, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect(&landed, bytes);
    ptx::tma_load_4d(tile, x, from.at[0], from.at[1], from.at[2], from.at[3], &landed);
    ptx::mbarrier_wait(&landed, 0);
    ptx::tma_store_4d(y, tile, to.at[0], to.at[1], to.at[2], to.at[3]);
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}
ALPHA_KERNEL(move_tile)
