// The emulated half of ptx.cuh, ptx_sm90.cuh and ptx_wgmma.cuh: what their wrappers call when there is no nvcc.
#pragma once
#include "engine.hpp"
#include <algorithm>

namespace emu {
// ---- engine.cpp, cluster.cpp
void named_barrier(int id, int count, bool wait);
unsigned cluster_rank();
unsigned cluster_size();
void* cluster_map(const void*, int rank);
void cluster_arrive();
void cluster_wait();

// ---- copy.cpp
void cp_async(void* dst, const void* src, int bytes, int valid);
void cp_async_commit();
void cp_async_wait(int pending_groups);

void mbarrier_init(uint64_t*, int count);
void mbarrier_expect(uint64_t*, int bytes);
void mbarrier_arrive(uint64_t*, int expect_bytes);
void mbarrier_arrive_remote(uint64_t*, int rank);
void mbarrier_wait(uint64_t*, int parity);
bool mbarrier_test(uint64_t*, int parity);
void fence_proxy_async();
struct Coordinates {
  int values[5];
};
void tma_load(void* dst, const void* map, const int* coord, int rank, uint64_t* bar);
void tma_load_multicast(void* dst, const void* map, const int* coord, int rank, uint64_t* bar, unsigned blocks);
void tma_store(const void* map, const void* src, const int* coord, int rank);
void tma_add(const void* map, const void* src, const int* coord, int rank);
void tma_prefetch(const void* map);
void bulk_commit();
void bulk_wait(int pending_groups);
size_t swizzle(size_t address, int span);

// ---- tensor.cpp
enum Format { Fp16, Bf16, Tf32 };
void ldmatrix(unsigned* r, int matrices, bool transpose, const void* row);
void stmatrix(void* row, int matrices, bool transpose, const unsigned* r);
void mma(Format, float* d, const unsigned* a, const unsigned* b, const float* c);
void mma_k8(float* d, const unsigned* a, const unsigned* b, const float* c);  // of Fp16
void wgmma(Format, int n, float* d, const unsigned* a, uint64_t a_desc, uint64_t b_desc, bool add, bool a_mn,
           bool b_mn, bool negate = false);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int pending_groups);
void setmaxnreg(int registers);
}  // namespace emu
