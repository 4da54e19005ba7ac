// What:     what a thread keeps of a tensor: COUNT pieces of 16 bytes in shared memory, where they cost no registers
//           and arrive while the thread does something else; or single elements, in registers
// Layout:   [piece][thread]; 16-byte aligned
#pragma once
#include "lanes.cuh"
#include "ptx.cuh"
#include "reduce.cuh"

template <class T, int N, int COUNT> struct ThreadPieces {
  T *mine;
  __device__ __forceinline__ explicit ThreadPieces(void *shared) : mine(static_cast<T *>(shared) + threadIdx.x * N) {}
  __device__ __forceinline__ void fetch(int j, const T *from, bool there) {  // else zeros
    ptx::cp_async<16>(mine + j * THREADS * N, from, there ? 16 : 0);
  }
  __device__ __forceinline__ void commit() { ptx::cp_async_commit(); }
  template <int PENDING> __device__ __forceinline__ void wait() {
    ptx::cp_async_wait<PENDING>();  // a thread reads what it has copied itself
  }
  __device__ __forceinline__ void get(float (&v)[N], int j) const {
    Lanes<N, T> piece = load<N>(mine + j * THREADS * N);
    unpack(v, piece);
  }
};
template <class T, int COUNT> struct ThreadPieces<T, 1, COUNT> {
  T mine[COUNT];
  __device__ __forceinline__ explicit ThreadPieces(void *) {}
  __device__ __forceinline__ void fetch(int j, const T *from, bool there) {
    mine[j] = there ? *from : from_float<T>(0);
  }
  __device__ __forceinline__ void commit() {}
  template <int> __device__ __forceinline__ void wait() {}
  __device__ __forceinline__ void get(float (&v)[1], int j) const { v[0] = to_float(mine[j]); }
};
