// Matrix instructions: ldmatrix, mma.sync, wgmma, with the arithmetic of tensor cores.
#include "emu_ptx.hpp"
#include <math.h>

namespace emu {
// ---- arithmetic -----------------------------------------------------------------------------------------------
// Model: products are exact. WIDTH of them and the accumulator are aligned to the largest exponent, each is cut off
// EXTRA bits below the last place of fp32, the sum is exact, and the result is cut off to fp32. Widths and extra bits of
// H100 as in arXiv 2512.07004 (A100: half the widths, one bit); test_device.py holds them to an H100, bit by bit.
static const int EXTRA = 2;
static int width_of(Format f) { return f == Tf32 ? 8 : 16; }

static float to_float(Format f, uint32_t bits) {
  uint32_t u = f == Bf16 ? bits << 16 : bits & ~0x1FFFu;  // tf32: the unit ignores the low 13 bits
  if (f == Fp16) {
    _Float16 h;
    uint16_t b = bits;
    memcpy(&h, &b, 2);
    return (float)h;
  }
  float r;
  memcpy(&r, &u, 4);
  return r;
}
static int exponent(Format f, float v) {  // as the unit sees it: denormals are not normalised
  uint32_t u;
  memcpy(&u, &v, 4);
  int e = (int)(u >> 23 & 255) - 127, low = f == Fp16 ? -14 : -126;
  return v == 0 ? -1000 : std::max(e, low);
}
static float cut(double v) {  // to fp32, towards zero
  uint64_t u;
  memcpy(&u, &v, 8);
  u &= ~0x1FFFFFFFull;
  memcpy(&v, &u, 8);
  return (float)v;
}
struct Operand {
  std::vector<float> v;
  std::vector<int> e;
  bool finite = true;
};  // A is [row][k], B is [k][column]
static void set(Operand& o, size_t i, Format f, uint32_t bits) {
  o.v[i] = to_float(f, bits);
  o.e[i] = exponent(f, o.v[i]);
  o.finite = o.finite && std::isfinite(o.v[i]);
}
static Operand operand(size_t n) {
  Operand o;
  o.v.resize(n);
  o.e.resize(n);
  return o;
}
static double power(int e) {
  uint64_t u = (uint64_t)(e + 1023) << 52;
  double r;
  memcpy(&r, &u, 8);
  return r;
}

// c[0..8) += a[0..W) b[0..W)[0..8), as one step of the unit. Columns side by side, so that the compiler vectorises.
template <int W>
static void step(const float* a, const int* ea, const float* b, const int* eb, int stride, float* c) {
  int top[8];
  double scale[8], sum[8];
  for (int j = 0; j < 8; j++) top[j] = std::max(exponent(Bf16, c[j]), -400);
  for (int i = 0; i < W; i++)
    for (int j = 0; j < 8; j++) top[j] = std::max(top[j], ea[i] + eb[i * stride + j]);
  for (int j = 0; j < 8; j++) {
    scale[j] = power(23 + EXTRA - top[j]);
    sum[j] = trunc(c[j] * scale[j]);
  }
  for (int i = 0; i < W; i++)
    for (int j = 0; j < 8; j++) sum[j] += trunc((double)a[i] * b[i * stride + j] * scale[j]);
  for (int j = 0; j < 8; j++) c[j] = cut(sum[j] * power(top[j] - 23 - EXTRA));
}
static void multiply_add(Format f, const Operand& a, int row, const Operand& b, int column, int columns, int k,
                         float* c) {
  bool model = a.finite && b.finite;
  for (int j = 0; j < 8; j++) model = model && std::isfinite(c[j]);
  for (int at = 0, w = width_of(f); model && at < k; at += w) {
    const int i = row * k + at, j = at * columns + column;
    if (w == 16) step<16>(&a.v[i], &a.e[i], &b.v[j], &b.e[j], columns, c);
    else step<8>(&a.v[i], &a.e[i], &b.v[j], &b.e[j], columns, c);
  }
  for (int j = 0; !model && j < 8; j++) {  // infinities and NaN take their usual way
    double sum = c[j];
    for (int x = 0; x < k; x++) sum += (double)a.v[row * k + x] * b.v[x * columns + column + j];
    c[j] = (float)sum;
  }
}

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

// ---- mma.sync m16n8k16 (16-bit) and m16n8k8 (tf32): both keep 32 bytes of K per row in the same lanes ---------------
struct Mma {
  Format f;
  float* d;
  const unsigned *a, *b;
  const float* c;
};
static void unpack(Operand& o, int at, int step, int k_bytes, Format f,
                   uint32_t reg) {  // 4 bytes of K; element x goes to at + x step
  if (f == Tf32) return set(o, at + k_bytes / 4 * step, f, reg);
  set(o, at + k_bytes / 2 * step, f, reg & 0xFFFF);
  set(o, at + (k_bytes / 2 + 1) * step, f, reg >> 16);
}
static void unpack_a(Operand& o, int lane, const unsigned* a, int k, Format f) {
  for (int i = 0; i < 4; i++) unpack(o, (lane / 4 + i % 2 * 8) * k, 1, lane % 4 * 4 + i / 2 * 16, f, a[i]);
}
void mma(Format f, float* d, const unsigned* a, const unsigned* b, const float* c) {
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
         static Operand A = operand(16 * 16), B = operand(8 * 16);
         A.finite = B.finite = true;
         for (int l = 0; l < 32; l++) {
           unpack_a(A, l, lane[l]->a, k, f);
           for (int i = 0; i < 2; i++) unpack(B, l / 4, 8, l % 4 * 4 + i * 16, f, lane[l]->b[i]);
         }
         for (int r = 0; r < 16; r++) {
           float c[8];
           for (int j = 0; j < 8; j++) c[j] = lane[r % 8 * 4 + j / 2]->c[r / 8 * 2 + j % 2];
           multiply_add(f, A, r, B, 0, 8, k, c);
           for (int j = 0; j < 8; j++) lane[r % 8 * 4 + j / 2]->d[r / 8 * 2 + j % 2] = c[j];
         }
         engine.launch->mma_flops += 2 * 16 * 8 * k;
       });
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
static uint64_t read_operand(Operand* o, bool is_a, Format f, uint64_t desc, int row0, int rows, bool mn) {
  const int size = f == Tf32 ? 4 : 2, k = 32 / size, mode = desc >> 62;
  const int span = mode == 1 ? 128 : mode == 2 ? 64 : mode == 3 ? 32 : 0;
  const size_t start = (desc & 0x3FFF) << 4, lbo = (desc >> 16 & 0x3FFF) << 4, sbo = (desc >> 32 & 0x3FFF) << 4;
  uint64_t hash = 14695981039346656037ull;
  for (int r = row0; r < row0 + rows; r++)
    for (int x = 0; x < k; x++) {
      size_t at;
      if (mn && span) {
        int per = span / size;
        at = r / per * lbo + x / 8 * sbo + x % 8 * span + r % per * size;
      } else if (mn) at = r / 8 * sbo + x / 8 * lbo + x % 8 * 16 + r % 8 * size;
      else if (span) at = r / 8 * sbo + r % 8 * span + x * size;
      else at = r / 8 * sbo + x * size / 16 * lbo + r % 8 * 16 + x * size % 16;
      at = swizzle(start + at, span);
      if (at + size > engine.launch->dynamic_shared)
        fail("wgmma: descriptor reaches byte %zu of %u bytes of dynamic shared memory", at,
             engine.launch->dynamic_shared);
      check_async_read(engine.dynamic_shared + at, size);
      uint32_t bits = 0;
      memcpy(&bits, engine.dynamic_shared + at, size);
      hash = (hash ^ bits) * 1099511628211ull;
      if (o) set(*o, is_a ? (r - row0) * k + x : x * rows + r, f, bits);
    }
  return hash;
}
static void check_descriptor(uint64_t desc, bool mn) {  // rows of a swizzled tile come in eights from address 0 on
  const int mode = desc >> 62, span = mode == 1 ? 128 : mode == 2 ? 64 : mode == 3 ? 32 : 0;
  const size_t start = (desc & 0x3FFF) << 4;
  if (span && start % (8 * span) >= (size_t)(mn ? 16 : span))
    fail("wgmma: descriptor starts at byte %zu, not in the first of 8 rows of %d bytes as its swizzle demands", start,
         span);
}
static Operand shared_operand(Warp& warp, bool is_a, Format f, uint64_t desc, int row0, int rows, bool mn) {
  check_descriptor(desc, mn);
  Operand o = operand(rows * (f == Tf32 ? 8 : 16));
  const uint64_t hash = read_operand(&o, is_a, f, desc, row0, rows, mn);
  in_flight.push_back({&warp, warp.lane[0]->wgmma_group, desc, hash, row0, rows, f, mn});
  return o;
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
static void negate(Operand& o) {
  for (float& v : o.v) v = -v;
}
static void multiply(Meeting& m) {
  whole_warp(m);
  Wgmma **lane = (Wgmma**)m.arg, &w = *lane[0];
  Warp& warp = *self->warp;
  const int row0 = warp.lane[0]->id / 32 % 4 * 16, k = w.f == Tf32 ? 8 : 16;
  Operand A = w.a ? operand(16 * k) : shared_operand(warp, true, w.f, w.a_desc, row0, 16, w.a_mn);
  for (int l = 0; w.a && l < 32; l++) unpack_a(A, l, lane[l]->a, k, w.f);
  Operand B = shared_operand(warp, false, w.f, w.b_desc, 0, w.n, w.b_mn);
  if (w.negate) negate(A);
  Accumulator* to[32] = {};
  for (int l = 0; l < 32; l++) {
    for (Accumulator& a : warp.lane[l]->accumulators)
      if (a.d == lane[l]->d) to[l] = &a;
    to[l]->group = warp.lane[0]->wgmma_group;
    to[l]->pending = true;
  }
  for (int r = 0; r < 16; r++)
    for (int n = 0; n < w.n; n += 8) {  // row r, columns n..n+7: lanes 4(r%8)..+3, two values each
      float c[8];
      auto at = [&](int j) -> float& { return to[r % 8 * 4 + j / 2]->value[n / 2 + r / 8 * 2 + j % 2]; };
      for (int j = 0; j < 8; j++) c[j] = w.add ? at(j) : 0;
      multiply_add(w.f, A, r, B, n, w.n, k, c);
      for (int j = 0; j < 8; j++) at(j) = c[j];
    }
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < w.n / 2; i++) memcpy(&lane[l]->d[i], &NAN_BITS, 4);
  warp.wgmmas++;
  engine.launch->mma_flops += 2 * 16 * w.n * k;
}
void wgmma(Format f, int n, float* d, const unsigned* a, uint64_t a_desc, uint64_t b_desc, bool add, bool a_mn,
           bool b_mn, bool negate) {
  accumulator(d, n);
  Wgmma arg{f, n, d, a, a_desc, b_desc, add, a_mn, b_mn, negate};
  meet(~0u, "wgmma", &arg, multiply);
}
void wgmma_fence() { self->wgmma_fences++; }
void wgmma_commit() { self->wgmma_group++; }
static void deliver(Thread& t, int done) {
  for (Accumulator& a : t.accumulators) {
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
      if (read_operand(nullptr, false, x.f, x.desc, x.row0, x.rows, x.mn) != x.hash)
        fail("wgmma: an operand in shared memory changed before its wgmma_wait");
    }
    for (Thread* t : warp.lane) deliver(*t, done);
  });
}

// ---- setmaxnreg changes nothing here; inspected when the block is done
void setmaxnreg(int registers) {
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
