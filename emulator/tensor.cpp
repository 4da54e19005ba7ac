// Matrix instructions: ldmatrix, mma.sync, wgmma; their arithmetic is in arithmetic.cpp.
#include "arithmetic.hpp"

namespace emu {
// ---- ldmatrix, stmatrix: lane 8i+r names row r of matrix i; lane l has elements 2(l%4), 2(l%4)+1 of row l/4 ---------
static void whole_warp(const Meeting& m) {
  if (m.arrived != ~0u) fail("%s takes all 32 lanes of a warp, some are not there or have returned", m.op);
}
struct MatrixRows {
  unsigned* r;
  int matrices;
  bool transpose, store;
  char* row;
};
static void move_matrices(MatrixRows arg) {
  if (arg.store) require(90, "stmatrix");
  else require(75, "ldmatrix");
  meet(~0u, arg.store ? "stmatrix" : "ldmatrix", &arg, [](Meeting& m) {
    whole_warp(m);
    MatrixRows** lane = (MatrixRows**)m.arg;
    const bool store = lane[0]->store;
    for (int i = 0; i < lane[0]->matrices; i++) {
      for (int r = 0; r < 8; r++) {
        if ((uintptr_t)lane[8 * i + r]->row % 16)
          fail("%s: the row address of lane %d is not a multiple of 16", m.op, 8 * i + r);
        check_access(lane[8 * i + r]->row, 16, store);
      }
      for (int l = 0; l < 32; l++)
        for (int h = 0; h < 2; h++) {
          int r = l / 4, c = 2 * (l % 4) + h;
          if (lane[0]->transpose) std::swap(r, c);
          char *in_register = (char*)&lane[l]->r[i] + 2 * h, *in_memory = lane[8 * i + r]->row + 2 * c;
          if (store) memcpy(in_memory, in_register, 2);
          else memcpy(in_register, in_memory, 2);
        }
    }
  });
}
void ldmatrix(unsigned* r, int matrices, bool transpose, const void* row) {
  move_matrices({r, matrices, transpose, false, (char*)row});
}
void stmatrix(void* row, int matrices, bool transpose, const unsigned* r) {
  move_matrices({(unsigned*)r, matrices, transpose, true, (char*)row});
}

// ---- mma.sync m16n8k16 (16-bit) and m16n8k8 (tf32): both keep 32 bytes of K per row in the same lanes; m16n8k8 of f16,
// the first half of that
struct Mma {
  Format f;
  float* d;
  const unsigned *a, *b;
  const float* c;
};
static void unpack(Operand& o, int at, int step, int k_bytes, Format f,
                   uint32_t reg) {  // 4 bytes of K; element x goes to at + x step
  if (f == Tf32) o.bits[at + k_bytes / 4 * step] = reg;
  else {
    o.bits[at + k_bytes / 2 * step] = reg & 0xFFFF;
    o.bits[at + (k_bytes / 2 + 1) * step] = reg >> 16;
  }
}
static void unpack_a(Operand& o, int lane, const unsigned* a, int k, Format f) {
  for (int i = 0; i < 4; i++) unpack(o, (lane / 4 + i % 2 * 8) * k, 1, lane % 4 * 4 + i / 2 * 16, f, a[i]);
}
static void multiply_16x8(Format f, float* d, const unsigned* a, const unsigned* b, const float* c) {
  Mma arg{f, d, a, b, c};
  meet(~0u,
       f == Fp16   ? "mma f16"
       : f == Bf16 ? "mma bf16"
                   : "mma tf32",
       &arg, [](Meeting& m) {
         whole_warp(m);
         Mma** lane = (Mma**)m.arg;
         Format f = lane[0]->f;
         int k = f == Tf32 ? 8 : 16;
         static Operand A(16 * 16), B(8 * 16);
         for (int l = 0; l < 32; l++) {
           unpack_a(A, l, lane[l]->a, k, f);
           for (int i = 0; i < 2; i++) unpack(B, l / 4, 8, l % 4 * 4 + i * 16, f, lane[l]->b[i]);
         }
         decode_a(A, f, false);
         decode_b(B, f, 8);
         for (int r = 0; r < 16; r++) {
           float c[8];
           for (int j = 0; j < 8; j++) c[j] = lane[r % 8 * 4 + j / 2]->c[r / 8 * 2 + j % 2];
           multiply_add(f, A, r, B, 0, 8, k, c);
           for (int j = 0; j < 8; j++) lane[r % 8 * 4 + j / 2]->d[r / 8 * 2 + j % 2] = c[j];
         }
         engine.launch->mma_flops += 2 * 16 * 8 * k;
       });
}
void mma(Format f, float* d, const unsigned* a, const unsigned* b, const float* c) {
  require(80, f == Fp16 ? "mma.m16n8k16 f16" : f == Bf16 ? "mma bf16" : "mma tf32");
  multiply_16x8(f, d, a, b, c);
}
void mma_k8(float* d, const unsigned* a, const unsigned* b, const float* c) {
  require(75, "mma.m16n8k8 f16");
  const unsigned low[4] = {a[0], a[1], 0, 0}, left[2] = {b[0], 0};
  multiply_16x8(Fp16, d, low, left, c);
}

// ---- wgmma m64nNk16 / k8: each warp computes its own 16 rows; results and operand reads take effect at the wait -----
struct Wgmma {
  Format f;
  int n;
  float* d;
  const unsigned* a;
  uint64_t a_desc, b_desc;
  bool add, a_mn, b_mn, negate;
};
struct InFlight {
  Warp* warp;
  int group;
  uint64_t desc, hash;
  int row0, rows;
  Format f;
  bool mn;
};
static std::vector<InFlight> in_flight;  // operands that must not change before the wait

void start_cluster_tensor() { in_flight.clear(); }
// Visits an operand 16 bytes at a time, f(bytes, r, x): elements from row r and place x of k on, along k, or along the
// rows where these lie side by side (mn). No swizzle divides them. Returns a hash of them all.
template <class Visit>
static uint64_t read_operand(Format f, uint64_t desc, int row0, int rows, bool mn, bool check, Visit visit) {
  const int size = f == Tf32 ? 4 : 2, k = 32 / size, mode = desc >> 62;
  const int span = mode == 1 ? 128 : mode == 2 ? 64 : mode == 3 ? 32 : 0, per = span / size;
  const int per_bits = span ? __builtin_ctz(per) : 0;
  const int rows_of = mn ? 16 / size : 1, places_of = mn ? 1 : 16 / size;
  const size_t start = (desc & 0x3FFF) << 4, lbo = (desc >> 16 & 0x3FFF) << 4, sbo = (desc >> 32 & 0x3FFF) << 4;
  uint64_t hash = 14695981039346656037ull;
  for (int r = row0; r < row0 + rows; r += rows_of)
    for (int x = 0; x < k; x += places_of) {
      size_t at;
      if (mn && span) at = (r >> per_bits) * lbo + x / 8 * sbo + x % 8 * span + (r & (per - 1)) * size;
      else if (mn) at = r / 8 * sbo + x / 8 * lbo + x % 8 * 16 + r % 8 * size;
      else if (span) at = r / 8 * sbo + r % 8 * span + x * size;
      else at = r / 8 * sbo + x * size / 16 * lbo + r % 8 * 16;
      at = swizzle(start + at, span);
      if (at + 16 > engine.launch->dynamic_shared)
        fail("wgmma: descriptor reaches byte %zu of %u bytes of dynamic shared memory", at,
             engine.launch->dynamic_shared);
      const char* bytes = engine.dynamic_shared + at;
      if (check) check_async_read(bytes, 16);
      uint64_t word[2];
      memcpy(word, bytes, 16);
      hash = (hash ^ word[0]) * 1099511628211ull;
      hash = (hash ^ word[1]) * 0x9E3779B97F4A7C15ull;
      hash ^= hash >> 32;
      visit(bytes, r, x);
    }
  return hash;
}
static uint64_t hash_operand(Format f, uint64_t desc, int row0, int rows, bool mn) {
  return read_operand(f, desc, row0, rows, mn, engine.checked, [](const char*, int, int) {});
}
// The swizzle goes by addresses: rows may begin at any of a tile (measured on an H200), and have what 16 of k read.
static void check_descriptor(uint64_t desc, bool mn) {
  const int mode = desc >> 62, span = mode == 1 ? 128 : mode == 2 ? 64 : mode == 3 ? 32 : 0;
  const size_t start = (desc & 0x3FFF) << 4;
  if (span && !mn && start % span + 32 > (size_t)span)
    fail("wgmma: descriptor starts at byte %zu of a row of %d, which 32 bytes of k leave", start % span, span);
}
template <class Element>
static void spread(const char* bytes, uint32_t* to, int step) {  // 16 bytes
  Element elements[16 / sizeof(Element)];
  memcpy(elements, bytes, 16);
  for (Element e : elements) {
    *to = e;
    to += step;
  }
}
// Element (row, x) goes to row * row_step + x * place_step. Returns the hash.
static uint64_t read_bits(Operand& o, Format f, uint64_t desc, int row0, int rows, bool mn, bool check, int row_step,
                          int place_step) {
  const int step = mn ? row_step : place_step;
  return read_operand(f, desc, row0, rows, mn, check, [&](const char* bytes, int r, int x) {
    uint32_t* to = &o.bits[(r - row0) * row_step + x * place_step];
    if (f == Tf32) spread<uint32_t>(bytes, to, step);
    else spread<uint16_t>(bytes, to, step);
  });
}
static void read_a(Operand& o, Warp& warp, Format f, uint64_t desc, int row0, bool mn) {
  check_descriptor(desc, mn);
  const uint64_t hash = read_bits(o, f, desc, row0, 16, mn, engine.checked, f == Tf32 ? 8 : 16, 1);
  in_flight.push_back({&warp, warp.lane[0]->wgmma_group, desc, hash, row0, 16, f, mn});
}
// All warps of a warpgroup, and often those of the next, multiply by the same B: the last few are kept.
static const Operand& read_b(Warp& warp, Format f, uint64_t desc, int rows, bool mn) {
  struct Read {
    Operand value;
    uint64_t desc, hash;
    int rows;
    Format f;
    bool mn;
  };
  static std::vector<Read> kept(16);
  check_descriptor(desc, mn);
  const uint64_t hash = hash_operand(f, desc, 0, rows, mn);
  in_flight.push_back({&warp, warp.lane[0]->wgmma_group, desc, hash, 0, rows, f, mn});
  Read& b = kept[hash % kept.size()];
  if (b.desc == desc && b.hash == hash && b.rows == rows && b.f == f && b.mn == mn) return b.value;
  b = {Operand(rows * (f == Tf32 ? 8 : 16)), desc, hash, rows, f, mn};
  read_bits(b.value, f, desc, 0, rows, mn, false, 1, rows);
  decode_b(b.value, f, rows);
  return b.value;
}
static const uint32_t NAN_BITS = EMU_POISON * 0x10001u;  // what the registers hold until the wait
static void take_registers(Accumulator& a) {  // their values, which must not have changed behind the back of wgmma
  Thread& t = *self;
  const size_t bytes = a.value.size() * sizeof(float);
  if (a.pending) return;
  if (memcmp(a.value.data(), a.d, bytes) && a.fences == t.wgmma_fences)
    fail("wgmma: accumulators were modified since the last wgmma_fence");
  memcpy(a.value.data(), a.d, bytes);
}
static Accumulator& accumulator(float* d, int n) {  // of a chain of wgmmas on the same registers
  auto& all = self->accumulators;
  if (!self->wgmma_fences) fail("wgmma without a wgmma_fence before it");
  for (size_t i = 0; i < all.size(); i++) {
    if (d + n / 2 <= all[i].d || all[i].d + all[i].value.size() <= d) continue;
    const bool same = all[i].d == d && (int)all[i].value.size() == n / 2;
    if (all[i].pending && !same) fail("wgmma: accumulators of another shape are in flight in the same registers");
    if (same) {
      take_registers(all[i]);
      return all[i];
    }
    all.erase(all.begin() + i--);  // an array that is gone
  }
  all.push_back({d, 0, 0, false, std::vector<float>(d, d + n / 2)});
  return all.back();
}
static void multiply(Meeting& m) {
  whole_warp(m);
  Wgmma **lane = (Wgmma**)m.arg, &w = *lane[0];
  Warp& warp = *self->warp;
  const int row0 = warp.lane[0]->id / 32 % 4 * 16, k = w.f == Tf32 ? 8 : 16;
  static Operand narrow(16 * 8), wide(16 * 16);
  Operand& A = w.f == Tf32 ? narrow : wide;
  if (!w.a) read_a(A, warp, w.f, w.a_desc, row0, w.a_mn);
  for (int l = 0; w.a && l < 32; l++) unpack_a(A, l, lane[l]->a, k, w.f);
  decode_a(A, w.f, w.negate);
  const Operand& B = read_b(warp, w.f, w.b_desc, w.n, w.b_mn);
  float* to[32];
  for (int l = 0; l < 32; l++)
    for (Accumulator& a : warp.lane[l]->accumulators) {
      if (a.d != lane[l]->d) continue;
      to[l] = a.value.data();
      for (int i = 0; !a.pending && i < w.n / 2; i++) memcpy(a.d + i, &NAN_BITS, 4);
      a.group = warp.lane[0]->wgmma_group;
      a.pending = warp.lane[l]->pending = true;
    }
  for (int r = 0; r < 16; r++)
    for (int n = 0; n < w.n; n += 8) {  // row r, columns n..n+7: lanes 4(r%8)..+3, two values each
      float c[8] = {};
      const int at = n / 2 + r / 8 * 2;
      for (int j = 0; w.add && j < 4; j++) memcpy(c + 2 * j, to[r % 8 * 4 + j] + at, 8);
      multiply_add(w.f, A, r, B, n, w.n, k, c);
      for (int j = 0; j < 4; j++) memcpy(to[r % 8 * 4 + j] + at, c + 2 * j, 8);
    }
  warp.wgmmas++;
  engine.launch->mma_flops += 2 * 16 * w.n * k;
}
void wgmma(Format f, int n, float* d, const unsigned* a, uint64_t a_desc, uint64_t b_desc, bool add, bool a_mn,
           bool b_mn, bool negate) {
  require(90, "wgmma", true);
  accumulator(d, n);
  Wgmma arg{f, n, d, a, a_desc, b_desc, add, a_mn, b_mn, negate};
  meet(~0u, "wgmma", &arg, multiply);
}
void wgmma_fence() { self->wgmma_fences++; }
void wgmma_commit() { self->wgmma_group++; }
static void deliver(Thread& t, int done) {
  t.pending = false;
  for (Accumulator& a : t.accumulators) {
    t.pending |= a.pending && a.group >= done;
    if (!a.pending || a.group >= done) continue;
    for (size_t i = 0; i < a.value.size(); i++)
      if (memcmp(&a.d[i], &NAN_BITS, 4)) fail("wgmma: accumulator %zu was written before wgmma_wait", i);
    std::copy(a.value.begin(), a.value.end(), a.d);
    a.pending = false;
    a.fences = t.wgmma_fences;
  }
}
void wgmma_wait(int pending_groups) {
  meet(~0u, "wgmma_wait", &pending_groups, [](Meeting& m) {
    whole_warp(m);
    Warp& warp = *self->warp;
    const int done = warp.lane[0]->wgmma_group - *(int*)m.arg[0];
    for (size_t i = 0; i < in_flight.size();) {
      InFlight x = in_flight[i];
      if (x.warp != &warp || x.group >= done) {
        i++;
        continue;
      }
      in_flight.erase(in_flight.begin() + i);
      if (hash_operand(x.f, x.desc, x.row0, x.rows, x.mn) != x.hash)
        fail("wgmma: an operand in shared memory changed before its wgmma_wait");
    }
    for (Thread* t : warp.lane) deliver(*t, done);
  });
}

// ---- setmaxnreg changes nothing here; inspected when the block is done
void setmaxnreg(int registers) {
  require(90, "setmaxnreg", true);
  meet(~0u, "setmaxnreg", &registers, [](Meeting& m) { self->warp->registers = *(int*)m.arg[0]; });
}
const char* tensor_complaint(const Block& b) {
  static char text[160];
  unsigned registers = 0;
  for (int i = 0; i < 32; i++) {
    const Warp &w = b.warp[i], &first = b.warp[i / 4 * 4];
    registers += 32 * w.registers;
    if (w.wgmmas == first.wgmmas && w.registers == first.registers) continue;
    snprintf(text, sizeof text,
             "warps %d to %d are one warpgroup, but did not all execute the same wgmma and setmaxnreg", i / 4 * 4,
             i / 4 * 4 + 3);
    return text;
  }
  if (registers <= 65536) return nullptr;
  snprintf(text, sizeof text, "setmaxnreg: the warps ask for %u registers, a multiprocessor has 65536", registers);
  return text;
}
}  // namespace emu
