// Kernels that are launched in any case and work only when they are needed: the decision is on the device.
#pragma once
#include "ptx.cuh"

struct Guard {        // the flags of two operands (alpha/cuda/lazy/operands.py), or nulls: no guard
  const int *a, *b;
};

// Whether the launch has nothing to do: it is guarded, and no flag is set.
INLINE bool spared(const Guard &guard) { return guard.a && !*guard.a && !*guard.b; }
