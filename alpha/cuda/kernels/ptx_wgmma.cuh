// Beside ptx_sm90.cuh: wgmma by the type of its operands, for kernels that are templates of it. Needs -arch=sm_90a.
#pragma once
#include "ptx_sm90.cuh"
#include "storage.cuh"

template <class E> constexpr bool IS_F16 = false;
template <> constexpr bool IS_F16<f16> = true;

namespace ptx {
// These are computed before whatever follows. The compiler would put it off until behind a wait, where it costs time.
PTX_FN void settle(int& a, int& b, int& c, int& d) { PTX((void)0, "" : "+r"(a), "+r"(b), "+r"(c), "+r"(d)); }

// d = a b (+ d if add), 64 x N x 16; E: f16 or bf16
template <class E, int N, int A_MN, int B_MN>
PTX_FN void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, bool add) {
  if constexpr (IS_F16<E>) wgmma_ss_f16<A_MN, B_MN>(d, a, b, add);
  else wgmma_ss_bf16<A_MN, B_MN>(d, a, b, add);
}
}  // namespace ptx
