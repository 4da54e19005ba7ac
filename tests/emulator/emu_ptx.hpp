// The emulated half of ptx.cuh: what its wrappers call when there is no nvcc. Implemented in copy.cpp and tensor.cpp.
#pragma once
#include "engine.hpp"
#include <algorithm>

namespace emu {
void cp_async(void* dst, const void* src, int bytes, int valid);
void cp_async_commit();
void cp_async_wait(int pending_groups);

void mbarrier_init(uint64_t*, int count);
void mbarrier_arrive(uint64_t*, int expect_bytes);
void mbarrier_wait(uint64_t*, int parity);
bool mbarrier_test(uint64_t*, int parity);
void tma_load(void* dst, const void* map, const int* coord, int rank, uint64_t* bar);
void tma_store(const void* map, const void* src, const int* coord, int rank);
void bulk_commit();
void bulk_wait(int pending_groups);
size_t swizzle(size_t address, int span);

enum Format { Fp16, Bf16, Tf32 };
void ldmatrix(unsigned* r, int matrices, bool transpose, const void* row);
void mma(Format, float* d, const unsigned* a, const unsigned* b, const float* c);
void wgmma(Format, int n, float* d, const unsigned* a, uint64_t a_desc, uint64_t b_desc, bool add, bool a_mn,
           bool b_mn);
void wgmma_commit();
void wgmma_wait(int pending_groups);
}  // namespace emu
