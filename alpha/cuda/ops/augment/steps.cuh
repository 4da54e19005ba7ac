// What:     the steps of ops.transform_images on one image, for both compilers: alpha/cpu/kernels/augment/images.cpp and
//           transform.cu include this file. alpha/cpu/augment/steps.py says the same in NumPy.
// Source:   operations as torchvision.transforms.functional has them; arXiv 1909.13719 for what policies choose from
// Layout:   an image (H, W, C), uint8; a row of WIDTH ints for each step: its code, then what its function reads.
// Bits:     all arithmetic is of integers, so that every device has the same: fractions have 16 bits, where a name says
//           so. Quotients and shifts round down, of negative numbers too, where nothing else is written.
// Threads:  of a Team: those of a block on a GPU, one on the CPU. team.pixels(size, f) calls f(line, column, pixel) for the
//           pixels of a thread. Between two steps, which read and write different images, all wait.
#pragma once

namespace steps {

using u8 = unsigned char;
using u16 = unsigned short;
using i64 = long long;

constexpr int WIDTH = 16, LEVELS = 256;
constexpr i64 ONE = 65536;  // of 16 bits of fraction

enum Code {
  KEEP, MOVE, BRIGHTNESS, CONTRAST, SATURATION, HUE, GREY, POSTERIZE, SOLARIZE, INVERT, EQUALIZE, AUTOCONTRAST, SHARPNESS,
  BLUR, ERASE
};
enum Fill { MEAN = -1, NOISE = -2 };  // in place of a value from 0 to 255
enum { BILINEAR = 1, CLAMPED = 2 };   // flags of MOVE

// What threads share: how often each level occurs, and what becomes of it.
struct Shared {
  int counts[LEVELS];
  u8 levels[LEVELS];
};

struct Size {
  int height, width, channels;
};

STEP int within(i64 value, i64 low, i64 high) {
  return static_cast<int>(value < low ? low : value > high ? high : value);
}
STEP u8 byte(i64 value) { return static_cast<u8>(within(value, 0, LEVELS - 1)); }
STEP int grey_of(const u8* p) { return (19595 * p[0] + 38470 * p[1] + 7471 * p[2] + 32768) >> 16; }

// One of 256 values for each word and place (the mixer of MurmurHash3).
STEP u8 noise(unsigned word, unsigned place) {
  unsigned h = word ^ (place * 0x9E3779B9u);
  h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
  h = (h ^ (h >> 13)) * 0xC2B2AE35u;
  return static_cast<u8>((h ^ (h >> 16)) >> 24);
}
STEP u8 filled(int fill, const u8* colour, int c) { return fill == MEAN ? colour[c] : static_cast<u8>(fill); }

// ---- pixels change their places: y[row, column] = x at (d * column + e * row + f, a * column + b * row + c)

// The row: a, b, c, d, e, f with 16 bits of fraction, flags, fill; the box that is seen: left, top, right, bottom.
template <class Team> STEP void move(Team team, Size size, const int* row, const u8* colour, const u8* x, u8* y) {
  const int flags = row[7], fill = row[8], left = row[9], top = row[10], right = row[11], bottom = row[12];
  const int channels = size.channels;
  team.pixels(size, [&](i64 line, i64 column, int i) INLINED {
    i64 across = row[1] * column + row[2] * line + row[3], down = row[4] * column + row[5] * line + row[6];
    if (flags & CLAMPED) {
      across = within(across, left * ONE, (right - 1) * ONE);
      down = within(down, top * ONE, (bottom - 1) * ONE);
    }
    if (!(flags & BILINEAR)) across += ONE / 2, down += ONE / 2;
    const i64 j = across >> 16, k = down >> 16;
    const unsigned u = static_cast<unsigned>((across & (ONE - 1)) >> 4), v = static_cast<unsigned>((down & (ONE - 1)) >> 4);
    const bool sees_left = left <= j && j < right, sees_top = top <= k && k < bottom;
    const bool sees_right = left <= j + 1 && j + 1 < right, sees_bottom = top <= k + 1 && k + 1 < bottom;
    const u8* p = x + (k * size.width + j) * channels;
    for (int c = 0; c < channels; c++, p++) {
      const u8 outside = filled(fill, colour, c);
      const unsigned a = sees_top && sees_left ? *p : outside;
      if (!(flags & BILINEAR)) {
        y[i * channels + c] = static_cast<u8>(a);
        continue;
      }
      // The second of each pair counts for nothing where its share is 0, as at a clamped end.
      const unsigned b = sees_top && sees_right ? p[channels] : outside;
      const unsigned d = sees_bottom && sees_left ? p[size.width * channels] : outside;
      const unsigned e = sees_bottom && sees_right ? p[(size.width + 1) * channels] : outside;
      const unsigned upper = a * (4096 - u) + b * u, lower = d * (4096 - u) + e * u;
      y[i * channels + c] = static_cast<u8>((upper * (4096 - v) + lower * v + (1u << 23)) >> 24);
    }
  });
}

// ---- each level becomes another one, the same in the whole image or in a channel of it

// How often each level occurs: of one channel, or, with c = -1, of the grey of three.
template <class Team> STEP void count(Team team, Size size, const u8* x, int c, Shared& shared) {
  for (int k = team.first(); k < LEVELS; k += team.count()) shared.counts[k] = 0;
  team.sync();
  for (int i = team.first(); i < size.height * size.width; i += team.count()) {
    const u8* p = x + static_cast<i64>(i) * size.channels;
    team.add(shared.counts + (c < 0 ? grey_of(p) : p[c]));
  }
  team.sync();
}

// The mean with 16 bits of fraction.
STEP i64 mean_of(const Shared& shared, int pixels) {
  i64 sum = 0;
  for (int k = 0; k < LEVELS; k++) sum += static_cast<i64>(shared.counts[k]) * k;
  return sum * ONE / pixels;
}

STEP void equalize(const Shared& shared, int pixels, u8* levels) {
  int last = LEVELS - 1;
  while (last && !shared.counts[last]) last--;
  const int share = (pixels - shared.counts[last]) / (LEVELS - 1);
  int sum = share / 2;
  for (int k = 0; k < LEVELS; sum += shared.counts[k++]) levels[k] = share ? byte(sum / share) : static_cast<u8>(k);
}

STEP void stretch(const Shared& shared, u8* levels) {
  int low = 0, high = LEVELS - 1;
  while (low < LEVELS - 1 && !shared.counts[low]) low++;
  while (high && !shared.counts[high]) high--;
  for (int k = 0; k < LEVELS; k++)
    levels[k] = high > low ? byte(k < low ? 0 : (k - low) * (LEVELS - 1) / (high - low)) : static_cast<u8>(k);
}

STEP u8 level(int code, int value, i64 mean, int k) {
  switch (code) {
    case BRIGHTNESS: return byte((static_cast<i64>(value) * k) >> 16);
    case CONTRAST: return byte((static_cast<i64>(value) * k * ONE + (ONE - value) * mean) >> 32);
    case POSTERIZE: return static_cast<u8>(k & value);
    case SOLARIZE: return static_cast<u8>(k >= value ? LEVELS - 1 - k : k);
    default: return static_cast<u8>(LEVELS - 1 - k);  // INVERT
  }
}

// The row: factor with 16 bits of fraction, bits that stay, or threshold.
template <class Team> STEP void relevel(Team team, Size size, const int* row, const u8* x, u8* y, Shared& shared) {
  const int code = row[0], pixels = size.height * size.width;
  const bool each = code == EQUALIZE || code == AUTOCONTRAST;
  for (int c = 0; c < (each ? size.channels : 1); c++) {
    if (each || code == CONTRAST) count(team, size, x, each || size.channels != 3 ? c : -1, shared);
    if (each && team.first() == 0)
      code == EQUALIZE ? equalize(shared, pixels, shared.levels) : stretch(shared, shared.levels);
    if (!each) {
      const i64 mean = code == CONTRAST ? mean_of(shared, pixels) : 0;
      for (int k = team.first(); k < LEVELS; k += team.count()) shared.levels[k] = level(code, row[1], mean, k);
    }
    team.sync();
    const int from = each ? c : 0, by = each ? size.channels : 1;
    for (int i = from + team.first() * by; i < pixels * size.channels; i += team.count() * by)
      y[i] = shared.levels[x[i]];
    team.sync();
  }
}

// ---- the colours of a pixel; of one channel nothing changes

// Turns the hue by a share of the circle, from -ONE to ONE, with 16 bits of fraction, as HSV has it.
STEP void turn(const u8* p, int by, u8* q) {
  const int r = p[0], g = p[1], b = p[2];
  const int high = r > g ? (r > b ? r : b) : (g > b ? g : b), low = r < g ? (r < b ? r : b) : (g < b ? g : b);
  const i64 chroma = high - low;
  if (!chroma) {
    q[0] = q[1] = q[2] = static_cast<u8>(high);
    return;
  }
  // Sixths of the circle, of which the first begins at red, with 24 bits of fraction; a circle more keeps it positive.
  constexpr i64 SIXTH = ONE * 256, CIRCLE = 6 * SIXTH;
  const i64 base = high == r ? 6 : high == g ? 8 : 10, slope = high == r ? g - b : high == g ? b - r : r - g;
  const i64 hue = ((base * chroma + slope) * SIXTH / chroma + by * (CIRCLE / ONE) + CIRCLE) % CIRCLE;
  const i64 sixth = hue / SIXTH, rest = hue % SIXTH, half = SIXTH / 2;
  const u8 most = static_cast<u8>(high), least = static_cast<u8>(low);
  const u8 falls = static_cast<u8>(high - ((chroma * rest + half) >> 24));
  const u8 rises = static_cast<u8>(low + ((chroma * rest + half) >> 24));
  q[0] = sixth == 0 || sixth == 5 ? most : sixth == 1 ? falls : sixth == 4 ? rises : least;
  q[1] = sixth == 1 || sixth == 2 ? most : sixth == 3 ? falls : sixth == 0 ? rises : least;
  q[2] = sixth == 3 || sixth == 4 ? most : sixth == 5 ? falls : sixth == 2 ? rises : least;
}

// The row: factor, or share of the circle, with 16 bits of fraction.
template <class Team> STEP void recolour(Team team, Size size, const int* row, const u8* x, u8* y) {
  const i64 value = row[1];
  for (int i = team.first(); i < size.height * size.width; i += team.count()) {
    const u8* p = x + static_cast<i64>(i) * size.channels;
    u8* q = y + static_cast<i64>(i) * size.channels;
    if (size.channels != 3) {
      for (int c = 0; c < size.channels; c++) q[c] = p[c];
    } else if (row[0] == HUE) {
      turn(p, row[1], q);
    } else {
      const int grey = grey_of(p);
      for (int c = 0; c < 3; c++)
        q[c] = row[0] == GREY ? static_cast<u8>(grey) : byte((value * p[c] + (ONE - value) * grey) >> 16);
    }
  }
}

// ---- pixels around each

// The row: factor with 16 bits of fraction. Pixels at the border stay.
template <class Team> STEP void sharpen(Team team, Size size, const int* row, const u8* x, u8* y) {
  const i64 factor = row[1];
  const int by = size.channels, next = size.width * by;
  team.pixels(size, [&](int line, int column, int pixel) INLINED {
    const bool border = line == 0 || line == size.height - 1 || column == 0 || column == size.width - 1;
    for (int i = pixel * by; i < pixel * by + by; i++) {
      if (border) {
        y[i] = x[i];
        continue;
      }
      int sum = 4 * x[i];
      for (int up = -next; up <= next; up += next) sum += x[i + up - by] + x[i + up] + x[i + up + by];
      const int smooth = (2 * sum + 13) / 26;  // of 13, to the nearest
      y[i] = byte((factor * x[i] + (ONE - factor) * smooth) >> 16);
    }
  });
}

// A place outside of an axis is that inside which it mirrors; the axis may be shorter than the way.
STEP int mirrored(int i, int n) {
  if (0 <= i && i < n) return i;
  if (n == 1) return 0;
  const int period = 2 * (n - 1);
  i = i < 0 ? -i % period : i % period;
  return i < n ? i : period - i;
}

// The row: radius; then the weights of the pixel and of those 1, 2, ... away, with 16 bits of fraction, ONE in all.
template <class Team> STEP void blur(Team team, Size size, const int* row, const u8* x, u16* wide, u8* y) {
  const int radius = row[1], by = size.channels, next = size.width * by;
  const int* weights = row + 2;
  team.pixels(size, [&](int line, int column, int pixel) INLINED {
    const u8* p = x + line * next;
    for (int c = 0; c < by; c++) {
      unsigned sum = static_cast<unsigned>(weights[0]) * p[column * by + c];
      for (int k = 1; k <= radius; k++)
        sum += static_cast<unsigned>(weights[k]) *
               (p[mirrored(column - k, size.width) * by + c] + p[mirrored(column + k, size.width) * by + c]);
      wide[pixel * by + c] = static_cast<u16>((sum + 128) >> 8);  // 8 bits of fraction
    }
  });
  team.sync();
  team.pixels(size, [&](int line, int column, int pixel) INLINED {
    for (int at = column * by; at < column * by + by; at++) {
      i64 sum = static_cast<i64>(weights[0]) * wide[line * next + at];
      for (int k = 1; k <= radius; k++)
        sum += static_cast<i64>(weights[k]) * (wide[mirrored(line - k, size.height) * next + at] +
                                               wide[mirrored(line + k, size.height) * next + at]);
      y[line * next + at] = byte((sum + (1 << 23)) >> 24);
    }
  });
}

// The row: top, left, bottom, right, fill, word of the noise.
template <class Team> STEP void erase(Team team, Size size, const int* row, const u8* colour, const u8* x, u8* y) {
  team.pixels(size, [&](int line, int column, int pixel) INLINED {
    const bool erased = row[1] <= line && line < row[3] && row[2] <= column && column < row[4];
    for (int c = 0, i = pixel * size.channels; c < size.channels; c++, i++)
      y[i] = !erased ? x[i] : row[5] == NOISE ? noise(static_cast<unsigned>(row[6]), i) : filled(row[5], colour, c);
  });
}

template <class Team>
STEP void run(Team team, Size size, const int* row, const u8* colour, const u8* x, u8* y, u16* wide, Shared& shared) {
  switch (row[0]) {
    case MOVE: return move(team, size, row, colour, x, y);
    case SATURATION: case HUE: case GREY: return recolour(team, size, row, x, y);
    case SHARPNESS: return sharpen(team, size, row, x, y);
    case BLUR: return blur(team, size, row, x, wide, y);
    case ERASE: return erase(team, size, row, colour, x, y);
    default: return relevel(team, size, row, x, y, shared);
  }
}

// Does all steps of an image but those of KEEP.
// Args: rows (count, WIDTH); y and spare (H, W, C), which hold images in turn, the last one y; wide (H, W, C).
template <class Team>
STEP void run_all(Team team, Size size, const int* rows, int count, const u8* colour, const u8* x, u8* y, u8* spare,
                  u16* wide, Shared& shared) {
  int left = 0;
  for (int s = 0; s < count; s++) left += rows[s * WIDTH] != KEEP;
  if (!left)
    for (int i = team.first(); i < size.height * size.width * size.channels; i += team.count()) y[i] = x[i];
  const u8* from = x;
  for (int s = 0; s < count; s++) {
    const int* row = rows + s * WIDTH;
    if (row[0] == KEEP) continue;
    u8* to = --left % 2 ? spare : y;
    run(team, size, row, colour, from, to, wide, shared);
    team.sync();
    from = to;
  }
}

}  // namespace steps
