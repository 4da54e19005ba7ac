// What:    the ops of alpha/ops/augment.py: transform_images (steps.cuh, which the GPU's kernel includes too), mix_images,
//          and the crop, flip, cutout and normalisation of augment_images
// Layout:  images (M, H, W, C) uint8; y (B, H, W, C): uint8 of transform_images, else float32.
// Bits:    those of NumPy's versions: nothing is contracted, and steps are of integers.
// Threads: images of the batch.
#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif
#include <vector>

#include "../vec.hpp"
#define STEP static inline
#include "../../../cuda/ops/augment/steps.cuh"

namespace {

struct Alone {
  int first() const { return 0; }
  int count() const { return 1; }
  void sync() const {}
  void add(int* p) const { ++*p; }
  template <class Size, class F> void pixels(const Size& size, F f) const {
    for (int line = 0, i = 0; line < size.height; line++)
      for (int column = 0; column < size.width; column++, i++) f(line, column, i);
  }
};

constexpr int64_t ALONE_BELOW = 16384;

}  // namespace

EXPORT void transform_images(const uint8_t* images, const int64_t* index, const int32_t* rows, const uint8_t* colour,
                             uint8_t* y, int64_t batch, int64_t steps, int64_t height, int64_t width, int64_t channels) {
  const int64_t elements = height * width * channels;
  const steps::Size size = {static_cast<int>(height), static_cast<int>(width), static_cast<int>(channels)};
#pragma omp parallel num_threads(team(batch * elements * steps, ALONE_BELOW))
  {
    std::vector<uint8_t> spare(elements);
    std::vector<uint16_t> wide(elements);
    steps::Shared shared;
#pragma omp for schedule(dynamic, 1)
    for (int64_t b = 0; b < batch; b++)
      steps::run_all(Alone(), size, rows + b * steps * steps::WIDTH, static_cast<int>(steps), colour,
                     images + index[b] * elements, y + b * elements, spare.data(), wide.data(), shared);
  }
}

EXPORT void mix_images(const float* x, const float* table, float* y, int64_t batch, int64_t height, int64_t width,
                       int64_t channels) {
  const int64_t line = width * channels, elements = height * line;
#pragma omp parallel for schedule(static) num_threads(team(batch * elements, ALONE_BELOW))
  for (int64_t b = 0; b < batch; b++) {
    const float *row = table + b * 6, *before = x + b * elements, *own = before + elements;
    float* out = y + b * elements;
    for (int64_t r = 0; r < height; r++) {
      const bool crossed = row[2] <= r && r < row[4];
      const int64_t left = crossed ? static_cast<int64_t>(row[3]) * channels : line;
      const int64_t right = crossed ? static_cast<int64_t>(row[5]) * channels : line;
      for (int part = 0; part < 3; part++) {
        const int64_t first = part == 0 ? 0 : part == 1 ? left : right, last = part == 0 ? left : part == 1 ? right : line;
        const float share = row[part == 1], rest = 1 - share;
        for (int64_t i = r * line + first; i < r * line + last; i++) {
          const float mine = share * own[i], other = rest * before[i];
          out[i] = mine + other;
        }
      }
    }
  }
}

EXPORT void augment_images(const uint8_t* images, const int64_t* index, const uint32_t* words, const float* scale,
                           const float* shift, const uint8_t* colour, float* y, int64_t batch, int64_t height,
                           int64_t width, int64_t channels, int64_t crop, int flip, int64_t cutout) {
  const int64_t line = width * channels;
#pragma omp parallel for schedule(static) num_threads(team(batch * height * line, ALONE_BELOW))
  for (int64_t b = 0; b < batch; b++) {
    const uint32_t* word = words ? words + 4 * b : nullptr;
    const auto below = [&](int k, int64_t limit) { return static_cast<int64_t>(word[k] * uint64_t(limit) >> 32); };
    const int64_t top = word ? below(0, 2 * crop + 1) - crop : 0, left = word ? below(1, 2 * crop + 1) - crop : 0;
    const bool mirrored = word && flip && (word[0] & 1);
    const int64_t hole_top = word && cutout ? below(2, height) - cutout / 2 : height;
    const int64_t hole_left = word && cutout ? below(3, width) - cutout / 2 : width;
    const uint8_t* x = images + index[b] * height * line;
    std::vector<uint8_t> row(line);
    for (int64_t r = 0; r < height; r++) {
      const int64_t from = r + top;
      const uint8_t* p = x + from * line;
      const bool inside = 0 <= from && from < height;
      if (inside && !left && !mirrored) {
        std::copy(p, p + line, row.data());
      } else {
        for (int64_t j = 0; j < width; j++) {
          const int64_t shown = (mirrored ? width - 1 - j : j) + left;
          const bool seen = inside && 0 <= shown && shown < width;
          for (int64_t c = 0; c < channels; c++) row[j * channels + c] = seen ? p[shown * channels + c] : 0;
        }
      }
      if (hole_top <= r && r < hole_top + cutout)
        for (int64_t j = std::max<int64_t>(hole_left, 0); j < std::min(hole_left + cutout, width); j++)
          for (int64_t c = 0; c < channels; c++) row[j * channels + c] = colour[c];
      float* out = y + (b * height + r) * line;
      for (int64_t i = 0; i < line; i++) {
        const float scaled = static_cast<float>(row[i]) * scale[i];
        out[i] = scaled - shift[i];
      }
    }
  }
}
