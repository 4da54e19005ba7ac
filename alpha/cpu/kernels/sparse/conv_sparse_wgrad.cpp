// What:    dw[oc,fh,fw,ic] = sum_{n,oh,ow} g[n,oh,ow,oc] * x[n,ih,iw,ic], from the elements of x that are not zero.
// Source:  as conv_sparse.cpp, turned: a list belongs to a channel in and a column of taps, and names pixels of g.
// Layout:  NHWC, OHWI; groups 1. Index of an entry: row of x in the band * OW + column of g.
// Zeros:   those of padding and stride, by the ranges of each tap, and those of x; -0 is a zero, NaN is not.
// Tile:    one channel in x up to BLOCK_VECTORS vectors of channels out. The rows of g that a few rows of x meet stay in
//          cache while all channels in of a job pass. A job is (block of channels out, column of taps, channels in) and
//          sums in the order of pixels, strip by strip.
#include <array>
#include <utility>
#include <vector>

#include "../conv.hpp"
#include "lists.hpp"

namespace {

constexpr int BLOCK_VECTORS = 8, BLOCK = BLOCK_VECTORS * LANES;
constexpr int64_t CHUNK = 32;                // channels in of a job
constexpr int64_t STRIP_BYTES = 24 * 1024;   // rows of g that a strip of rows of x meets
constexpr int64_t LIST_BYTES = 4 << 20;
constexpr int64_t ALONE_BELOW = 400000;

// Rows of x, of all images, are taken in bands, whose lists are made at a time, and bands in strips.
struct Bands {
  int64_t rows, band, strip;

  explicit Bands(const Geometry& g) : rows(g.n * g.in_h) {
    const int64_t each = 8 * g.f_w * g.in_c * g.out_w;
    band = std::min(rows, std::max<int64_t>(1, LIST_BYTES / each));
    strip = std::max<int64_t>(1, STRIP_BYTES / static_cast<int64_t>(g.out_w * BLOCK * sizeof(float)));
  }
};

// Per column of taps and channel in: entries, and where each row of the band begins.
struct Lists {
  int32_t* memory;
  int64_t in_c, most, band;

  Lists(const Geometry& g, const Bands& bands, float* work)
      : memory(reinterpret_cast<int32_t*>(work)), in_c(g.in_c), most(bands.band * g.out_w + LANES), band(bands.band) {}

  int64_t slot() const { return 2 * most + band + 1; }
  int32_t* index(int64_t b, int64_t channel) const { return memory + (b * in_c + channel) * slot(); }
  float* value(int64_t b, int64_t channel) const { return reinterpret_cast<float*>(index(b, channel) + most); }
  int32_t* starts(int64_t b, int64_t channel) const { return index(b, channel) + 2 * most; }

  // Makes the lists of up to LANES channels and one column of taps from `rows` rows of x.
  void fill(const Geometry& g, const float* x, int64_t rows, int64_t b, int64_t channel) const {
    const TapRange range = g.col_ranges[b];
    const int64_t channels = std::min<int64_t>(LANES, in_c - channel), step = g.stride_w * g.in_pitch;
    int64_t filled[LANES] = {};
    float tile[LANES * LANES] = {};
    for (int64_t row = 0; row < rows; row++) {
      for (int64_t i = 0; i < channels; i++) starts(b, channel + i)[row] = static_cast<int32_t>(filled[i]);
      const float* first = x + (row * g.in_w + range.input) * g.in_pitch + channel;
      for (int64_t j = 0; j < range.count; j += LANES) {
        const int64_t pixels = std::min<int64_t>(LANES, range.count - j);
        if (channels == LANES) {
          transpose(first + j * step, step, pixels, tile, LANES);
        } else {
          for (int64_t i = 0; i < channels; i++)
            for (int64_t k = 0; k < LANES; k++) tile[i * LANES + k] = k < pixels ? first[(j + k) * step + i] : 0;
        }
        const int32_t at = static_cast<int32_t>(row * g.out_w + range.first + j);
        for (int64_t i = 0; i < channels; i++)
          filled[i] += append_nonzeros(tile + i * LANES, LANES, at, index(b, channel + i) + filled[i],
                                       value(b, channel + i) + filled[i]);
      }
    }
    for (int64_t i = 0; i < channels; i++) starts(b, channel + i)[rows] = static_cast<int32_t>(filled[i]);
  }
};

// Rows [first, last) of a band, whose entries name the pixel of g that is `shift` before.
struct Segment {
  int64_t first, last, shift;
};

// The rows [first, last) of the band from `base` on that meet the row of taps a.
void list_segments(const Geometry& g, int64_t base, int64_t first, int64_t last, int64_t a,
                   std::vector<Segment>& segments) {
  const TapRange range = g.row_ranges[a];
  segments.clear();
  for (int64_t n = (base + first) / g.in_h; n * g.in_h < base + last; n++) {
    const int64_t input = n * g.in_h + range.input - base, output = n * g.out_h + range.first;
    const int64_t together = g.stride_h == 1 ? range.count : 1;
    for (int64_t k = 0; k < range.count; k += together) {
      const int64_t row = input + k * g.stride_h;
      const int64_t from = std::max(first, row), to = std::min(last, row + together);
      if (from < to) segments.push_back({from, to, (output + k - row) * g.out_w});
    }
  }
}

struct Job {
  const Geometry& g;
  const Bands& bands;
  const Lists& lists;
  const float* dy;
  int64_t base, rows;  // of the band
};

// Adds what the band brings to sums[fh][channel][V * LANES], for channels [channel, channel + count) and channels out
// from k on, of which the last vector has `left`.
template <int V>
__attribute__((noinline)) void run_job(const Job& job, int64_t b, int64_t channel, int64_t count, int64_t k,
                                       int64_t left, float* sums) {
  const Geometry& g = job.g;
  std::vector<Segment> segments;
  for (int64_t first = 0; first < job.rows; first += job.bands.strip)
    for (int64_t a = 0; a < g.f_h; a++) {
      list_segments(g, job.base, first, std::min(job.rows, first + job.bands.strip), a, segments);
      for (int64_t i = 0; i < count; i++) {
        const int32_t *index = job.lists.index(b, channel + i), *starts = job.lists.starts(b, channel + i);
        const float* value = job.lists.value(b, channel + i);
        float* sum = sums + (a * count + i) * V * LANES;
        vfloat acc[V] = {};
        for (const Segment& s : segments)
          for (int64_t e = starts[s.first]; e < starts[s.last]; e++) {
            const float* y = job.dy + (index[e] + s.shift) * g.out_pitch + k;
            const vfloat x = broadcast(value[e]);
            UNROLL for (int v = 0; v < V - 1; v++) acc[v] += x * load(y + v * LANES);
            acc[V - 1] += x * (left == LANES ? load(y + (V - 1) * LANES) : load_part(y + (V - 1) * LANES, left));
          }
        UNROLL for (int v = 0; v < V; v++) store(sum + v * LANES, load(sum + v * LANES) + acc[v]);
      }
    }
}

using RunJob = void (*)(const Job&, int64_t, int64_t, int64_t, int64_t, int64_t, float*);

template <int... V>
constexpr std::array<RunJob, BLOCK_VECTORS> jobs_of(std::integer_sequence<int, V...>) {
  return {run_job<V + 1>...};
}

// RUN_JOB[vectors - 1]
constexpr auto RUN_JOB = jobs_of(std::make_integer_sequence<int, BLOCK_VECTORS>());

// Of a job: columns of taps, channels in and out, and where its sums lie.
struct Part {
  int64_t b, channel, count, k, valid, width;
  float* sums;

  Part(const Geometry& g, int64_t job, float* all) {
    const int64_t chunks = ceil_div(g.in_c, CHUNK);
    channel = job % chunks * CHUNK;
    count = std::min<int64_t>(CHUNK, g.in_c - channel);
    b = job / chunks % g.f_w;
    k = job / chunks / g.f_w * BLOCK;
    valid = std::min<int64_t>(BLOCK, g.out_c - k);
    width = round_up(valid, LANES);
    sums = all + g.f_h * (g.f_w * g.in_c * k + (b * g.in_c + channel) * width);
  }
};

// dw from the sums of a job, [fh][channel][width].
void write_filters(const Geometry& g, const Part& p, float* dw) {
  float tile[LANES * LANES];
  for (int64_t a = 0; a < g.f_h; a++)
    for (int64_t i = 0; i < p.count; i += LANES)
      for (int64_t o = 0; o < p.valid; o += LANES) {
        const int64_t rows = std::min<int64_t>(LANES, p.count - i);
        transpose(p.sums + (a * p.count + i) * p.width + o, p.width, rows, tile, LANES);
        for (int64_t j = 0; j < std::min<int64_t>(LANES, p.valid - o); j++)
          store_part(dw + (((p.k + o + j) * g.f_h + a) * g.f_w + p.b) * g.in_c + p.channel + i, load(tile + j * LANES),
                     rows);
      }
}

int64_t sum_floats(const Geometry& g) { return g.taps() * g.in_c * round_up(g.out_c, LANES); }

}  // namespace

// Floats of scratch memory of sparse_wgrad.
EXPORT int64_t sparse_wgrad_floats(const int64_t* table) {
  const Geometry g(table + table[1]);
  return sum_floats(g) + g.f_w * g.in_c * Lists(g, Bands(g), nullptr).slot();
}

// table: a forward table of one level.
EXPORT void sparse_wgrad(const int64_t* table, const float* x, const float* dy, float* dw, float* work) {
  const Geometry g(table + table[1]);
  const Bands bands(g);
  const Lists lists(g, bands, work + sum_floats(g));
  const int64_t groups = ceil_div(g.in_c, LANES);
  const int64_t jobs = ceil_div(g.in_c, CHUNK) * g.f_w * ceil_div(g.out_c, BLOCK);
  memset(work, 0, sum_floats(g) * sizeof(float));
#pragma omp parallel num_threads(team(g.multiply_adds(), ALONE_BELOW))
  {
    for (int64_t base = 0; base < bands.rows; base += bands.band) {
      const Job job = {g, bands, lists, dy, base, std::min(bands.band, bands.rows - base)};
#pragma omp for schedule(static)
      for (int64_t k = 0; k < groups * g.f_w; k++)
        lists.fill(g, x + base * g.in_w * g.in_pitch, job.rows, k % g.f_w, k / g.f_w * LANES);
#pragma omp for schedule(dynamic, 1)
      for (int64_t k = 0; k < jobs; k++) {
        const Part p(g, k, work);
        RUN_JOB[p.width / LANES - 1](job, p.b, p.channel, p.count, p.k, p.valid - p.width + LANES, p.sums);
      }
    }
#pragma omp for schedule(static)
    for (int64_t k = 0; k < jobs; k++) write_filters(g, Part(g, k, work), dw);
  }
}
