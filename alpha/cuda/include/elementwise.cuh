// y[i] = f(a[i], b[i], ...), element by element, with broadcasting: what elementwise ops share. An op is one line:
//
//   MAP1(exp, x, expf(x))                                   y = exp(x)             float32, bfloat16, float16
//   MAP1(leaky_relu, x, x > 0 ? x : slope * x, float slope) with a number from the caller
//   MAP2(relu_grad, g, y, y <= 0 ? 0 : g)                   two tensors of one shape
//   BROADCAST2(div, a, b, a / b)                            tensors that broadcast, or numbers
//
// Layout:   flat, C-contiguous. MAP1 and MAP2 read tensors of y's shape; BROADCAST2 reads tensors whose element for
//           y[i] is found by a Layout, which has one axis where they have y's shape.
// Threads:  a thread reads PACKETS packets of each tensor before it computes: a packet is 16 bytes of the
//           widest type. Neighbouring threads read neighbouring packets. The grid may have any size. A block whose
//           share the end cuts short goes element by element, so that nothing stands between the loads of the others.
#pragma once
#include "lanes.cuh"

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr int THREADS = 256;
constexpr int RANK = 6;  // axes of a Layout

// ---- types: how an element is stored, and in what it is computed ----------------------------------------------------

template <class T>
constexpr bool IS_FLOAT = std::is_same_v<T, float> || std::is_same_v<T, bf16> || std::is_same_v<T, f16>;

// What stands for a tensor of T where the caller passes a number
template <class T> using Number = std::conditional_t<IS_FLOAT<T>, float, i64>;

template <class C, class T> INLINE C widen(T v) {
  if constexpr (IS_FLOAT<T>)
    return static_cast<C>(to_float(v));
  else
    return static_cast<C>(v);
}
// A float becomes an integer by cutting its fraction off; beyond int64, and NaN: undefined, as in C.
template <class R, class C> INLINE R narrow(C v) {
  if constexpr (IS_FLOAT<R>)
    return from_float<R>(static_cast<float>(v));
  else if constexpr (std::is_same_v<C, float>)
    return static_cast<R>(static_cast<i64>(v));
  else
    return static_cast<R>(v);
}

// Element e of E that were read at once, and E results that are written so.
template <class C, class T, int E> INLINE C element(const Lanes<E, T> &lanes, int e) {
  if constexpr (IS_FLOAT<T>) return static_cast<C>(value(lanes, e));
  else return widen<C>(lanes.v[e]);
}
template <class R, class C, int E> INLINE void store_narrow(R *y, const C (&values)[E]) {
  if constexpr (IS_FLOAT<R>) {
    float floats[E];
    UNROLL for (int e = 0; e < E; e++) floats[e] = static_cast<float>(values[e]);
    store_floats(y, floats);
  } else {
    Lanes<E, R> lanes;
    UNROLL for (int e = 0; e < E; e++) lanes.v[e] = narrow<R>(values[e]);
    store(y, lanes);
  }
}

// ---- where an element of y finds its operands -----------------------------------------------------------------------

// Element i of a box has the coordinates i mod size[0], i / size[0] mod size[1], ...: the innermost axis comes first.
// Its K operands have it at the sum of coordinate * stride.
template <int K> struct Layout {
  int rank;
  i64 size[RANK], stride[K][RANK];
  u64 magic[RANK];  // i / size = high(i * magic) >> shift
  int shift[RANK];

  INLINE void locate(i64 i, i64 (&offset)[K]) const {
    UNROLL for (int k = 0; k < K; k++) offset[k] = 0;
    UNROLL_BY(1) for (int axis = 0; axis < rank; axis++) {
      const i64 rest = axis + 1 < rank ? __umul64hi(i, magic[axis]) >> shift[axis] : 0;
      UNROLL for (int k = 0; k < K; k++) offset[k] += (i - rest * size[axis]) * stride[k][axis];
      i = rest;
    }
  }
};

// ---- the loop -------------------------------------------------------------------------------------------------------

// One operand, and what a thread has read of it.
template <class T, int E, int PACKETS> struct Operand {
  const T *data;  // null: `number` stands for every element
  Number<T> number;
  Lanes<E, T> packet[PACKETS];

  INLINE void load(i64 first) {
    if (data)
      UNROLL for (int p = 0; p < PACKETS; p++) packet[p] = ::load<E>(data + first + p * THREADS * E);
  }
  INLINE void load_at(int p, i64 offset, i64 stride) {
    if (!data) return;
    if (stride) {
      packet[p] = ::load<E>(data + offset);
    } else {
      const T all = data[offset];
      UNROLL for (int e = 0; e < E; e++) packet[p].v[e] = all;
    }
  }
  template <class C> INLINE C read(i64 offset) const { return data ? widen<C>(data[offset]) : static_cast<C>(number); }
  template <class C> INLINE C at(int p, int e) const {
    return data ? element<C>(packet[p], e) : static_cast<C>(number);
  }
};

template <int E, int PACKETS, class C, class R, class F, class... Operands>
INLINE void write(F f, R *y, i64 first, const Operands &...in) {
  UNROLL for (int p = 0; p < PACKETS; p++) {
    C values[E];
    UNROLL for (int e = 0; e < E; e++) values[e] = f(in.template at<C>(p, e)...);
    store_narrow(y + first + p * THREADS * E, values);
  }
}

// y[i] = f(in[i] ...), computed in C
template <int E, int PACKETS, class C, class R, class F, class... Operands>
INLINE void map(F f, R *y, i64 n, Operands... in) {
  constexpr i64 BLOCK = THREADS * E * PACKETS;
  for (i64 begin = blockIdx.x * BLOCK; begin < n; begin += gridDim.x * BLOCK) {
    if (begin + BLOCK <= n) {
      const i64 first = begin + threadIdx.x * E;
      (in.load(first), ...);
      write<E, PACKETS, C>(f, y, first, in...);
    } else {
      UNROLL_BY(1) for (i64 i = begin + threadIdx.x; i < n; i += THREADS)
        y[i] = narrow<R>(f(in.template read<C>(i)...));
    }
  }
}

// As map, for operands that broadcast: along the innermost axis they are contiguous, or one element serves for all.
template <int E, int PACKETS, class C, class R, class F, int K, class... Operands>
INLINE void map_broadcast(F f, R *y, i64 n, const Layout<K> &layout, Operands... in) {
  constexpr i64 BLOCK = THREADS * E * PACKETS;
  const bool straight = layout.rank == 1 || layout.size[0] % E == 0;  // no packet goes around a corner
  for (i64 begin = blockIdx.x * BLOCK; begin < n; begin += gridDim.x * BLOCK) {
    i64 offset[K];
    if (straight && begin + BLOCK <= n) {
      const i64 first = begin + threadIdx.x * E;
      UNROLL for (int p = 0; p < PACKETS; p++) {
        layout.locate(first + p * THREADS * E, offset);
        int k = 0;
        ((in.load_at(p, offset[k], layout.stride[k][0]), k++), ...);
      }
      write<E, PACKETS, C>(f, y, first, in...);
    } else {
      const i64 end = begin + BLOCK < n ? begin + BLOCK : n;
      UNROLL_BY(1) for (i64 i = begin + threadIdx.x; i < end; i += THREADS) {
        layout.locate(i, offset);
        int k = 0;
        const C v[] = {in.template read<C>(offset[k++])...};
        if constexpr (K == 2)
          y[i] = narrow<R>(f(v[0], v[1]));
        else
          y[i] = narrow<R>(f(v[0], v[1], v[2]));
      }
    }
  }
}

// ---- kernels --------------------------------------------------------------------------------------------------------

// Elements of a packet: 16 bytes of the wider type, but no more than 8, of which registers hold several packets
template <class T, class R> constexpr int WIDTH = sizeof(T) > sizeof(R) ? sizeof(T) : sizeof(R);
template <class T, class R> constexpr int ELEMENTS = WIDTH<T, R> == 1 ? 8 : 16 / WIDTH<T, R>;
constexpr int ONE_TENSOR = 4, MORE_TENSORS = 2;  // packets in flight, of one tensor or of each of several

// KERNEL<number of operands>(name, dtype, stored type of the operands, of y, computed type, operands ..., f, numbers)
// (THREADS, 4): four blocks on a multiprocessor leave 64 registers to a thread; left alone, the assembler spills some.
#define KERNEL1(name, dtype, T, R, C, a, f, ...) \
  ALPHA_ENTRY(name##_##dtype, (THREADS, 4), (const T *in0, R *out, i64 count, ##__VA_ARGS__), \
              constexpr int E = ELEMENTS<T, R>; \
              map<E, ONE_TENSOR, C>([=](C a) { return f; }, out, count, Operand<T, E, ONE_TENSOR>{in0, 0}))

#define KERNEL2(name, dtype, T, R, C, a, b, f, ...) \
  ALPHA_ENTRY(name##_##dtype, (THREADS), (const T *in0, const T *in1, R *out, i64 count, ##__VA_ARGS__), \
              constexpr int E = ELEMENTS<T, R>; \
              using In = Operand<T, E, MORE_TENSORS>; \
              map<E, MORE_TENSORS, C>([=](C a, C b) { return f; }, out, count, In{in0, 0}, In{in1, 0}))

#define BROADCAST_KERNEL2(name, dtype, T, R, C, a, b, f, ...) \
  ALPHA_ENTRY(name##_##dtype, (THREADS), \
              (const T *in0, Number<T> number0, const T *in1, Number<T> number1, R *out, i64 count, \
               const __grid_constant__ Layout<2> layout, ##__VA_ARGS__), \
              constexpr int E = ELEMENTS<T, R>; \
              using In = Operand<T, E, MORE_TENSORS>; \
              map_broadcast<E, MORE_TENSORS, C>([=](C a, C b) { return f; }, out, count, layout, In{in0, number0}, \
                                                In{in1, number1}))

#define FLOAT_TYPES(KERNEL, name, ...) \
  KERNEL(name, float32, float, float, float, __VA_ARGS__) \
  KERNEL(name, bfloat16, bf16, bf16, float, __VA_ARGS__) \
  KERNEL(name, float16, f16, f16, float, __VA_ARGS__)
#define MAP1(name, a, f, ...) FLOAT_TYPES(KERNEL1, name, a, f, ##__VA_ARGS__)
#define MAP2(name, a, b, f, ...) FLOAT_TYPES(KERNEL2, name, a, b, f, ##__VA_ARGS__)
#define BROADCAST2(name, a, b, f, ...) FLOAT_TYPES(BROADCAST_KERNEL2, name, a, b, f, ##__VA_ARGS__)
