// What:     loss = -(t * log p + (1 - t) * log(1 - p)), logarithms of at least -100; NaN where p is outside [0, 1]
// Source:   as PyTorch has it
// Layout:   flat; see elementwise.cuh for the thread map
// Requires: 16-byte aligned tensors
// Threads:  see elementwise.cuh
// Measured: not by itself
#include "elementwise.cuh"

MAP2(binary_cross_entropy, p, t, (t - 1) * larger(log1pf(-p), -100.0f) - t * larger(logf(p), -100.0f))
