// One launch over a list of tensors: every block finds its chunk of its tensor in a table that travels as a kernel
// argument, so that neither a copy to the device nor a synchronisation precedes the launch.
#pragma once
#include "lanes.cuh"

// Columns of `count` words, one row per tensor: the address in list 0, the address in list 1, ..., in the last list;
// then the number of elements; then the tensor's first block. A tensor of n elements has ceil(n / chunk) blocks.
struct Table { i64 words[480]; };

// Elements [begin, end) of row `tensor`; begin is a multiple of the chunk, and so of 16 bytes.
struct Chunk {
  int tensor;
  i64 begin, end;
};

// The chunk of this block: it belongs to the last tensor whose first block is not behind it.
template <int LISTS> INLINE Chunk find_chunk(const Table &table, int count, int chunk) {
  const i64 *size = table.words + LISTS * count, *first = size + count;
  int low = 0, high = count;  // first[low] <= blockIdx.x, and < first[high] if there is one
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first[middle] <= blockIdx.x ? low : high) = middle;
  }
  const i64 begin = (blockIdx.x - first[low]) * chunk;
  return {low, begin, begin + chunk < size[low] ? begin + chunk : size[low]};
}

template <class T> INLINE T *tensor_of(const Table &table, int count, int list, int tensor) {
  return reinterpret_cast<T *>(table.words[list * count + tensor]);
}

// Calls step(changed, read) for every element: `changed` are the elements of lists 0 .. Step::CHANGED - 1, which are
// written back, `read` that of list Step::CHANGED, times *factor. List 0 and the last hold T, the states between them S.
// Where *factor is 0 nothing happens; null stands for 1.
template <class T, class S, class Step>
INLINE void update_all(const Table &table, int count, int chunk, const float *factor, const Step &step) {
  const float times = factor ? *factor : 1.0f;
  if (times == 0) return;
  constexpr int CHANGED = Step::CHANGED, STATES = CHANGED - 1, L = LANES<T>;
  const Chunk here = find_chunk<CHANGED + 1>(table, count, chunk);
  const T *read = tensor_of<const T>(table, count, CHANGED, here.tensor);
  T *own = tensor_of<T>(table, count, 0, here.tensor);
  S *states[STATES + 1];  // an array has an element at least
  UNROLL for (int k = 0; k < STATES; k++) states[k] = tensor_of<S>(table, count, k + 1, here.tensor);

  const i64 whole = here.end - here.end % L;  // packets end here; only the last chunk of a tensor has a tail
  // the loads of one packet of each list are enough in flight
  UNROLL_BY(1) for (i64 i = here.begin + threadIdx.x * L; i < whole; i += blockDim.x * L) {
    const Lanes<L, T> g = load<L>(read + i);
    Lanes<L, T> packet = load<L>(own + i);
    Lanes<L, S> packets[STATES + 1];
    UNROLL for (int k = 0; k < STATES; k++) packets[k] = load<L>(states[k] + i);
    UNROLL for (int lane = 0; lane < L; lane++) {
      float values[CHANGED];
      values[0] = to_float(packet.v[lane]);
      UNROLL for (int k = 0; k < STATES; k++) values[k + 1] = to_float(packets[k].v[lane]);
      step(values, times * to_float(g.v[lane]));
      packet.v[lane] = from_float<T>(values[0]);
      UNROLL for (int k = 0; k < STATES; k++) packets[k].v[lane] = from_float<S>(values[k + 1]);
    }
    store(own + i, packet);
    UNROLL for (int k = 0; k < STATES; k++) store(states[k] + i, packets[k]);
  }
  for (i64 i = whole + threadIdx.x; i < here.end; i += blockDim.x) {
    float values[CHANGED];
    values[0] = to_float(own[i]);
    UNROLL for (int k = 0; k < STATES; k++) values[k + 1] = to_float(states[k][i]);
    step(values, times * to_float(read[i]));
    own[i] = from_float<T>(values[0]);
    UNROLL for (int k = 0; k < STATES; k++) states[k][i] = from_float<S>(values[k + 1]);
  }
}
