// What:    runs a kernel of an equation over arrays that broadcast: y[i] = f(a[at_a(i)], b[at_b(i)], ...)
// Layout:  y is contiguous, and cut into blocks that stay in L1. An operand is read where it lies if the elements of a
//          block are contiguous there; else they are collected in a buffer. What repeats with a short period throughout
//          a span (a number, a vector of channels, a gate's throughout its image) is collected once for the span, a
//          period longer than a block, and read from where a block begins in it.
// Threads: blocks; every element depends on its own operands alone.
#include "vec.hpp"

namespace {

constexpr int64_t BLOCK = 2048, MOST_OPERANDS = 3;

using Kernel = void(const void* const* in, void* out, const float* numbers, int64_t n);

// As alpha/cpu/pointwise.py packs it. Axes are merged, the innermost comes first. Arrays come as Python's objects, which
// have the address of their elements `data_at` bytes from where they begin: to ask for it in Python takes longer.
struct Operand {
  int64_t is_array;
  int64_t itemsize;
  int64_t period, span;    // within each `span` of y's elements its own are contiguous, over and over after `period`
  const int64_t* strides;  // in elements, one per axis
};
struct Plan {
  int64_t operands, itemsize, size, alone_below, data_at, rank;
  const int64_t* sizes;
  Operand of[MOST_OPERANDS];

  explicit Plan(const int64_t* table)
      : operands(table[0]), itemsize(table[1]), size(table[2]), alone_below(table[3]), data_at(table[4]),
        rank(table[5]), sizes(table + 6) {
    const int64_t* next = sizes + rank;
    for (int64_t k = 0; k < operands; k++, next += 4 + rank)
      of[k] = {next[0], next[1], next[2], next[3], next + 4};
  }
  void* elements(const void* object) const {
    return *reinterpret_cast<void* const*>(static_cast<const char*>(object) + data_at);
  }
};

template <class T>
INLINE void copy_run(T* to, const T* from, int64_t n, int64_t step) {
  if (step == 1) {
    copy_elements(to, from, n);
  } else if (step == 0) {
    const T value = *from;
    for (int64_t i = 0; i < n; i++) to[i] = value;
  } else {
    for (int64_t i = 0; i < n; i++) to[i] = from[i * step];
  }
}

// The elements [first, first + n) of an operand, in the order of y
template <class T>
void collect(const Plan& plan, const Operand& operand, const T* from, int64_t first, int64_t n, T* to) {
  int64_t at[64], offset = 0, rest = first;
  for (int64_t k = 0; k < plan.rank; k++) {
    at[k] = rest % plan.sizes[k];
    rest /= plan.sizes[k];
    offset += at[k] * operand.strides[k];
  }
  while (n > 0) {
    const int64_t run = std::min(n, plan.sizes[0] - at[0]), step = operand.strides[0];
    copy_run(to, from + offset, run, step);
    to += run;
    n -= run;
    offset += run * step;
    at[0] += run;
    for (int64_t k = 0; k + 1 < plan.rank && at[k] == plan.sizes[k]; k++) {
      offset += operand.strides[k + 1] - plan.sizes[k] * operand.strides[k];
      at[k] = 0;
      at[k + 1]++;
    }
  }
}

void collect(const Plan& plan, const Operand& operand, const void* from, int64_t first, int64_t n, void* to) {
  if (operand.itemsize == 1)
    collect(plan, operand, static_cast<const uint8_t*>(from), first, n, static_cast<uint8_t*>(to));
  else
    collect(plan, operand, static_cast<const uint32_t*>(from), first, n, static_cast<uint32_t*>(to));
}

int64_t offset_of(const Plan& plan, const Operand& operand, int64_t index) {
  int64_t offset = 0;
  for (int64_t k = 0; k < plan.rank; index /= plan.sizes[k++]) offset += index % plan.sizes[k] * operand.strides[k];
  return offset;
}

const void* moved(const void* from, int64_t elements, int64_t itemsize) {
  return static_cast<const char*>(from) + elements * itemsize;
}

}  // namespace

EXPORT void pointwise(Kernel* kernel, const int64_t* table, const void* a, const void* b, const void* c,
                      const void* result, const float* numbers) {
  const Plan plan(table);
  const void* from[MOST_OPERANDS] = {a, b, c};
  for (int64_t k = 0; k < plan.operands; k++)
    if (plan.of[k].is_array) from[k] = plan.elements(from[k]);
  char* y = static_cast<char*>(plan.elements(result));
#pragma omp parallel num_threads(team(plan.size, plan.alone_below))
  {
    float* buffers = scratch<8>(plan.operands * 2 * BLOCK);
    const void* in[MOST_OPERANDS];
    int64_t held[MOST_OPERANDS] = {-1, -1, -1};  // the span that a buffer has
#pragma omp for schedule(static)
    for (int64_t block = 0; block < ceil_div(plan.size, BLOCK); block++) {
      const int64_t first = block * BLOCK, n = std::min(BLOCK, plan.size - first);
      for (int64_t k = 0; k < plan.operands; k++) {
        const Operand& operand = plan.of[k];
        float* buffer = buffers + k * 2 * BLOCK;
        const int64_t span = first / operand.span, at = first % operand.span, begin = at % operand.period;
        if (begin + n <= operand.period) {
          in[k] = moved(from[k], offset_of(plan, operand, first), operand.itemsize);
        } else if (at + n <= operand.span && operand.period <= BLOCK) {
          if (held[k] != span)
            collect(plan, operand, from[k], first - at, std::min(operand.span, 2 * BLOCK), buffer);
          held[k] = span;
          in[k] = moved(buffer, begin, operand.itemsize);
        } else {
          collect(plan, operand, from[k], first, n, buffer);
          held[k] = -1;
          in[k] = buffer;
        }
      }
      kernel(in, y + first * plan.itemsize, numbers, n);
    }
  }
}
