// Copies that land late: cp.async, mbarriers, TMA tiles. Bytes arrive only when a thread waits for them, never earlier,
// and the destination is poison until then: a missing or misplaced wait reads NaN.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "emu_ptx.hpp"

namespace emu {
static void poison(void* p, size_t n) {
  for (size_t i = 0; i + 1 < n; i += 2) *(uint16_t*)((char*)p + i) = EMU_POISON;
}

// ---- cp.async: per thread, in groups
void cp_async(void* dst, const void* src, int bytes, int valid) {
  require(80, "cp.async");
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

// ---- mbarrier: our own layout of the 64 bits. Those of other blocks are known by their home, see engine.hpp
struct Mbarrier {
  int32_t tx;
  uint32_t magic : 5, phase : 1, expected : 13, left : 13;
};
static_assert(sizeof(Mbarrier) == 8, "an mbarrier is 64 bits");
enum { MAGIC = 0x0A, MOST_ARRIVALS = (1 << 13) - 1, MOST_BYTES = (1 << 20) - 1 };
struct PendingLoad {
  char* bar;  // home
  EmuTensorMap map;
  char* dst;
  int coord[5];
};
static std::vector<PendingLoad> loads;

void start_cluster_copies() { loads.clear(); }
static Mbarrier& mbarrier(const void* home, const char* what) {
  Mbarrier& b = *(Mbarrier*)at_home(home);
  if (b.magic != MAGIC) fail("%s on an mbarrier that was not initialised (or was overwritten)", what);
  return b;
}
static void wake_waiters(const char* home, Block& block) {
  for (int i = 0; i < engine.threads; i++)
    if (block.thread[i].wait_on == home) {
      block.thread[i].wait_on = nullptr;
      wake(&block.thread[i]);
    }
}
static void complete_if_done(const char* home, Mbarrier& b, Block& block) {
  if (b.left || b.tx) return;
  b.phase ^= 1;
  b.left = b.expected;
  block.met = engine.cluster_met = tick();
  wake_waiters(home, block);
}
static void arrive(const char* home, Block& block, int expect_bytes) {
  Mbarrier& b = mbarrier(home, "arrive");
  if (!b.left) fail("more arrivals on an mbarrier than its count of %u", b.expected);
  b.tx += expect_bytes;
  b.left--;
  complete_if_done(home, b, block);
}
static void check_bytes(int bytes) {
  if (bytes < 0 || bytes > MOST_BYTES) fail("an mbarrier cannot expect %d bytes, at most %d", bytes, MOST_BYTES);
}
void mbarrier_init(uint64_t* p, int count) {
  require(90, "mbarrier with transaction counts");
  if ((uintptr_t)p % 8 || !on_rank(p, self->block->rank))
    fail("mbarrier_init: %p is not a multiple of 8 in shared memory", (void*)p);
  if (count < 1 || count > MOST_ARRIVALS) fail("mbarrier_init: %d arrivals, not 1 to %d", count, MOST_ARRIVALS);
  *(Mbarrier*)p = {0, MAGIC, 0, (unsigned)count, (unsigned)count};
}
void mbarrier_expect(uint64_t* p, int bytes) {
  check_bytes(bytes);
  mbarrier(home(p), "expect").tx += bytes;
}
void mbarrier_arrive(uint64_t* p, int expect_bytes) {
  check_bytes(expect_bytes);
  arrive(home(p), *self->block, expect_bytes);
}
void mbarrier_arrive_remote(uint64_t* p, int rank) {
  require_remote(rank, "mbarrier_arrive_remote");
  arrive(on_rank(p, rank), *engine.block[rank], 0);
}

// ---- TMA tiles
static int extent(const EmuTensorMap& m, unsigned d) { return (m.box[d] + m.step[d] - 1) / m.step[d]; }
// Visits a tile row by row: run(at, bytes, global) for bytes side by side in both; global is null outside the tensor.
template <class Run>
static void for_each_run(const EmuTensorMap& m, const int* coord, Run run) {
  const int64_t size = m.element_bytes, box = m.box[0];
  const int64_t first = std::clamp<int64_t>(-(int64_t)coord[0], 0, box);
  const int64_t last = std::clamp<int64_t>((int64_t)m.dim[0] - coord[0], first, box);
  int i[5] = {0};
  for (size_t at = 0;; at += box * size) {
    bool in = true;
    char* g = (char*)m.address + coord[0] * size;
    for (unsigned d = 1; d < m.rank; d++) {
      int64_t c = (int64_t)coord[d] + i[d] * m.step[d];
      in = in && c >= 0 && c < (int64_t)m.dim[d];
      g += c * m.stride[d];
    }
    const int64_t from = in ? first : box, to = in ? last : box;
    if (from) run(at, from * size, nullptr);
    if (from < to) run(at + from * size, (to - from) * size, g + from * size);
    if (to < box) run(at + to * size, (box - to) * size, nullptr);
    unsigned d = 1;
    while (d < m.rank && ++i[d] == extent(m, d)) i[d++] = 0;
    if (d >= m.rank) return;
  }
}
size_t swizzle(size_t address, int span) {  // the span of 128, 64 or 32 bytes exchanges its 16-byte chunks
  return span == 128  ? address ^ (address >> 3 & 0x70)
         : span == 64 ? address ^ (address >> 3 & 0x30)
         : span == 32 ? address ^ (address >> 3 & 0x10)
                      : address;
}
// Where a run lies in its tile: piece(address, first byte of it, bytes), of at most 16 bytes where a swizzle parts them.
template <class Piece>
static void for_each_piece(const EmuTensorMap& m, char* tile, size_t at, size_t bytes, Piece piece) {
  at += tile - engine.dynamic_shared;
  for (size_t done = 0, take; done < bytes; done += take) {
    take = m.swizzle_bytes ? std::min(16 - (at + done) % 16, bytes - done) : bytes;
    piece(engine.dynamic_shared + swizzle(at + done, m.swizzle_bytes), done, take);
  }
}
// Words of device memory are checked as such, and what is less at the ends of a run by itself: see global_access.
static void check_run(const char* p, size_t bytes, bool write) {
  if (!engine.checked) return;
  const size_t head = std::min(bytes, -(uintptr_t)p % 4), tail = (bytes - head) % 4, words = bytes - head - tail;
  if (head) check_access(p, head, write);
  if (words) check_access(p + head, words, write);
  if (tail) check_access(p + head + words, tail, write);
}
static size_t tile_bytes(const EmuTensorMap& m) {
  size_t n = m.element_bytes * m.box[0];
  for (unsigned d = 1; d < m.rank; d++) n *= extent(m, d);
  return n;
}
static const EmuTensorMap& tensor_map(const void* p) {
  require(90, "TMA");
  const EmuTensorMap& m = *(const EmuTensorMap*)p;
  if (m.magic != EMU_TENSOR_MAP_MAGIC)
    fail("TMA: the argument is not a tensor map (passed by value as __grid_constant__?)");
  return m;
}
static const EmuTensorMap& tensor_map(const void* p, const void* tile, int rank) {
  const EmuTensorMap& m = tensor_map(p);
  if ((int)m.rank != rank) fail("TMA: a copy of rank %d with a tensor map of rank %u", rank, m.rank);
  if (m.swizzle_bytes && m.box[0] * m.element_bytes != m.swizzle_bytes)
    fail("TMA: rows of %u bytes in a tile swizzled over %u: the emulator knows the place of whole rows alone",
         m.box[0] * m.element_bytes, m.swizzle_bytes);
  size_t align = m.swizzle_bytes ? m.swizzle_bytes * 8 : 128, at = (const char*)tile - engine.dynamic_shared;
  if (at % align) fail("TMA: tile at byte %zu of dynamic shared memory, must be a multiple of %zu", at, align);
  if (at + tile_bytes(m) > engine.launch->dynamic_shared)
    fail("TMA: tile of %zu bytes at byte %zu leaves the %u bytes of dynamic shared memory", tile_bytes(m), at,
         engine.launch->dynamic_shared);
  return m;
}
void tma_prefetch(const void* map) { tensor_map(map); }
static void load(PendingLoad l, Block& block) {
  mbarrier(l.bar, "TMA load");
  check_access(l.dst, tile_bytes(l.map), true);
  mark_in_flight(l.dst, tile_bytes(l.map));
  poison(l.dst, tile_bytes(l.map));
  loads.push_back(l);
  wake_waiters(l.bar, block);  // they find the copy and let it land
}
void tma_load(void* dst, const void* map, const int* coord, int rank, uint64_t* bar) {
  PendingLoad l{home(bar), tensor_map(map, dst, rank), (char*)dst, {}};
  std::copy(coord, coord + rank, l.coord);
  load(l, *self->block);
}
void tma_load_multicast(void* dst, const void* map, const int* coord, int rank, uint64_t* bar, unsigned blocks) {
  PendingLoad l{nullptr, tensor_map(map, dst, rank), nullptr, {}};
  std::copy(coord, coord + rank, l.coord);
  if (!blocks) fail("tma_load_multicast to no block");
  for (int to = 0; to < 32; to++) {
    if (!(blocks >> to & 1)) continue;
    require_remote(to, "tma_load_multicast");
    l.bar = on_rank(bar, to);
    l.dst = on_rank(dst, to);
    load(l, *engine.block[to]);
  }
}
static void land(const char* bar, Mbarrier& b) {
  for (size_t i = 0; i < loads.size();) {
    if (loads[i].bar != bar) {
      i++;
      continue;
    }
    PendingLoad l = loads[i];
    loads.erase(loads.begin() + i);
    for_each_run(l.map, l.coord, [&](size_t at, size_t bytes, const char* global) {
      if (global) check_run(global, bytes, false);
      for_each_piece(l.map, l.dst, at, bytes, [&](char* there, size_t from, size_t n) {
        if (global) memcpy(there, global + from, n);
        else memset(there, 0, n);
      });
    });
    mark_landed(l.dst, tile_bytes(l.map));
    b.tx -= tile_bytes(l.map);
    complete_if_done(bar, b, *self->block);
  }
}
void mbarrier_wait(uint64_t* p, int parity) {  // returns once the phase of this parity is complete
  const char* at = home(p);
  if (!on_rank(p, self->block->rank)) fail("mbarrier_wait on an mbarrier of another block");
  Mbarrier& b = mbarrier(at, "wait");
  for (land(at, b); (int)b.phase == parity; land(at, b)) {
    block_self("mbarrier_wait", 0, at);
    self->wait_on = nullptr;
  }
}
bool mbarrier_test(uint64_t* p, int parity) {
  const char* at = home(p);
  if (!on_rank(p, self->block->rank)) fail("mbarrier_try_wait on an mbarrier of another block");
  Mbarrier& b = mbarrier(at, "try_wait");
  land(at, b);
  const bool complete = (int)b.phase != parity;
  if (!complete) yield("mbarrier_try_wait");
  return complete;
}
void fence_proxy_async() {
  require(90, "fence.proxy.async");
  self->proxy_fence = tick();
}

// ---- TMA stores: shared memory is read when the thread waits, so a tile reused too early shows
static void store(const void* map, const void* src, const int* coord, int rank, bool adds) {
  PendingStore s{tensor_map(map, src, rank), (const char*)src, {}, self->store_group, adds};
  std::copy(coord, coord + rank, s.coord);
  check_async_read(src, tile_bytes(s.map));
  self->stores.push_back(s);
}
void tma_store(const void* map, const void* src, const int* coord, int rank) { store(map, src, coord, rank, false); }
void tma_add(const void* map, const void* src, const int* coord, int rank) { store(map, src, coord, rank, true); }
template <class T> static void add_run(char* to, const char* from, size_t bytes) {
  for (T *a = (T*)to, *end = a + bytes / sizeof(T), *b = (T*)from; a < end; a++, b++) *a = T(float(*a) + float(*b));
}
static void add(const EmuTensorMap& m, char* to, const char* from, size_t bytes) {
  if (m.type == 6) add_run<__half>(to, from, bytes);
  else if (m.type == 7) add_run<float>(to, from, bytes);
  else if (m.type == 9) add_run<__nv_bfloat16>(to, from, bytes);
  else fail("TMA: the emulator adds float16, float32 and bfloat16 alone");
}
void bulk_commit() { self->store_group++; }
void bulk_wait(int pending_groups) {
  auto& s = self->stores;
  size_t n = 0;
  for (; n < s.size() && s[n].group < self->store_group - pending_groups; n++)
    for_each_run(s[n].map, s[n].coord, [&](size_t at, size_t bytes, char* global) {
      if (!global) return;
      if (s[n].adds) check_run(global, bytes, false);
      check_run(global, bytes, true);
      for_each_piece(s[n].map, (char*)s[n].src, at, bytes, [&](const char* there, size_t from, size_t take) {
        if (s[n].adds) add(s[n].map, global + from, there, take);
        else memcpy(global + from, there, take);
      });
    });
  s.erase(s.begin(), s.begin() + n);
}
}  // namespace emu
