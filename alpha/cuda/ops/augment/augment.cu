// What:     y[b] = (augmented(images[index[b]]) / 255 - mean) / std: crop, flip, cutout and normalisation in one pass,
//           from 8-bit images that stay on the device; the choices are those of alpha/cpu/augment/__init__.py, bit for bit.
// Source:   crop, flip and cutout (arXiv 1708.04552) as in alpha/cpu/augment/__init__.py
// Layout:   images (M, H, W, C) uint8, index and key (B) int64, key may be null, mean and std (C), y (B, H, W, C) float32.
// Requires: H*W*C below 2^31; an index outside of the images yields NaN.
// Threads:  gridDim.x images, gridDim.y blocks for each; a packet of 16 bytes of y per thread, which is written at once
//           where H*W*C is a multiple of 4.
// Measured: not by itself
#include "philox.cuh"
#include "storage.cuh"

constexpr int THREADS = 256, V = 4;

// What happens to one image.
struct Choice {
  i64 image;      // -1: there is none
  int top, left;  // output pixel (0, 0) shows input pixel (top, left), which may lie outside: black
  bool mirrored;
  int hole_row, hole_column;
};

// Maps a random word to an integer 0 <= k < limit.
INLINE int below(unsigned word, int limit) { return static_cast<int>(__umulhi(word, static_cast<unsigned>(limit))); }

struct Batch {
  const unsigned char *images;
  const i64 *index, *key;
  const float *mean, *std;
  float *y;
  i64 count;
  int height, width, channels;
  unsigned long long seed;
  unsigned stream;
  unsigned long long first_block;
};

INLINE void augment(const Batch &batch, int crop, int flip, int cutout) {
  const auto [images, index, key, mean, std, y, count, height, width, channels, seed, stream, first_block] = batch;
  DYNAMIC_SHARED(float, scale);  // (3, C): scale, shift, and the mean colour as the cutout has it
  float *shift = scale + channels, *painted = shift + channels;
  __shared__ Choice shared_choice;
  for (int c = threadIdx.x; c < channels; c += THREADS) {  // in double, as on the host
    const bool divides = std[c] > 0.0f;  // else all is NaN: the host cannot look without a copy
    scale[c] = divides ? static_cast<float>(1 / (255 * static_cast<double>(std[c]))) : __int_as_float(0x7fc00000);
    shift[c] = static_cast<float>(static_cast<double>(mean[c]) / static_cast<double>(std[c]));
    painted[c] = __fsub_rn(__fmul_rn(rintf(__fmul_rn(255.0f, mean[c])), scale[c]), shift[c]);
  }
  if (threadIdx.x == 0) {
    const i64 image = index[blockIdx.x];
    const uint4 words = philox(seed, stream, first_block + (key ? key[blockIdx.x] : image));
    shared_choice = {0 <= image && image < count ? image : -1, below(words.x, 2 * crop + 1) - crop,
                     below(words.y, 2 * crop + 1) - crop, flip && (words.x & 1),
                     below(words.z, height) - cutout / 2, below(words.w, width) - cutout / 2};
  }
  __syncthreads();
  const Choice choice = shared_choice;
  const int row_elements = width * channels, elements = height * row_elements;
  const unsigned char *x = images + choice.image * elements;
  float *out = y + static_cast<i64>(blockIdx.x) * elements;

  for (i64 begin = (static_cast<i64>(blockIdx.y) * THREADS + threadIdx.x) * V; begin < elements;
       begin += static_cast<i64>(gridDim.y) * THREADS * V) {
    const int i = static_cast<int>(begin);
    int row = i / row_elements, column = i % row_elements / channels, c = i % channels;
    float values[V];
    UNROLL for (int l = 0; l < V; l++) {
      const int shown = choice.mirrored ? width - 1 - column : column;
      const int from_row = row + choice.top, from_column = shown + choice.left;
      const bool hole = choice.hole_row <= row && row < choice.hole_row + cutout && choice.hole_column <= column &&
                        column < choice.hole_column + cutout;
      const bool inside = 0 <= from_row && from_row < height && 0 <= from_column && from_column < width;
      if (choice.image < 0)
        values[l] = __int_as_float(0x7fc00000);  // NaN
      else if (hole)
        values[l] = painted[c];
      else
        values[l] = __fsub_rn(
            __fmul_rn(inside ? x[(from_row * width + from_column) * channels + c] : 0.0f, scale[c]), shift[c]);
      if (++c == channels) {
        c = 0;
        if (++column == width) {
          column = 0;
          row++;
        }
      }
    }
    if (elements % V == 0)
      *reinterpret_cast<float4 *>(out + i) = {values[0], values[1], values[2], values[3]};
    else
      UNROLL for (int l = 0; l < V; l++)
        if (i + l < elements) out[i + l] = values[l];
  }
}

ALPHA_ENTRY(augment_images, (THREADS), (const Batch batch, int crop, int flip, int cutout),
            augment(batch, crop, flip, cutout))
