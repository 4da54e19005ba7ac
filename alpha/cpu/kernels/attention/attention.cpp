// What:    attention of heads, and its gradient: S = scale * Q K^T + mask,  P = softmax(S),  Y = drop(P) V;
//          lse = log(sum_j e^S[i][j]),  delta[i] = sum_j G[i][j] Y[i][j],  dP = drop(G V^T),
//          dS = P * (dP - delta),  dV = drop(P)^T G,  dK = scale * dS^T Q,  dQ = scale * dS K
// Source:  Dao et al., arXiv 2205.14135, algorithms 1 and 4.
// Layout:  a row of a head is contiguous; samples, heads and rows lie any number of floats apart: see Place.
// Zeros:   causal: blocks of keys behind the last row of a block are left out, and columns behind it.
// Tile:    KEYS keys (fewer of long rows) by ROWS queries: only so many scores are there at a time. Keys and values are
//          turned once per block of keys, for the tiles of product.cpp.
// Sums:    blocks of keys, then blocks of rows, are added in order: they depend on shapes alone.
// Masks:   a query that sees no key has Y = 0, lse = infinity and no gradient.
// Threads: heads, and forward parts of the rows; backward parts of the keys where there are few heads, whose dQ are added
//          up afterwards.
#include <cmath>
#include <vector>

#include "../functions.hpp"
#include "../philox.hpp"
#include "../winograd/product.hpp"

namespace {

constexpr int64_t ROWS = 48, KEYS = 128, LONG = 128;  // LONG: floats of a row, from which on half as many keys go together
constexpr int64_t ALONE_BELOW = 100000;               // multiply-adds
constexpr int64_t BUSY = 16;                          // jobs that a gradient is cut into at least, if it is long enough

struct Place {
  int64_t sample, head, row;  // floats from one to the next
};

struct Shape {  // alpha/cpu/attention/__init__.py writes it
  int64_t samples, heads, rows, keys, width, value_width, causal;
  Place q, k, v, y, mask;
  int64_t mask_column;

  int64_t block() const {
    const int64_t most = std::max(width, value_width) > LONG ? KEYS / 2 : KEYS;
    return round_up(ceil_div(keys, ceil_div(keys, most)), TILE_WIDTH);
  }
  int64_t multiply_adds() const { return samples * heads * rows * keys * (width + value_width); }
};

struct Drop {
  float p, factor;
  uint64_t seed;
  uint32_t stream;
  uint64_t offset;
};

struct Masks {
  const uint8_t* seen;  // or null
  const float* added;   // or null
};

// out[rows][columns] = or += in x panel, of whole vectors of columns. in: [rows][count], or [count][rows] if turned;
// panel: [count][columns] in blocks of TILE_WIDTH columns that lie `apart` floats apart.
void product(const float* in, int64_t ld_in, bool turned, int64_t rows, const float* panel, int64_t ld_panel,
             int64_t apart, int64_t count, int64_t columns, float* out, int64_t ld_out, bool add) {
  for (int64_t c = 0; c < columns; c += TILE_WIDTH, panel += apart) {
    const int vectors = static_cast<int>(std::min<int64_t>(TILE_VECTORS, ceil_div(columns - c, LANES)));
    const int64_t tiles = ceil_div(rows, most_rows(vectors));
    for (int64_t t = 0; t < tiles; t++) {
      const int64_t i = part_start(rows, t, tiles);
      const int count_of = static_cast<int>(part_start(rows, t + 1, tiles) - i);
      product_of(vectors, count_of, turned)(in + (turned ? i : i * ld_in), ld_in, panel, ld_panel, count,
                                            out + i * ld_out + c, ld_out, add);
    }
  }
}

// to[block of TILE_WIDTH rows][column][row in the block], 0 behind the last row
void turn(const float* from, int64_t ld, int64_t rows, int64_t width, float* to) {
  for (int64_t r = 0; r < rows; r += TILE_WIDTH, to += width * TILE_WIDTH)
    for (int64_t v = 0; v < TILE_WIDTH && r + v < round_up(rows, LANES); v += LANES) {
      const float* row = from + (r + v) * ld;
      const int64_t valid = std::min<int64_t>(LANES, rows - r - v);
      int64_t i = 0;
      for (; i + LANES <= width; i += LANES) transpose(row + i, ld, valid, to + i * TILE_WIDTH + v, TILE_WIDTH);
      for (; i < width; i++)
        for (int64_t j = 0; j < LANES; j++) to[i * TILE_WIDTH + v + j] = j < valid ? row[j * ld + i] : 0;
    }
}

// Rows of whole vectors: those given if they are, else copies in `to` with zeros behind them. ld becomes theirs.
const float* whole_rows(const float* from, int64_t& ld, int64_t rows, int64_t width, float* to) {
  if (width % LANES == 0) return from;
  const int64_t padded = round_up(width, LANES);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < padded; i += LANES) store(to + r * padded + i, load_part(from + r * ld + i, width - i));
  ld = padded;
  return to;
}

INLINE vint lane_numbers() {
  vint lane;
  UNROLL for (int i = 0; i < LANES; i++) lane[i] = i;
  return lane;
}

INLINE float largest_lane(vfloat v) {
  float most = v[0];
  UNROLL for (int i = 1; i < LANES; i++) most = v[i] > most ? v[i] : most;
  return most;
}

// A row of scores of one head against the keys [first, first + count)
struct Row {
  int64_t columns;  // count in whole vectors
  int64_t visible;  // keys before the end of the block and, if causal, up to the row
  const uint8_t* seen;
  const float* added;
  int64_t step;  // from one column of a mask to the next, 0 or 1

  // scores[j] = scale * scores[j] + mask, -infinity of keys that are not seen
  inline INLINED vfloat score(const float* scores, int64_t j, float scale) const {
    const float none = -__builtin_inff();
    vfloat v = load(scores + j) * scale;
    if (seen) v = select(step ? get(seen + j, visible - j) : vint{} - (*seen != 0), v, number(none));
    if (added) v += step ? get(added + j, visible - j) : number(*added);
    const int64_t left = std::max<int64_t>(0, visible - j);
    if (left < LANES) v = select(lane_numbers() < static_cast<int32_t>(left), v, number(none));
    return v;
  }
};

struct Head {
  const Shape& a;
  Masks masks;
  Drop drop;
  float scale;
  int64_t n, h;

  int64_t at(const Place& p) const { return n * p.sample + h * p.head; }
  int64_t statistics() const { return (n * a.heads + h) * a.rows; }

  Row row(int64_t i, int64_t first, int64_t count) const {
    const int64_t from = at(a.mask) + i * a.mask.row + first * a.mask_column;
    return {round_up(count, LANES), a.causal ? std::min(count, i + 1 - first) : count,
            masks.seen ? masks.seen + from : nullptr, masks.added ? masks.added + from : nullptr, a.mask_column};
  }

  // kept[j] = factor, or 0 of a weight that is dropped, of the keys [first, first + count) of a row
  void keep(int64_t i, int64_t first, int64_t count, float* kept) const {
    const uint64_t from = drop.offset + static_cast<uint64_t>((statistics() + i) * a.keys + first);
    const int64_t skipped = from % 4;
    uint32_t bits[NUMBERS];
    for (int64_t j = -skipped; j < count; j += NUMBERS) {
      philox(drop.seed, drop.stream, (from + j) / 4, bits);
      const int64_t begin = std::max<int64_t>(0, j), end = std::min(count, j + NUMBERS);
#pragma omp simd  // a branch would be mispredicted
      for (int64_t c = begin; c < end; c++) kept[c] = uniform_of(bits[c - j]) >= drop.p ? drop.factor : 0;
    }
    for (int64_t c = count; c < round_up(count, LANES); c++) kept[c] = 0;
  }
  bool drops() const { return drop.p > 0; }
  int64_t seen_by(int64_t last, int64_t first, int64_t count) const {  // keys of a block that rows before `last` may see
    return a.causal ? std::max<int64_t>(0, std::min(count, last - first)) : count;
  }
};

// ---- forward ----------------------------------------------------------------------------------------------------------

struct Forward : Head {
  const float *q, *k, *v;
  float *y, *lse;

  // One row: weights replace scores; what is there of y shrinks where a larger score is found.
  void weigh(int64_t i, int64_t first, int64_t count, float* scores, float* kept, float* sum_of, float& most, float& total,
             int64_t width) const {
    const Row r = row(i, first, count);
    vfloat largest = number(most);
    for (int64_t j = 0; j < r.columns; j += LANES) {
      const vfloat s = r.score(scores, j, scale);
      largest = select(s > largest, s, largest);
      store(scores + j, s);
    }
    const float before = most;
    most = largest_lane(largest);
    const float base = most == -__builtin_inff() ? 0 : most;
    vfloat sum = {};
    for (int64_t j = 0; j < r.columns; j += LANES) {
      const vfloat p = exp(load(scores + j) - base);
      sum += p;
      store(scores + j, p);
    }
    if (drops()) {
      keep(i, first, count, kept);
      for (int64_t j = 0; j < r.columns; j += LANES) store(scores + j, load(scores + j) * load(kept + j));
    }
    if (most != before && first) {  // the first block finds no sums
      const vfloat less = exp(number(before - base));
      total *= less[0];
      for (int64_t c = 0; c < width; c += LANES) store(sum_of + c, load(sum_of + c) * less);
    }
    total += sum_lanes(sum);
  }

  void run(int64_t from, int64_t to) const {
    const int64_t block = a.block(), width = round_up(a.value_width, LANES), count = to - from;
    float* memory = scratch(block * (a.width + width) + ROWS * block + block + count * (width + 2));
    float *keys = memory, *values = keys + block * a.width, *scores = values + block * width, *kept = scores + ROWS * block;
    float *sums = kept + block, *most = sums + count * width, *total = most + count;
    std::fill_n(most, count, -__builtin_inff());
    std::fill_n(total, count, 0.0f);
    std::fill_n(sums, count * width, 0.0f);
    for (int64_t first = 0; first < a.keys; first += block) {
      const int64_t here = seen_by(to, first, std::min(block, a.keys - first));
      if (!here) break;
      int64_t ld = a.v.row;
      turn(k + at(a.k) + first * a.k.row, a.k.row, here, a.width, keys);
      const float* panel = whole_rows(v + at(a.v) + first * a.v.row, ld, here, a.value_width, values);
      const int64_t parts = ceil_div(count, ROWS);
      for (int64_t part = 0; part < parts; part++) {
        const int64_t i = part_start(count, part, parts), end = part_start(count, part + 1, parts);
        const int64_t seen = seen_by(from + end, first, here);
        if (!seen) continue;
        product(q + at(a.q) + (from + i) * a.q.row, a.q.row, false, end - i, keys, TILE_WIDTH, a.width * TILE_WIDTH,
                a.width, round_up(seen, LANES), scores, block, false);
        for (int64_t r = i; r < end; r++)
          weigh(from + r, first, seen, scores + (r - i) * block, kept, sums + r * width, most[r], total[r], width);
        product(scores, block, false, end - i, panel, ld, TILE_WIDTH, seen, width, sums + i * width, width, true);
      }
    }
    for (int64_t r = 0; r < count; r++) {
      const bool none = most[r] == -__builtin_inff() && total[r] == 0;
      const vfloat inverse = number(none ? 0 : 1 / total[r]);
      float* out = y + at(a.y) + (from + r) * a.y.row;
      for (int64_t c = 0; c < a.value_width; c += LANES)
        put(out + c, none ? vfloat{} : load(sums + r * width + c) * inverse, a.value_width - c);
      lse[statistics() + from + r] = none ? __builtin_inff() : most[r] + std::log(total[r]);
    }
  }
};

// ---- gradients --------------------------------------------------------------------------------------------------------

struct Backward : Head {
  const float *g, *q, *k, *v, *y, *lse;
  float *dq, *dk, *dv;

  // One row: scores become weights, of which some are dropped; gradients of weights become those of scores.
  void weigh(int64_t i, int64_t first, int64_t count, float* scores, float* gradients, float* kept, float delta) const {
    const Row r = row(i, first, count);
    const float base = lse[statistics() + i];
    if (drops()) keep(i, first, count, kept);
    for (int64_t j = 0; j < r.columns; j += LANES) {
      const vfloat p = exp(r.score(scores, j, scale) - base), factor = drops() ? load(kept + j) : number(1);
      store(gradients + j, p * (load(gradients + j) * factor - delta) * scale);
      store(scores + j, p * factor);
    }
  }

  void deltas(float* delta) const {
    for (int64_t i = 0; i < a.rows; i++) {
      const float *gs = g + at(a.y) + i * a.y.row, *ys = y + at(a.y) + i * a.y.row;
      vfloat sum = {};
      for (int64_t c = 0; c < a.value_width; c += LANES)
        sum += get(gs + c, a.value_width - c) * get(ys + c, a.value_width - c);
      delta[i] = sum_lanes(sum);
    }
  }

  static void write(const float* from, int64_t ld, int64_t rows, int64_t width, float* to, int64_t to_ld) {
    for (int64_t r = 0; r < rows; r++)
      for (int64_t c = 0; c < width; c += LANES) put(to + r * to_ld + c, load(from + r * ld + c), width - c);
  }

  // Blocks [from, to) of keys; sums: dQ of these, [rows][width in whole vectors]
  void run(int64_t from, int64_t to, float* sums) const {
    const int64_t block = a.block(), e = round_up(a.width, LANES), ev = round_up(a.value_width, LANES);
    float* memory = scratch(block * (a.width + a.value_width + 2 * e + ev) + ROWS * (2 * block + e + ev) + block + a.rows);
    float *keys = memory, *values = keys + block * a.width, *plain = values + block * a.value_width;
    float *dks = plain + block * e, *dvs = dks + block * e, *scores = dvs + block * ev, *gradients = scores + ROWS * block;
    float *queries = gradients + ROWS * block, *gs = queries + ROWS * e, *kept = gs + ROWS * ev, *delta = kept + block;
    deltas(delta);
    std::fill_n(sums, a.rows * e, 0.0f);
    for (int64_t first = from * block; first < std::min(to * block, a.keys); first += block) {
      const int64_t here = std::min(block, a.keys - first), ks = at(a.k) + first * a.k.row, vs = at(a.v) + first * a.v.row;
      int64_t k_ld = a.k.row;
      turn(k + ks, a.k.row, here, a.width, keys);
      turn(v + vs, a.v.row, here, a.value_width, values);
      const float* k_panel = whole_rows(k + ks, k_ld, here, a.width, plain);
      std::fill_n(dks, here * e, 0.0f);
      std::fill_n(dvs, here * ev, 0.0f);
      const int64_t parts = ceil_div(a.rows, ROWS);
      for (int64_t part = 0; part < parts; part++) {
        const int64_t i = part_start(a.rows, part, parts), end = part_start(a.rows, part + 1, parts), n = end - i;
        const int64_t seen = seen_by(end, first, here), columns = round_up(seen, LANES);
        if (!seen) continue;
        const float *q_at = q + at(a.q) + i * a.q.row, *g_at = g + at(a.y) + i * a.y.row;
        product(q_at, a.q.row, false, n, keys, TILE_WIDTH, a.width * TILE_WIDTH, a.width, columns, scores, block, false);
        product(g_at, a.y.row, false, n, values, TILE_WIDTH, a.value_width * TILE_WIDTH, a.value_width, columns, gradients,
                block, false);
        for (int64_t r = i; r < end; r++)
          weigh(r, first, seen, scores + (r - i) * block, gradients + (r - i) * block, kept, delta[r]);
        int64_t q_ld = a.q.row, g_ld = a.y.row;
        const float *q_panel = whole_rows(q_at, q_ld, n, a.width, queries);
        const float *g_panel = whole_rows(g_at, g_ld, n, a.value_width, gs);
        product(scores, block, true, seen, g_panel, g_ld, TILE_WIDTH, n, ev, dvs, ev, true);
        product(gradients, block, true, seen, q_panel, q_ld, TILE_WIDTH, n, e, dks, e, true);
        product(gradients, block, false, n, k_panel, k_ld, TILE_WIDTH, seen, e, sums + i * e, e, true);
      }
      write(dks, e, here, a.width, dk + ks, a.k.row);
      write(dvs, ev, here, a.value_width, dv + vs, a.v.row);
    }
  }
};

}  // namespace

EXPORT void attention_fwd(const Shape* shape, const float* q, const float* k, const float* v, const uint8_t* seen,
                          const float* added, float* y, float* lse, float scale, float p, float factor, uint64_t seed,
                          uint32_t stream, uint64_t offset) {
  const Shape a = *shape;
  const int threads = team(a.multiply_adds(), ALONE_BELOW);
  const int64_t heads = a.samples * a.heads;
  const int64_t parts = std::max<int64_t>(1, std::min(ceil_div(2 * threads, heads), a.rows / ROWS));
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t job = 0; job < heads * parts; job++) {
    const int64_t head = job / parts, part = job % parts;
    const Forward run{{a, {seen, added}, {p, factor, seed, stream, offset}, scale, head / a.heads, head % a.heads},
                      q, k, v, y, lse};
    run.run(part_start(a.rows, part, parts), part_start(a.rows, part + 1, parts));
  }
}

EXPORT void attention_bwd(const Shape* shape, const float* g, const float* q, const float* k, const float* v,
                          const uint8_t* seen, const float* added, const float* y, const float* lse, float* dq, float* dk,
                          float* dv, float scale, float p, float factor, uint64_t seed, uint32_t stream, uint64_t offset) {
  const Shape a = *shape;
  const int threads = team(a.multiply_adds(), ALONE_BELOW);
  const int64_t heads = a.samples * a.heads, blocks = ceil_div(a.keys, a.block()), e = round_up(a.width, LANES);
  const int64_t parts = std::min(blocks, ceil_div(BUSY, heads)), each = a.rows * e;
  std::vector<float> partial(parts > 1 ? heads * parts * each : 0);
  const auto finish = [&](int64_t head, const float* sums) {
    float* to = dq + head / a.heads * a.q.sample + head % a.heads * a.q.head;
    for (int64_t r = 0; r < a.rows; r++)
      for (int64_t c = 0; c < a.width; c += LANES) {
        vfloat sum = load(sums + r * e + c);
        for (int64_t part = 1; part < parts; part++) sum += load(sums + part * each + r * e + c);
        put(to + r * a.q.row + c, sum, a.width - c);
      }
  };
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t job = 0; job < heads * parts; job++) {
    const int64_t head = job / parts, part = job % parts;
    const Backward run{{a, {seen, added}, {p, factor, seed, stream, offset}, scale, head / a.heads, head % a.heads},
                       g, q, k, v, y, lse, dq, dk, dv};
    float* sums = parts > 1 ? partial.data() + job * each : scratch<1>(each);
    run.run(part_start(blocks, part, parts), part_start(blocks, part + 1, parts), sums);
    if (parts == 1) finish(head, sums);
  }
  if (parts == 1) return;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t head = 0; head < heads; head++) finish(head, partial.data() + head * parts * each);
}
