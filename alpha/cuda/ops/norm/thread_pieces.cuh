// What:     what a thread keeps of a tensor: COUNT pieces of 16 bytes in shared memory, where they cost no registers
//           and arrive while the thread does something else; or single elements, in registers
// Layout:   [piece][thread]; 16-byte aligned
#pragma once
#include "lanes.cuh"
#include "ptx.cuh"
#include "reduce.cuh"

template <class T, int N, int COUNT> struct ThreadPieces {
  T *mine;
  INLINE explicit ThreadPieces(void *shared) : mine(static_cast<T *>(shared) + threadIdx.x * N) {}
  INLINE void fetch(int j, const T *from, bool there) {  // else zeros
    ptx::cp_async<16>(mine + j * THREADS * N, from, there ? 16 : 0);
  }
  INLINE void commit() { ptx::cp_async_commit(); }
  template <int PENDING> INLINE void wait() {
    ptx::cp_async_wait<PENDING>();  // a thread reads what it has copied itself
  }
  INLINE void get(float (&v)[N], int j) const {
    Lanes<N, T> piece = load<N>(mine + j * THREADS * N);
    unpack(v, piece);
  }
};
template <class T, int COUNT> struct ThreadPieces<T, 1, COUNT> {
  T mine[COUNT];
  INLINE explicit ThreadPieces(void *) {}
  INLINE void fetch(int j, const T *from, bool there) { mine[j] = there ? *from : from_float<T>(0); }
  INLINE void commit() {}
  template <int> INLINE void wait() {}
  INLINE void get(float (&v)[1], int j) const { v[0] = to_float(mine[j]); }
};
