// Copies that land late: cp.async, mbarriers, TMA tiles. Bytes arrive only when a thread waits for them, never earlier,
// and the destination is poison until then: a missing or misplaced wait reads NaN.
#include "emu_ptx.hpp"

namespace emu {
static void poison(void* p, size_t n) {
  for (size_t i = 0; i + 1 < n; i += 2) *(uint16_t*)((char*)p + i) = EMU_POISON;
}

// ---- cp.async: per thread, in groups
void cp_async(void* dst, const void* src, int bytes, int valid) {
  if ((uintptr_t)dst % bytes || (valid && (uintptr_t)src % bytes))
    fail("cp.async of %d bytes: %p <- %p is not aligned to its size", bytes, dst, src);
  if (valid < 0 || valid > bytes) fail("cp.async of %d bytes with src-size %d", bytes, valid);
  if (valid) check_access(src, valid, false);
  check_access(dst, bytes, true);
  mark_in_flight(dst, bytes);
  poison(dst, bytes);
  self->copies.push_back({(char*)dst, (const char*)src, bytes, valid, self->copy_group});
}
void cp_async_commit() { self->copy_group++; }
void cp_async_wait(int pending_groups) {
  auto& c = self->copies;
  size_t n = 0;
  for (; n < c.size() && c[n].group < self->copy_group - pending_groups; n++) {
    memcpy(c[n].dst, c[n].src, c[n].valid);
    memset(c[n].dst + c[n].valid, 0, c[n].bytes - c[n].valid);
    mark_landed(c[n].dst, c[n].bytes);
  }
  c.erase(c.begin(), c.begin() + n);
}

// ---- mbarrier: our own layout of the 64 bits
struct Mbarrier {
  int32_t tx;
  uint32_t magic : 7, phase : 1, expected : 12, left : 12;
};
static_assert(sizeof(Mbarrier) == 8, "an mbarrier is 64 bits");
enum { MAGIC = 0x2B };
struct PendingLoad {
  Mbarrier* bar;
  EmuTensorMap map;
  char* dst;
  int coord[5];
};
static std::vector<PendingLoad> loads;

void start_block_copies() { loads.clear(); }
static Mbarrier& mbarrier(uint64_t* p, const char* what) {
  Mbarrier& b = *(Mbarrier*)p;
  if (b.magic != MAGIC) fail("%s on an mbarrier that was not initialised (or was overwritten)", what);
  return b;
}
static void wake_waiters(Mbarrier& b) {
  for (int i = 0; i < engine.threads; i++)
    if (engine.thread[i].wait_on == &b) {
      engine.thread[i].wait_on = nullptr;
      wake(&engine.thread[i]);
    }
}
static void complete_if_done(Mbarrier& b) {
  if (b.left || b.tx) return;
  b.phase ^= 1;
  b.left = b.expected;
  engine.epoch++;
  wake_waiters(b);
}
void mbarrier_init(uint64_t* p, int count) { *(Mbarrier*)p = {0, MAGIC, 0, (unsigned)count, (unsigned)count}; }
void mbarrier_arrive(uint64_t* p, int expect_bytes) {
  Mbarrier& b = mbarrier(p, "arrive");
  if (!b.left) fail("more arrivals on an mbarrier than its count of %u", b.expected);
  b.tx += expect_bytes;
  b.left--;
  complete_if_done(b);
}
static void for_each_row(const EmuTensorMap& m, const int* coord,
                         void (*row)(const EmuTensorMap&, size_t, bool, char*, char*), char* tile) {
  int i[5] = {0};
  size_t at = 0, inner = (size_t)m.box[0] * m.element_bytes;
  for (;;) {  // one row of the innermost dimension, element by element
    bool in = true;
    char* g = (char*)m.address;
    for (unsigned d = 1; d < m.rank; d++) {
      int64_t c = coord[d] + i[d];
      in = in && c >= 0 && c < (int64_t)m.dim[d];
      g += c * m.stride[d];
    }
    for (unsigned e = 0; e < m.box[0]; e++) {
      int64_t c = coord[0] + (int)e;
      row(m, at + e * m.element_bytes, in && c >= 0 && c < (int64_t)m.dim[0], g + c * m.element_bytes, tile);
    }
    at += inner;
    unsigned d = 1;
    while (d < m.rank && ++i[d] == m.box[d]) i[d++] = 0;
    if (d >= m.rank) return;
  }
}
size_t swizzle(size_t address, int span) {  // the span of 128, 64 or 32 bytes exchanges its 16-byte chunks
  return span == 128  ? address ^ (address >> 3 & 0x70)
         : span == 64 ? address ^ (address >> 3 & 0x30)
         : span == 32 ? address ^ (address >> 3 & 0x10)
                      : address;
}
static char* in_tile(const EmuTensorMap& m, size_t at, char* tile) {
  size_t base = tile - engine.dynamic_shared;
  return engine.dynamic_shared + swizzle(base + at, m.swizzle_bytes);
}
static size_t tile_bytes(const EmuTensorMap& m) {
  size_t n = m.element_bytes;
  for (unsigned d = 0; d < m.rank; d++) n *= m.box[d];
  return n;
}
static const EmuTensorMap& tensor_map(const void* p, const void* tile, int rank) {
  const EmuTensorMap& m = *(const EmuTensorMap*)p;
  if (m.magic != EMU_TENSOR_MAP_MAGIC)
    fail("TMA: the argument is not a tensor map (passed by value as __grid_constant__?)");
  if ((int)m.rank != rank) fail("TMA: a copy of rank %d with a tensor map of rank %u", rank, m.rank);
  size_t align = m.swizzle_bytes ? m.swizzle_bytes * 8 : 128, at = (const char*)tile - engine.dynamic_shared;
  if (at % align) fail("TMA: tile at byte %zu of dynamic shared memory, must be a multiple of %zu", at, align);
  if (at + tile_bytes(m) > engine.launch->dynamic_shared)
    fail("TMA: tile of %zu bytes at byte %zu leaves the %u bytes of dynamic shared memory", tile_bytes(m), at,
         engine.launch->dynamic_shared);
  return m;
}
void tma_load(void* dst, const void* map, const int* coord, int rank, uint64_t* bar) {
  PendingLoad l{&mbarrier(bar, "TMA load"), tensor_map(map, dst, rank), (char*)dst, {}};
  std::copy(coord, coord + rank, l.coord);
  check_access(dst, tile_bytes(l.map), true);
  mark_in_flight(dst, tile_bytes(l.map));
  poison(dst, tile_bytes(l.map));
  loads.push_back(l);
  wake_waiters(*l.bar);  // they find the copy and let it land
}
static void land(Mbarrier& b) {
  for (size_t i = 0; i < loads.size();) {
    if (loads[i].bar != &b) {
      i++;
      continue;
    }
    PendingLoad l = loads[i];
    loads.erase(loads.begin() + i);
    for_each_row(
        l.map, l.coord,
        [](const EmuTensorMap& m, size_t at, bool in, char* global, char* tile) {
          if (in) {
            check_access(global, m.element_bytes, false);
            memcpy(in_tile(m, at, tile), global, m.element_bytes);
          } else memset(in_tile(m, at, tile), 0, m.element_bytes);
        },
        l.dst);
    mark_landed(l.dst, tile_bytes(l.map));
    b.tx -= tile_bytes(l.map);
    complete_if_done(b);
  }
}
void mbarrier_wait(uint64_t* p, int parity) {  // returns once the phase of this parity is complete
  Mbarrier& b = mbarrier(p, "wait");
  for (land(b); (int)b.phase == parity; land(b)) {
    block_self("mbarrier_wait", 0, &b);
    self->wait_on = nullptr;
  }
}
bool mbarrier_test(uint64_t* p, int parity) {
  Mbarrier& b = mbarrier(p, "test");
  land(b);
  yield("mbarrier_test");
  return (int)b.phase != parity;
}

// ---- TMA stores: shared memory is read when the thread waits, so a tile reused too early shows
void tma_store(const void* map, const void* src, const int* coord, int rank) {
  PendingStore s{tensor_map(map, src, rank), (const char*)src, {}, self->store_group};
  std::copy(coord, coord + rank, s.coord);
  self->stores.push_back(s);
}
void bulk_commit() { self->store_group++; }
void bulk_wait(int pending_groups) {
  auto& s = self->stores;
  size_t n = 0;
  for (; n < s.size() && s[n].group < self->store_group - pending_groups; n++)
    for_each_row(
        s[n].map, s[n].coord,
        [](const EmuTensorMap& m, size_t at, bool in, char* global, char* tile) {
          if (!in) return;
          check_access(global, m.element_bytes, true);
          memcpy(global, in_tile(m, at, tile), m.element_bytes);
        },
        (char*)s[n].src);
  s.erase(s.begin(), s.begin() + n);
}
}  // namespace emu
