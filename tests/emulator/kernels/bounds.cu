// Kernels whose launch bounds a class of GPUs does not grant.
#include "ptx.cuh"

ALPHA_ENTRY(eight_blocks, (256, 8), (int* x), *x = 1)
ALPHA_ENTRY(twenty_blocks, (32, 20), (int* x), *x = 1)
ALPHA_ENTRY(sixty_four_threads, (64), (int* x), *x = 1)
