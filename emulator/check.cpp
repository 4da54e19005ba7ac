// The checked build: g++ -fsanitize=thread calls a hook at every load and store, and instead of the sanitizer's runtime
// the hooks are ours. Device memory: is the address allocated, and does another block use it without atomics? Shared
// memory: is it inside the launch's arrays, written, landed, and is there a barrier between two threads' accesses?
#include "engine.hpp"
#include <algorithm>
#include <sys/mman.h>

namespace emu {
// ---- shared memory: one cell per 4 bytes, with the last write and the last reads since the block began ------------
// When: the engine's clock counts meetings, of warps, blocks and clusters; what came before the last one is in order.
struct Access {
  unsigned time;
  short thread;                                // 1024 x rank + one of the threads of that block, -1: none yet
  uint8_t bytes : 4, lanes : 1, warps : 1;     // which of the four; by several lanes of that warp, by several warps
};
struct Cell {  // one that was written before its cluster began is as good as new
  Access write, read;
  unsigned proxy_time;  // when an ordinary write came, for fences of the asynchronous proxy; 0: TMA wrote it
  uint8_t written : 4, in_flight : 4;
};
struct Shadow {
  const char* name;
  char* base;  // home, see engine.hpp
  size_t bytes;
  unsigned rank;
  std::vector<Cell> cells;
  std::vector<uint64_t> quiet;  // of each cell: whose reads, and until when, tell nothing new; see is_quiet
};
static Shadow shadow[EMU_CLUSTER][2];  // [rank][static, dynamic]
static unsigned cluster_began;

static void reset(Shadow& s, unsigned rank, const char* name, char* base, size_t n) {
  s.rank = rank;
  s.name = name;
  s.base = base;
  s.bytes = n;
  if (s.cells.size() >= (n + 3) / 4 + 1) return;
  s.cells.resize((n + 3) / 4 + 1);
  s.quiet.resize(s.cells.size());
}
static Cell& cell(Shadow& s, size_t i) {
  Cell& c = s.cells[i];
  if (c.write.time < cluster_began) {
    const Access none{cluster_began, -1, 0, false, false};
    c = {none, none, 0, 0, 0};
  }
  return c;
}
static Shadow* shadow_of(const char* home) {
  const int own = self->block->rank;
  for (int i = 0; i < engine.blocks; i++) {  // its own block first
    Shadow* s = shadow[own + i < engine.blocks ? own + i : own + i - engine.blocks];
    for (int k : {1, 0})
      if ((size_t)(home - s[k].base) < s[k].bytes) return &s[k];
  }
  return nullptr;
}
static Thread& thread_of(const Access& a) { return engine.block[a.thread / 1024]->thread[a.thread % 1024]; }
struct Now {  // who accesses, and when
  unsigned time, warp_met, block_met;
  short thread;
};
static Now now() {
  const Block& b = *self->block;
  return {engine.clock, self->warp->met, b.met, (short)(b.rank * 1024 + self->id)};
}
static bool same_block(const Access& a, const Now& by) { return a.thread >> 10 == by.thread >> 10; }  // none: of none
static bool same_warp(const Access& a, const Now& by) { return a.thread >> 5 == by.thread >> 5; }
// A block-wide barrier orders two accesses, within a warp any full-warp operation does, and between blocks a meeting of
// their cluster.
static bool unordered(const Access& a, uint8_t bytes, const Now& by) {
  if (!(a.bytes & bytes) || a.thread < 0) return false;
  if (!same_block(a, by)) return a.time >= engine.cluster_met;
  if (a.time < by.block_met) return false;
  if (a.warps || !same_warp(a, by)) return true;
  return a.time >= by.warp_met && (a.lanes || a.thread != by.thread);
}
[[noreturn]] static void race(const Shadow& s, size_t at, const char* now, const char* before, const Access& a) {
  const uint3 t = thread_of(a).tid;
  char other[40] = "";
  if (a.thread / 1024 != (int)self->block->rank) snprintf(other, sizeof other, " of rank %d", a.thread / 1024);
  fail("race on %s, byte %zu: it %s what thread (%u,%u,%u)%s%s %s, with no barrier between", s.name, at, now, t.x, t.y,
       t.z, other, a.lanes || a.warps ? " and others" : "", before);
}
static void record(Access& a, uint8_t bytes, const Now& by) {
  const bool since = same_block(a, by) && a.time >= by.block_met;
  if (since && a.time >= engine.cluster_met && !(bytes & ~a.bytes) &&
      (a.warps || (same_warp(a, by) && a.time >= by.warp_met && (a.lanes || a.thread == by.thread))))
    return;  // it would say nothing new
  bool lanes = false, warps = false;
  if (since && (a.thread == by.thread || (a.bytes & bytes))) {  // disjoint bytes of another thread: keep the newer only
    lanes = a.lanes;
    warps = a.warps;
    if (!same_warp(a, by)) warps = true;
    else if (a.time < by.warp_met) lanes = false;
    else if (a.thread != by.thread) lanes = true;
    bytes |= a.bytes;
  }
  a = {by.time, by.thread, bytes, lanes, warps};
}
// Ordinary writes reach TMA and wgmma by a fence of the writer, or of the reader after they met.
static bool fenced_for_async(const Cell& c) {
  return !c.proxy_time || thread_of(c.write).proxy_fence > c.proxy_time || self->proxy_fence > c.proxy_time;
}
enum Kind { READ, WRITE, ASYNC_READ };
// Most reads find what others read before: bytes that a barrier has ordered since they were written. Once several lanes
// of a warp have read a word, another lane's read says nothing new until the warp meets; once several warps have, no
// thread's does until the block meets. `quiet` keeps that beside the cells, a third of their size: when it was noted,
// and below it the warp, or one of these two.
static const uint32_t ANY = ~0u, ANY_ASYNC = ~1u;  // any thread of the block; also TMA and wgmma
static bool is_quiet(const Shadow& s, size_t i, Kind kind) {
  const unsigned noted = s.quiet[i] >> 32, whose = (uint32_t)s.quiet[i];
  if (noted < self->block->met) return false;
  return whose == ANY_ASYNC ||
         (kind == READ && (whose == ANY || (whose == (unsigned)self->id / 32 && noted >= self->warp->met)));
}
static void note_read(Shadow& s, size_t i, const Cell& c, const Now& by) {
  const Access &r = c.read, &w = c.write;
  const bool ordered = w.thread < 0 || w.time < (same_block(w, by) ? by.block_met : engine.cluster_met);
  const bool all = c.written == 15 && !c.in_flight && r.bytes == 15 && same_block(r, by);
  if (!all || !ordered || !(r.warps || r.lanes)) return;
  const uint32_t whose = !r.warps ? self->id / 32 : c.proxy_time ? ANY : ANY_ASYNC;
  s.quiet[i] = (uint64_t)by.time << 32 | whose;
}
static void shared_access(Shadow& s, size_t at, size_t n, Kind kind) {
  const bool write = kind == WRITE, own = s.rank == self->block->rank;
  if (own && !write && !engine.in_atomic) {
    size_t i = at / 4;
    while (i <= (at + n - 1) / 4 && is_quiet(s, i, kind)) i++;
    if (i > (at + n - 1) / 4) return;
  }
  const Now by = now();
  for (size_t i = at / 4; i <= (at + n - 1) / 4; i++) {
    Cell& c = cell(s, i);
    const size_t low = i * 4 < at ? at - i * 4 : 0, high = std::min<size_t>(4, at + n - i * 4);
    const uint8_t bytes = (1 << high) - (1 << low);
    if (c.in_flight & bytes)
      fail("it %s %s, byte %zu, where an asynchronous copy has not landed: missing or misplaced wait",
           write ? "writes" : "reads", s.name, i * 4 + low);
    if (!write && (bytes & ~c.written)) fail("uninitialised read of %s, byte %zu", s.name, i * 4 + low);
    if (kind == ASYNC_READ && !fenced_for_async(c))
      fail("%s, byte %zu, was written without fence_proxy_async before TMA or wgmma read it", s.name, i * 4 + low);
    if (write) {
      c.written |= bytes;
      c.proxy_time = by.time;
      s.quiet[i] = 0;
    }
    if (engine.in_atomic) continue;  // atomics do not race with each other; a race with a plain access goes unseen
    if (unordered(c.write, bytes, by)) race(s, i * 4 + low, write ? "overwrites" : "reads", "wrote", c.write);
    if (write) {
      if (unordered(c.read, bytes, by)) race(s, i * 4 + low, "overwrites", "read", c.read);
    }
    record(write ? c.write : c.read, bytes, by);
    if (own && !write) note_read(s, i, c, by);
  }
}
template <class F>
static void each_cell(const void* p, size_t n, F f) {
  Shadow* s = shadow_of(home(p));
  if (!s) return;
  size_t at = home(p) - s->base;
  for (size_t i = at / 4; i < (at + n) / 4; i++) {
    s->quiet[i] = 0;
    f(cell(*s, i));
  }
}
void mark_in_flight(const void* p, size_t n) {
  if (engine.checked) each_cell(p, n, [](Cell& c) { c.in_flight = 15; });
}
void mark_landed(const void* p, size_t n) {
  if (!engine.checked) return;
  const Now by = now();
  each_cell(p, n, [&](Cell& c) {
    c.in_flight = 0;
    c.written = 15;
    c.write = {by.time, by.thread, 15, false, false};
    c.proxy_time = 0;
  });
}

// ---- device memory: one word per 4 bytes names the block that wrote it in this launch ------------------------------
// Blocks run in any order on a device, so a word written by one and touched by another is a race, unless the kernel
// orders them itself: atomics are exempt, and after a __threadfence() reads are trusted.
static uint32_t* writer;  // launch serial (8 bits), block + 1 (24 bits)
static uint32_t serial;
static inline void global_access(const char* p, size_t at, size_t n, bool write) {
  for (size_t i = at; i < at + n;) {
    const size_t in = i % EMU_GRANULE, take = std::min(at + n - i, EMU_GRANULE - in);
    if (in + take > engine.launch->granules[i / EMU_GRANULE])
      fail("out-of-bounds %s of %zu bytes at %p in device memory", write ? "write" : "read", n, (const void*)p);
    i += take;
  }
  if (engine.in_atomic || n < 4) return;  // neighbours of 1 or 2 bytes may belong to two blocks
  const uint32_t me = self->block->writer;
  for (size_t i = at / 4; i <= (at + n - 1) / 4; i++) {
    if (writer[i] != me && writer[i] >> 24 == me >> 24 && !(engine.fenced && !write))
      fail("race between blocks: it %s device memory at %p that block number %u wrote in this launch",
           write ? "overwrites" : "reads", (const void*)p, (writer[i] & 0xFFFFFF) - 1);
    if (write) writer[i] = me;
  }
}
static const char* stacks;
static size_t stack_bytes;
void check_launch_start() {
  if (!engine.checked) return;
  stacks = engine.launch->stacks.base;
  stack_bytes = engine.launch->stacks.bytes_each * engine.launch->stacks.count;
  if (!writer)
    writer = (uint32_t*)mmap(nullptr, engine.launch->arena_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (++serial % 256 == 0) {
    madvise(writer, engine.launch->arena_bytes, MADV_DONTNEED);
    serial++;
  }  // serials start again
  engine.fenced = engine.in_atomic = false;
  if (engine.clock >> 31) {  // times start again
    for (auto& of_block : shadow)
      for (Shadow& s : of_block) s.cells.clear(), s.quiet.clear();
    engine.clock = engine.cluster_met = 0;
  }
}
void check_cluster_start() {
  if (!engine.checked) return;
  cluster_began = tick();
  for (int r = 0; r < engine.blocks; r++) {
    Block& b = *engine.block[r];
    const unsigned number = (b.idx.z * engine.grid_dim.y + b.idx.y) * engine.grid_dim.x + b.idx.x;
    b.writer = (serial & 255) << 24 | ((number + 1) & 0xFFFFFF);
    char* base = engine.blocks == 1 ? engine.static_shared : b.away.data();
    reset(shadow[r][0], r, "static shared memory", base, engine.static_bytes);
    reset(shadow[r][1], r, "dynamic shared memory", b.dynamic_shared, engine.launch->dynamic_shared);
  }
}

// ---- a thread's own stack, where only registers of a wgmma are watched -----------------------------------------------
static void stack_access(const char* p, bool write) {
  for (const Accumulator& a : self->accumulators)
    if (a.pending && p >= (const char*)a.d && p < (const char*)(a.d + a.value.size()))
      fail("it %s accumulator %zu of a wgmma before wgmma_wait", write ? "writes" : "reads",
           (size_t)(p - (const char*)a.d) / sizeof(float));
}

// ---- every access ---------------------------------------------------------------------------------------------
static void access(const char* p, size_t n, Kind kind) {
  const bool write = kind == WRITE;
  size_t at = p - engine.launch->arena;
  if (at < engine.launch->arena_bytes) return global_access(p, at, n, write);
  const char* q = engine.blocks == 1 ? p : home(p);
  if (Shadow* s = shadow_of(q)) {
    if (s->rank != self->block->rank) require_remote(s->rank, write ? "a store" : "a load");
    if (q + n > s->base + s->bytes)
      fail("out-of-bounds %s of %zu bytes at the end of %s", write ? "write" : "read", n, s->name);
    return shared_access(*s, q - s->base, n, kind);
  }
  if ((size_t)(p - engine.dynamic_shared) < 227 * 1024)
    fail("out-of-bounds %s of %zu bytes at byte %zu of dynamic shared memory: the launch asked for %u",
         write ? "write" : "read", n, (size_t)(p - engine.dynamic_shared), engine.launch->dynamic_shared);
}
void check_access(const void* p, size_t n, bool write) {
  if (!engine.checked) return;
  engine.launch->where = nullptr;  // not a load or store of the kernel's own
  access((const char*)p, n, write ? WRITE : READ);
}
void check_async_read(const void* p, size_t n) {
  if (!engine.checked) return;
  engine.launch->where = nullptr;
  access((const char*)p, n, ASYNC_READ);
}
static inline void hook(void* p, size_t n, bool write, void* pc) {
  if (!engine.checked) return;
  const bool on_stack = (size_t)((char*)p - stacks) < stack_bytes;
  if (on_stack && !self->pending) return;  // most accesses
  if (!self) return;                       // constructors of the module
  engine.launch->where = pc;               // becomes file and line if the access fails
  if (on_stack) return stack_access((char*)p, write);
  access((char*)p, n, write ? WRITE : READ);
}
#define HOOK(name, n, write) \
  extern "C" void __tsan_##name(void* p) { hook(p, n, write, __builtin_return_address(0)); }
#define HOOKS(n) \
  HOOK(read##n, n, false) HOOK(write##n, n, true) HOOK(unaligned_read##n, n, false) HOOK(unaligned_write##n, n, true)
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16) extern "C" void __tsan_read_range(void* p, size_t n) {
  hook(p, n, false, __builtin_return_address(0));
}
extern "C" void __tsan_write_range(void* p, size_t n) { hook(p, n, true, __builtin_return_address(0)); }
extern "C" void __tsan_vptr_update(void**, void*) {}
extern "C" void __tsan_init() {}
}  // namespace emu
