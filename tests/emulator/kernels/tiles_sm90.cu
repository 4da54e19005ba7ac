// A tile of a tensor through shared memory by TMA: y's tile at `to` becomes x's tile at `from`; coordinates and box are
// from the innermost dimension. What lies outside x is zero; what lies outside y is dropped. `raw` receives what the
// tile's part of shared memory looks like, `room` words of it. Block 32.
#include "ptx_more.cuh"
#define MAP const __grid_constant__ CUtensorMap
struct Place {
  int at[5];
};
template <int RANK>
INLINE void load(void* tile, const CUtensorMap& x, const int (&at)[5], uint64_t* bar) {
  if constexpr (RANK == 1) ptx::tma_load_1d(tile, x, at[0], bar);
  if constexpr (RANK == 2) ptx::tma_load_2d(tile, x, at[0], at[1], bar);
  if constexpr (RANK == 3) ptx::tma_load_3d(tile, x, at[0], at[1], at[2], bar);
  if constexpr (RANK == 4) ptx::tma_load_4d(tile, x, at[0], at[1], at[2], at[3], bar);
  if constexpr (RANK == 5) ptx::tma_load_5d(tile, x, at[0], at[1], at[2], at[3], at[4], bar);
}
template <int RANK>  // to this block alone: without a cluster, rank 0
INLINE void load_multicast(void* tile, const CUtensorMap& x, const int (&at)[5], uint64_t* bar) {
  if constexpr (RANK == 1) ptx::tma_load_multicast_1d(tile, x, at[0], bar, 1);
  if constexpr (RANK == 2) ptx::tma_load_multicast_2d(tile, x, at[0], at[1], bar, 1);
  if constexpr (RANK == 3) ptx::tma_load_multicast_3d(tile, x, at[0], at[1], at[2], bar, 1);
  if constexpr (RANK == 4) ptx::tma_load_multicast_4d(tile, x, at[0], at[1], at[2], at[3], bar, 1);
  if constexpr (RANK == 5) ptx::tma_load_multicast_5d(tile, x, at[0], at[1], at[2], at[3], at[4], bar, 1);
}
template <int RANK>
INLINE void store(const CUtensorMap& y, const void* tile, const int (&at)[5]) {
  if constexpr (RANK == 1) ptx::tma_store_1d(y, tile, at[0]);
  if constexpr (RANK == 2) ptx::tma_store_2d(y, tile, at[0], at[1]);
  if constexpr (RANK == 3) ptx::tma_store_3d(y, tile, at[0], at[1], at[2]);
  if constexpr (RANK == 4) ptx::tma_store_4d(y, tile, at[0], at[1], at[2], at[3]);
  if constexpr (RANK == 5) ptx::tma_store_5d(y, tile, at[0], at[1], at[2], at[3], at[4]);
}
template <int RANK>
INLINE void move_tile(const CUtensorMap& x, const CUtensorMap& y, unsigned* raw, Place from, Place to, int bytes,
                      int room, int multicast) {
  DYNAMIC_SHARED(unsigned, tile);
  __shared__ uint64_t landed;
  for (int i = threadIdx.x; i < room; i += 32) tile[i] = 0x01010101u * i;
  ptx::fence_proxy_async_shared();
  __syncwarp();
  if (ptx::elect_one()) {
    ptx::mbarrier_init(&landed, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_expect(&landed, bytes);
    if (multicast) load_multicast<RANK>(tile, x, from.at, &landed);
    else load<RANK>(tile, x, from.at, &landed);
    ptx::mbarrier_arrive(&landed);
    for (int tries = 0; tries < 100000 && !ptx::mbarrier_try_wait(&landed, 0);) tries++;
    store<RANK>(y, tile, to.at);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
    ptx::bulk_wait<0>();
  }
  __syncwarp();
  for (int i = threadIdx.x; i < room; i += 32) raw[i] = tile[i];
}
#define MOVE(rank) \
  extern "C" __global__ void __launch_bounds__(32) move_tile_##rank( \
      MAP x, MAP y, unsigned* raw, Place from, Place to, int bytes, int room, int multicast) { \
    move_tile<rank>(x, y, raw, from, to, bytes, room, multicast); \
  } \
  ALPHA_KERNEL(move_tile_##rank)
MOVE(1)
MOVE(2)
MOVE(3)
MOVE(4)
MOVE(5)

// The same with maps that lie in device memory.
extern "C" __global__ void __launch_bounds__(32) move_tile_by_pointer(
    const CUtensorMap* maps, unsigned* raw, Place from, Place to, int bytes, int room, int multicast) {
  ptx::tensor_map_acquire(maps);
  ptx::tensor_map_acquire(maps + 1);
  move_tile<2>(maps[0], maps[1], raw, from, to, bytes, room, multicast);
}
ALPHA_KERNEL(move_tile_by_pointer)
