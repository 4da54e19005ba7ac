// One launch: where shared memory lies, and the blocks or clusters one after another.
#include "engine.hpp"
#include <link.h>
#include <memory>

namespace emu {
static void poison(void* p, size_t n) {
  for (size_t i = 0; i + 1 < n; i += 2) *(uint16_t*)((char*)p + i) = EMU_POISON;
}

// __shared__ is thread_local, so all static shared arrays of a module are its one thread-local segment.
static thread_local char shared_anchor;
static int find_shared(dl_phdr_info* info, size_t, void*) {
  char* here = (char*)&launch;
  bool mine = false;
  size_t tls = 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& p = info->dlpi_phdr[i];
    if (p.p_type == PT_LOAD && here >= (char*)info->dlpi_addr + p.p_vaddr &&
        here < (char*)info->dlpi_addr + p.p_vaddr + p.p_memsz)
      mine = true;
    if (p.p_type == PT_TLS) tls = p.p_memsz;
  }
  if (mine) {
    engine.static_bytes = tls;
    engine.anchor_at = &shared_anchor - (char*)info->dlpi_tls_data;
  }
  return mine;
}
static void locate_static_shared() {       // each launch: the caller may be another OS thread
  asm volatile("" ::"r"(&shared_anchor));  // makes the segment exist
  if (!engine.static_bytes) dl_iterate_phdr(find_shared, nullptr);
  engine.static_shared = &shared_anchor - engine.anchor_at;
}
static bool is_poison(const char* p, size_t n) {
  for (size_t i = 0; i < n; i += 2)
    if (*(uint16_t*)(p + i) != EMU_POISON) return false;
  return true;
}

static const size_t GUARD = 256;  // bytes of poison behind dynamic shared memory
static size_t dynamic_bytes() { return (engine.launch->dynamic_shared + 1) & ~(size_t)1; }
void leave_shared(Block& b) {  // the other blocks of its cluster read poison from now on
  poison(b.dynamic_shared, dynamic_bytes());
  poison(at_home(b.away.data()), engine.static_bytes);
}
static void start_block(Block& b) {
  if (b.memory.empty()) b.memory.resize(256 * 1024);
  b.dynamic_shared = (char*)(((uintptr_t)b.memory.data() + 1023) & ~(uintptr_t)1023);
  poison(b.dynamic_shared, dynamic_bytes() + GUARD);
  b.away.resize(engine.static_bytes);
  poison(b.away.data(), engine.static_bytes);
  b.live = engine.threads;
  b.met = tick();
  for (Barrier& x : b.barrier) {
    x.count = 0;
    x.waiting.clear();
  }
  for (Warp& w : b.warp) {
    w.alive = w.open = w.met = w.wgmmas = w.registers = 0;
    for (Meeting& m : w.meeting) m.arrived = 0;
  }
  for (int i = 0; i < engine.threads; i++) {
    Thread& t = b.thread[i];
    unsigned x = engine.block_dim.x, y = engine.block_dim.y;
    t.tid = uint3{i % x, i / x % y, i / (x * y)};
    t.id = i;
    t.lane = i & 31;
    t.warp = &b.warp[i >> 5];
    t.block = &b;
    t.started = t.done = t.cluster_arrived = t.pending = false;
    t.wait_on = nullptr;
    t.warp->lane[t.lane] = &t;
    t.warp->alive |= 1u << t.lane;
    t.copies.clear();
    t.accumulators.clear();
    t.stores.clear();
    t.copy_group = t.wgmma_group = t.store_group = 0;
    t.wgmma_fences = t.proxy_fence = 0;
    wake(&t);
  }
}
static void inspect(const Block& b) {  // a block that is done
  const char* complaint = tensor_complaint(b);
  if (!complaint && is_poison(b.dynamic_shared + dynamic_bytes(), GUARD)) return;
  char *m = engine.launch->message, *end = m + sizeof engine.launch->message;
  m += snprintf(m, end - m, "kernel %s, block (%u,%u,%u): ", engine.kernel, b.idx.x, b.idx.y, b.idx.z);
  if (complaint) snprintf(m, end - m, "%s", complaint);
  else
    snprintf(m, end - m, "wrote past the %u bytes of dynamic shared memory of its launch",
             engine.launch->dynamic_shared);
}
static void run_cluster(uint3 first) {  // or the one block
  engine.head = engine.ready_count = engine.spins = 0;
  engine.live = engine.blocks * engine.threads;
  poison(engine.static_shared, engine.static_bytes);
  for (int r = 0; r < engine.blocks; r++) {
    Block& b = *engine.block[r];
    const unsigned x = engine.cluster_dim.x, y = engine.cluster_dim.y;
    b.rank = r;
    b.idx = uint3{first.x + r % x, first.y + r / x % y, first.z + r / (x * y)};
    start_block(b);
  }
  engine.block_idx = engine.block[0]->idx;
  engine.dynamic_shared = engine.block[0]->dynamic_shared;
  check_cluster_start();
  start_cluster();
  start_cluster_copies();
  start_cluster_tensor();
  run_threads();
  for (int r = 0; r < engine.blocks && !engine.launch->message[0]; r++) inspect(*engine.block[r]);
  self = nullptr;
}
int launch(EmuLaunch* l, const char* name, void (*call)(void**)) {
  engine.launch = l;
  engine.kernel = name;
  engine.call = call;
  engine.threads = l->block[0] * l->block[1] * l->block[2];
  engine.blocks = l->cluster[0] * l->cluster[1] * l->cluster[2];
  engine.block_dim = dim3{l->block[0], l->block[1], l->block[2]};
  engine.grid_dim = dim3{l->grid[0], l->grid[1], l->grid[2]};
  engine.cluster_dim = dim3{l->cluster[0], l->cluster[1], l->cluster[2]};
  engine.random = l->seed;
  engine.checked = engine.hooked && !l->unchecked;
  locate_static_shared();
  static std::unique_ptr<Block> blocks[EMU_CLUSTER];
  for (int r = 0; r < engine.blocks; r++) {
    if (!blocks[r]) blocks[r] = std::make_unique<Block>();
    engine.block[r] = blocks[r].get();
  }
  engine.idle_fibers.clear();
  engine.fibers = 0;  // a failed launch leaves fibers behind: start anew
  l->message[0] = 0;
  l->where = nullptr;
  catch_signals(true);
  check_launch_start();
  const unsigned gx = l->grid[0] / l->cluster[0], gy = l->grid[1] / l->cluster[1], gz = l->grid[2] / l->cluster[2];
  const uint64_t clusters = (uint64_t)gx * gy * gz;
  for (uint64_t i = 0; i < clusters && !l->message[0]; i++) {
    const uint64_t c = l->seed & 1 ? clusters - 1 - i : i;  // odd seeds: last first
    run_cluster(uint3{(unsigned)(c % gx) * l->cluster[0], (unsigned)(c / gx % gy) * l->cluster[1],
                      (unsigned)(c / gx / gy) * l->cluster[2]});
  }
  catch_signals(false);
  return l->message[0] != 0;
}

}  // namespace emu

extern "C" {
__attribute__((visibility("default"))) int emu_abi = EMU_ABI;
__attribute__((visibility("default"))) EmuKernel* emu_kernels;
}
