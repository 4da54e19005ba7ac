// Device memory of the emulated driver: one arena of host memory, poison in all that is fresh or freed, and a guard of
// poison behind every block that is looked at after each launch, synchronisation and free. Ranges of addresses that
// memory is mapped into lie behind the blocks.
#include "driver.hpp"
#include <algorithm>
#include <map>
#include <sys/mman.h>

char* arena;
size_t arena_bytes, memory_bytes;
static size_t limit;  // at most memory_bytes
uint8_t* granules;
static const size_t LARGEST_RANGES = 12;   // ranges of addresses as long as the memory for which there is room
static const size_t MAPPED_AT_ONCE = 1 << 16;  // bytes, of which what is mapped into a range is a multiple
static size_t first_range;                 // where ranges begin in the arena
static const size_t GUARD = 256;  // bytes of poison behind every block; blocks start at multiples of it
struct Block {
  size_t bytes, claimed;  // claimed <= bytes is in use, the rest is guard (a pool rounds up)
};
// Never destroyed: blocks are freed until the process is gone, after the destructors of this library too.
static auto& blocks = *new std::map<ptr, Block>;
static auto& globals = *new std::map<ptr, size_t>;
struct Mapped {
  size_t bytes;
  unsigned long long handle;
};
static auto& ranges = *new std::map<ptr, size_t>;
static auto& mapped = *new std::map<ptr, Mapped>;
static auto& created = *new std::map<unsigned long long, size_t>;  // bytes, by handle
static unsigned long long last_handle;
static size_t used, host_blocks;

__attribute__((constructor)) static void begin() {
  limit = memory_bytes = number("MEMORY", (size_t)1 << 30);
  first_range = 2 * memory_bytes + (64 << 20);  // guards and fragments
  arena_bytes = first_range + LARGEST_RANGES * (memory_bytes + MAPPED_AT_ONCE);
  auto reserve = [](size_t n) {
    return mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  arena = (char*)reserve(arena_bytes);
  granules = (uint8_t*)reserve(arena_bytes / EMU_GRANULE);
}
static const uint8_t* poison_bytes(ptr p) {  // 4096 bytes of the pattern as it stands at address p
  static uint16_t page[2049];
  if (!page[0])
    for (auto& v : page) v = EMU_POISON;
  return (uint8_t*)page + p % 2;
}
static void poison(ptr p, size_t n) {
  for (ptr end = p + n; p < end; p += 4096) memcpy((void*)p, poison_bytes(p), std::min<size_t>(4096, end - p));
}
static void set_granules(ptr p, size_t n, size_t claimed) {
  uint8_t* g = granules + (p - (ptr)arena) / EMU_GRANULE;
  for (size_t i = 0; i < (n + EMU_GRANULE - 1) / EMU_GRANULE; i++)
    g[i] = claimed >= (i + 1) * EMU_GRANULE ? EMU_GRANULE : claimed > i * EMU_GRANULE ? claimed - i * EMU_GRANULE : 0;
}
static const uint8_t* guard_broken(ptr p, const Block& b) {  // the first byte of its guard that was written to
  for (ptr i = p + b.claimed, end = p + b.bytes + GUARD; i < end; i += 4096) {
    const uint8_t *want = poison_bytes(i), *have = (uint8_t*)i;
    if (!memcmp(have, want, std::min<size_t>(4096, end - i))) continue;
    while (*have == *want) have++, want++;
    return have;
  }
  return nullptr;
}
std::string guards_broken() {  // names the first block whose guard was written to; mends all, so that it is told once
  std::string text;
  for (auto& [p, b] : blocks)
    if (const uint8_t* at = guard_broken(p, b)) {
      if (text.empty())
        text = "out-of-bounds write: byte " + std::to_string((ptr)at - p) + " of a device block of " +
               std::to_string(b.claimed) + " bytes was overwritten; last kernel: " + last_kernel;
      poison(p + b.claimed, b.bytes + GUARD - b.claimed);
    }
  return text;
}
static bool inside(ptr p, size_t n) {
  auto it = blocks.upper_bound(p);
  if (it != blocks.begin() && (--it, p + n <= it->first + it->second.claimed)) return true;
  auto g = globals.upper_bound(p);
  return g != globals.begin() && (--g, p + n <= g->first + g->second);
}
void add_global(ptr p, size_t n) { globals[p] = n; }
std::string memory_report() {
  return "live device blocks " + std::to_string(blocks.size()) + " (" + std::to_string(used) +
         " bytes), live host blocks " + std::to_string(host_blocks);
}

extern "C" {
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = limit - std::min(limit, used);
  *total = limit;
  return OK;
}
// Makes the device smaller than it is, so that running out of memory can be tested; 0: as large as it was.
int emuSetMemory(size_t bytes) {
  limit = bytes ? std::min(bytes, memory_bytes) : memory_bytes;
  return OK;
}
int cuMemAlloc_v2(ptr* out, size_t n) {
  LOCKED;
  if (const int refused = not_in_capture("cuMemAlloc")) return refused;
  if (n == 0) return error(INVALID_VALUE, "cuMemAlloc of 0 bytes");
  if (used + n > limit) return OUT_OF_MEMORY;
  size_t need = (n + GUARD + GUARD - 1) / GUARD * GUARD;
  ptr at = (ptr)arena + GUARD;
  for (auto& [p, b] : blocks) {  // first gap that fits
    if (p - at >= need) break;
    at = p + (b.bytes + GUARD + GUARD - 1) / GUARD * GUARD;
  }
  poison(at, n + GUARD);
  set_granules(at, need, n);
  blocks[at] = {n, n};
  used += n;
  *out = at;
  if (number("LOG", 0)) fprintf(stderr, "  cuMemAlloc %zu (used %zu)\n", n, used);
  return OK;
}
// A pool hands out blocks larger than asked for. This call says how many bytes its user asked for: they are poisoned
// afresh, and the rest becomes guard. Optional; without it an overrun inside the rounding goes unseen.
int emuClaim(ptr p, size_t n) {
  LOCKED;
  auto it = blocks.find(p);
  if (it == blocks.end() || n > it->second.bytes)
    return error(INVALID_VALUE, "emuClaim: not the start of a block, or too long");
  it->second.claimed = n;
  poison(p, it->second.bytes);
  set_granules(p, it->second.bytes, n);
  return OK;
}
int cuMemFree_v2(ptr p) {
  LOCKED;
  if (const int refused = not_in_capture("cuMemFree")) return refused;
  std::string e = guards_broken();
  auto it = blocks.find(p);
  if (it == blocks.end()) return error(INVALID_VALUE, "cuMemFree: not an allocated block (freed twice?)");
  poison(p, it->second.bytes);  // a stale pointer reads NaN
  set_granules(p, it->second.bytes, 0);
  used -= it->second.bytes;
  blocks.erase(it);
  return e.empty() ? OK : error(LAUNCH_FAILED, e);
}
// Ranges of addresses, into which memory is mapped. What lies side by side is one block.
int cuMemGetAllocationGranularity(size_t* bytes, const void*, int) {
  *bytes = MAPPED_AT_ONCE;
  return OK;
}
int cuMemAddressReserve(ptr* out, size_t n, size_t, ptr, unsigned long long) {
  LOCKED;
  if (n == 0 || n % MAPPED_AT_ONCE)
    return error(INVALID_VALUE, "cuMemAddressReserve: not a multiple of the granularity");
  ptr at = ((ptr)arena + first_range + MAPPED_AT_ONCE - 1) / MAPPED_AT_ONCE * MAPPED_AT_ONCE;
  for (auto& [p, bytes] : ranges) {  // first gap that fits, with room for a guard
    if (p - at >= n + MAPPED_AT_ONCE) break;
    at = p + bytes + MAPPED_AT_ONCE;
  }
  if (at + n + MAPPED_AT_ONCE > (ptr)arena + arena_bytes) return OUT_OF_MEMORY;
  ranges[*out = at] = n;
  return OK;
}
int cuMemAddressFree(ptr p, size_t n) {
  LOCKED;
  auto it = ranges.find(p);
  if (it == ranges.end() || it->second != n) return error(INVALID_VALUE, "cuMemAddressFree: not a range");
  auto inner = mapped.lower_bound(p);
  if (inner != mapped.end() && inner->first < p + n) return error(INVALID_VALUE, "cuMemAddressFree: still mapped");
  ranges.erase(it);
  return OK;
}
int cuMemCreate(unsigned long long* handle, size_t n, const void*, unsigned long long) {
  LOCKED;
  if (const int refused = not_in_capture("cuMemCreate")) return refused;
  if (n == 0 || n % MAPPED_AT_ONCE) return error(INVALID_VALUE, "cuMemCreate: not a multiple of the granularity");
  if (used + n > limit) return OUT_OF_MEMORY;
  used += n;
  created[*handle = ++last_handle] = n;
  return OK;
}
int cuMemRelease(unsigned long long handle) {
  LOCKED;
  if (const int refused = not_in_capture("cuMemRelease")) return refused;
  auto it = created.find(handle);
  if (it == created.end()) return error(INVALID_VALUE, "cuMemRelease: not a handle (released twice?)");
  for (auto& [p, m] : mapped)
    if (m.handle == handle) return error(INVALID_VALUE, "cuMemRelease: still mapped");
  used -= it->second;
  created.erase(it);
  return OK;
}
int cuMemMap(ptr p, size_t n, size_t offset, unsigned long long handle, unsigned long long) {
  LOCKED;
  if (const int refused = not_in_capture("cuMemMap")) return refused;
  auto range = ranges.upper_bound(p);
  if (range == ranges.begin() || (--range, p + n > range->first + range->second) || p % MAPPED_AT_ONCE)
    return error(INVALID_VALUE, "cuMemMap: not inside a range");
  if (!created.count(handle) || offset || created[handle] != n)
    return error(INVALID_VALUE, "cuMemMap: not the whole of what a handle is of");
  for (auto& [q, m] : mapped)
    if (m.handle == handle || (p < q + m.bytes && q < p + n)) return error(INVALID_VALUE, "cuMemMap: mapped already");
  mapped[p] = {n, handle};
  return OK;
}
int cuMemSetAccess(ptr p, size_t n, const void*, size_t) {
  LOCKED;
  if (!mapped.count(p) || mapped[p].bytes != n) return error(INVALID_VALUE, "cuMemSetAccess: not what was mapped");
  auto next = blocks.find(p + n);
  const size_t behind = next == blocks.end() ? 0 : next->second.bytes;
  if (behind) blocks.erase(next);
  poison(p, n + (behind ? 0 : GUARD));
  set_granules(p, n, n);
  auto before = blocks.lower_bound(p);
  if (before != blocks.begin() && (--before, before->first + before->second.bytes == p)) {
    before->second.bytes = before->second.claimed += n + behind;
  } else {
    blocks[p] = {n + behind, n + behind};
  }
  return OK;
}
int cuMemUnmap(ptr p, size_t n) {
  LOCKED;
  if (const int refused = not_in_capture("cuMemUnmap")) return refused;
  if (!mapped.count(p) || mapped[p].bytes != n) return error(INVALID_VALUE, "cuMemUnmap: not what was mapped");
  std::string e = guards_broken();
  mapped.erase(p);
  if (!inside(p, n)) return OK;  // nobody was given access
  poison(p, n);
  set_granules(p, n, 0);
  auto it = --blocks.upper_bound(p);
  const ptr begin = it->first, end = begin + it->second.bytes;
  blocks.erase(it);
  if (begin < p) blocks[begin] = {p - begin, p - begin};
  if (p + n < end) blocks[p + n] = {end - p - n, end - p - n};
  return e.empty() ? OK : error(LAUNCH_FAILED, e);
}
int cuMemHostAlloc(void** p, size_t n, unsigned) {
  if (const int refused = not_in_capture("cuMemHostAlloc")) return refused;
  *p = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
  host_blocks++;
  return OK;
}
int cuMemFreeHost(void* p) {
  if (const int refused = not_in_capture("cuMemFreeHost")) return refused;
  free(p);
  host_blocks--;
  return OK;
}
static int copy(void* stream, ptr d, ptr s, size_t n, bool to_device, bool from_device) {
  LOCKED;
  if ((to_device && !inside(d, n)) || (from_device && !inside(s, n)))
    return error(INVALID_VALUE, "copy of " + std::to_string(n) + " bytes runs outside its device block");
  return submit(stream, [=] {
    memmove((void*)d, (void*)s, n);
    return OK;
  });
}
int cuMemcpyHtoD_v2(ptr d, const void* s, size_t n) { return copy(nullptr, d, (ptr)s, n, true, false); }
int cuMemcpyDtoH_v2(void* d, ptr s, size_t n) { return copy(nullptr, (ptr)d, s, n, false, true); }
int cuMemcpyDtoD_v2(ptr d, ptr s, size_t n) { return copy(nullptr, d, s, n, true, true); }
int cuMemcpyHtoDAsync_v2(ptr d, const void* s, size_t n, void* on) { return copy(on, d, (ptr)s, n, true, false); }
int cuMemcpyDtoHAsync_v2(void* d, ptr s, size_t n, void* on) { return copy(on, (ptr)d, s, n, false, true); }
int cuMemcpyDtoDAsync_v2(ptr d, ptr s, size_t n, void* on) { return copy(on, d, s, n, true, true); }
}
template <class T>
static int fill(void* stream, ptr d, T v, size_t n) {
  LOCKED;
  if (!inside(d, n * sizeof v)) return error(INVALID_VALUE, "memset runs outside its device block");
  return submit(stream, [=] {
    for (size_t i = 0; i < n; i++) ((T*)d)[i] = v;
    return OK;
  });
}
extern "C" {
int cuMemsetD8_v2(ptr d, uint8_t v, size_t n) { return fill(nullptr, d, v, n); }
int cuMemsetD16_v2(ptr d, uint16_t v, size_t n) { return fill(nullptr, d, v, n); }
int cuMemsetD32_v2(ptr d, uint32_t v, size_t n) { return fill(nullptr, d, v, n); }
int cuMemsetD8Async(ptr d, uint8_t v, size_t n, void* on) { return fill(on, d, v, n); }
int cuMemsetD16Async(ptr d, uint16_t v, size_t n, void* on) { return fill(on, d, v, n); }
int cuMemsetD32Async(ptr d, uint32_t v, size_t n, void* on) { return fill(on, d, v, n); }
}
