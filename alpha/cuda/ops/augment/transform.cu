// What:     y[b] = images[index[b]] after the steps of rows[b]: moved, coloured, blurred, erased (steps.cuh)
// Layout:   images (M, H, W, C) and y (B, H, W, C) uint8, index (B) int64, rows (B, steps, WIDTH) int32, mean (C) float32;
//           spare (B, H, W, C) uint8 and wide (B, H, W, C) uint16 are scratch.
// Requires: H*W*C below 2^31; an index outside of the images yields a black image.
// Threads:  one block for an image: what a step writes, the next one reads, and the image stays in the caches.
// Measured: not by itself
#include "ptx.cuh"
#include "storage.cuh"
#define STEP INLINE
#define INLINED
#include "steps.cuh"

constexpr int THREADS = 512;

struct Block {
  INLINE int first() const { return threadIdx.x; }
  INLINE int count() const { return THREADS; }
  INLINE void sync() const { __syncthreads(); }
  INLINE void add(int *p) const { atomicAdd(p, 1); }
  template <class Size, class F> INLINE void pixels(const Size &size, F f) const {
    for (int i = first(); i < size.height * size.width; i += count()) f(i / size.width, i % size.width, i);
  }
};

INLINE void transform(const unsigned char *images, const i64 *index, const int *rows, const float *mean,
                      unsigned char *y, unsigned char *spare, unsigned short *wide, i64 count, int count_of_steps,
                      int height, int width, int channels) {
  DYNAMIC_SHARED(unsigned char, colour);  // (C)
  __shared__ steps::Shared shared;
  for (int c = threadIdx.x; c < channels; c += THREADS)
    colour[c] = static_cast<unsigned char>(fminf(fmaxf(rintf(__fmul_rn(255.0f, mean[c])), 0.0f), 255.0f));
  __syncthreads();
  const i64 image = index[blockIdx.x], elements = static_cast<i64>(height) * width * channels;
  const i64 at = blockIdx.x * elements;
  if (image < 0 || image >= count) {
    for (i64 i = threadIdx.x; i < elements; i += THREADS) y[at + i] = 0;
    return;
  }
  steps::run_all(Block(), {height, width, channels}, rows + blockIdx.x * static_cast<i64>(count_of_steps) * steps::WIDTH,
                 count_of_steps, colour, images + image * elements, y + at, spare + at, wide + at, shared);
}

ALPHA_ENTRY(transform_images, (THREADS, 1),
            (const unsigned char *images, const i64 *index, const int *rows, const float *mean, unsigned char *y,
             unsigned char *spare, unsigned short *wide, i64 count, int steps, int height, int width, int channels),
            transform(images, index, rows, mean, y, spare, wide, count, steps, height, width, channels))
