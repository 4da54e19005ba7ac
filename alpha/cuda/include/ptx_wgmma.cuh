// Hopper's wgmma in two halves, as in ptx.cuh: d = a b (+ d if add) by the four warps of a warpgroup; a is 64 x K, b is
// K x N, K = 16, or 8 with tf32. Needs -arch=sm_90a. Operands lie in dynamic shared memory, a in registers too.
#pragma once
#include <type_traits>

#include "ptx_sm90.cuh"
#include "storage.cuh"

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1  // elsewhere kernels are empty, and their candidates do not fit
#endif
#if defined(HAS_WGMMA) && BLOCKS_TOGETHER > 1
#define CLUSTERS __cluster_dims__(BLOCKS_TOGETHER, 1, 1)  // of a kernel, beside its bounds
#else
#define CLUSTERS
#endif

namespace ptx {
// What all lanes of a warp have alike, as the compiler sees too; all 32 lanes ask. Products read their descriptors from
// uniform registers. Those hold what follows from uniform values alone, and only where no lane can be on another way:
// so bounds of loops and conditions around products are uniform, and lanes ask at no branch that is not.
INLINE int uniform(int value) { return __shfl_sync(~0u, value, 0); }
INLINE uint2 uniform(uint2 v) { return make_uint2(uniform(int(v.x)), uniform(int(v.y))); }

// Descriptor of an operand whose rows are swizzled over SPAN = 128, 64 or 32 bytes, as TMA does it, or not at all (0).
//   K-major: 8 rows of SPAN bytes repeat every sbo; 32 bytes further in K add 2 to the descriptor.
//   MN-major: 8 rows of SPAN bytes (8 of K) repeat every sbo, and the next SPAN bytes of M or N lie lbo further.
//   SPAN = 0: 8 rows of 16 bytes stand together; the next 16 bytes of K lie lbo further, the next 8 rows sbo;
//   MN-major: the next 16 bytes of M or N sbo, the next 8 of K lbo.
// A tile begins at a multiple of 8 SPAN bytes, an operand at any of its rows.
template <int SPAN = 128> INLINE uint64_t wgmma_desc(const void* tile, int lbo = 16, int sbo = 8 * SPAN) {
  static_assert(SPAN == 128 || SPAN == 64 || SPAN == 32 || SPAN == 0, "rows of 128, 64 or 32 bytes, or no swizzle");
  const uint64_t mode = SPAN == 128 ? 1 : SPAN == 64 ? 2 : SPAN == 32 ? 3 : 0;
  return (uint64_t)(shared(tile) >> 4 & 0x3FFF) | (uint64_t)(lbo >> 4) << 16 | (uint64_t)(sbo >> 4) << 32 | mode << 62;
}
INLINE void wgmma_fence() {  // before the first wgmma, and after other instructions touched its registers
  PTX(emu::wgmma_fence(), "wgmma.fence.sync.aligned;" :: : "memory");
}
INLINE void wgmma_commit() { PTX(emu::wgmma_commit(), "wgmma.commit_group.sync.aligned;" :: : "memory"); }
template <int PENDING> INLINE void wgmma_wait() {  // all but the last PENDING groups are complete
  PTX(emu::wgmma_wait(PENDING), "wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#ifdef __CUDACC__
#define PTX_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define PTX_F16(i) PTX_F4(i), PTX_F4(i + 4), PTX_F4(i + 8), PTX_F4(i + 12)
// For each N that kernels have: the accumulators as text and as operands, and the numbers of the operands behind them.
#define PTX_D16 "%0,%1,%2,%3,%4,%5,%6,%7"
#define PTX_D32 PTX_D16 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define PTX_D64 PTX_D32 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PTX_D96 PTX_D64 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define PTX_D128 PTX_D96 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define PTX_D160 PTX_D128 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define PTX_D192 PTX_D160 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define PTX_D224 PTX_D192 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define PTX_D256 PTX_D224 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define PTX_O16 PTX_F4(0), PTX_F4(4)
#define PTX_O32 PTX_F16(0)
#define PTX_O64 PTX_O32, PTX_F16(16)
#define PTX_O96 PTX_O64, PTX_F16(32)
#define PTX_O128 PTX_O96, PTX_F16(48)
#define PTX_O192 PTX_O128, PTX_F16(64), PTX_F16(80)
#define PTX_O256 PTX_O192, PTX_F16(96), PTX_F16(112)
#define PTX_WIDTHS(X, t) \
  X(t, 16, 8, 9, 10, 11, 12, 13, 14, 15, 16) X(t, 32, 16, 17, 18, 19, 20, 21, 22, 23, 24) \
  X(t, 64, 32, 33, 34, 35, 36, 37, 38, 39, 40) X(t, 96, 48, 49, 50, 51, 52, 53, 54, 55, 56) \
  X(t, 128, 64, 65, 66, 67, 68, 69, 70, 71, 72) \
  X(t, 192, 96, 97, 98, 99, 100, 101, 102, 103, 104) X(t, 256, 128, 129, 130, 131, 132, 133, 134, 135, 136)

// One instruction; i...: numbers of the operands b, add, signs of a and b, is b MN-major, and up to four of a.
#define PTX_WGMMA_N(types, n, a_text, majors, ib, iadd, ia_sign, ib_sign, ...) \
  if constexpr (HALF == n / 2) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #iadd ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n types " {" PTX_D##n "}, " a_text ", %" #ib ", p, %" #ia_sign \
                 ", %" #ib_sign majors ";\n}" \
                 : PTX_O##n \
                 : "l"(b), "r"((int)add), "n"(NEGATE_A ? -1 : 1), "n"(NEGATE_B ? -1 : 1), __VA_ARGS__ \
                 : "memory");
#define PTX_SS_16(types, n, i0, i1, i2, i3, i4, i5, i6, i7, i8) \
  PTX_WGMMA_N(types, n, "%" #i5, ", %" #i6 ", %" #i4, i0, i1, i2, i3, "n"(B_MN), "l"(a), "n"(A_MN))
#define PTX_SS_32(types, n, i0, i1, i2, i3, i4, ...) \
  PTX_WGMMA_N(types, n, "%" #i4, "", i0, i1, i2, i3, "l"(a))
#define PTX_WGMMA_ALL(X, types, format, a_registers, a_desc, a_mn, b_mn) PTX_WIDTHS(X, types)
#define PTX_IS_WIDTH(half, n, ...) || half == n / 2
#define PTX_HAS_WIDTH(half) (false PTX_WIDTHS(PTX_IS_WIDTH, half))
#else
#define PTX_HAS_WIDTH(half) true
#define PTX_WGMMA_ALL(X, types, format, a_registers, a_desc, a_mn, b_mn) \
  emu::wgmma(emu::format, 2 * HALF, d, a_registers, a_desc, b, add, a_mn, b_mn, NEGATE_A != NEGATE_B);
#endif
#define PTX_WIDTH_OF_D \
  static_assert(HALF % 4 == 0 && HALF >= 4 && HALF <= 128, "N, twice the accumulators, is a multiple of 8 up to 256"); \
  static_assert(PTX_HAS_WIDTH(HALF), "PTX_WIDTHS has no such N")

// N is twice the number of accumulators in d; these may be used after wgmma_wait. d[i] of a thread: row 16 (warp % 4) +
// lane / 4 + 8 (i / 2 % 2), column 8 (i / 4) + 2 (lane % 4) + i % 2. A_MN, B_MN: that operand is MN-major; NEGATE_A,
// NEGATE_B: its sign changes; a is in shared memory.
#define PTX_WGMMA_16(type, format) \
  template <int A_MN = 0, int B_MN = 0, int NEGATE_A = 0, int NEGATE_B = 0, int HALF> \
  INLINE void wgmma_ss_##type(float (&d)[HALF], uint64_t a, uint64_t b, bool add) { \
    PTX_WIDTH_OF_D; \
    PTX_WGMMA_ALL(PTX_SS_16, "k16.f32." #type "." #type, format, nullptr, a, A_MN, B_MN) \
  }
PTX_WGMMA_16(f16, Fp16)
PTX_WGMMA_16(bf16, Bf16)
// Of float32's bits, whose low 13 are ignored; both operands are K-major.
template <int NEGATE_A = 0, int NEGATE_B = 0, int HALF>
INLINE void wgmma_ss_tf32(float (&d)[HALF], uint64_t a, uint64_t b, bool add) {
  PTX_WIDTH_OF_D;
  PTX_WGMMA_ALL(PTX_SS_32, "k8.f32.tf32.tf32", Tf32, nullptr, a, 0, 0)
}

// ---- for kernels
// The instruction by the type of its operands, f16, bf16 or, as tf32, float, for kernels that are templates of it.
template <class E, int N, int A_MN, int B_MN> INLINE void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, bool add) {
  if constexpr (sizeof(E) == 4) wgmma_ss_tf32(d, a, b, add);
  else if constexpr (std::is_same_v<E, f16>) wgmma_ss_f16<A_MN, B_MN>(d, a, b, add);
  else wgmma_ss_bf16<A_MN, B_MN>(d, a, b, add);
}
// These are computed before whatever follows. The compiler would put it off until behind a wait, where it costs time.
INLINE void settle(int& a, int& b, int& c, int& d) { PTX((void)0, "" : "+r"(a), "+r"(b), "+r"(c), "+r"(d)); }
}  // namespace ptx
