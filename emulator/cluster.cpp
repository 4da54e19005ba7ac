// Clusters of blocks: where their shared memory lies, and the barrier that they meet at.
#include "emu_ptx.hpp"

namespace emu {
static bool inside(const void* p, const char* base, size_t n) { return (size_t)((const char*)p - base) < n; }
char* home(const void* p) {
  if (engine.blocks == 1 || !inside(p, engine.static_shared, engine.static_bytes)) return (char*)p;
  return self->block->away.data() + ((const char*)p - engine.static_shared);
}
char* at_home(const void* p) {
  if (engine.blocks == 1 || !inside(p, self->block->away.data(), engine.static_bytes)) return (char*)p;
  return engine.static_shared + ((const char*)p - self->block->away.data());
}
char* on_rank(const void* p, unsigned rank) {
  if (inside(p, engine.static_shared, engine.static_bytes))
    return engine.blocks == 1 ? (char*)p : engine.block[rank]->away.data() + ((const char*)p - engine.static_shared);
  if (inside(p, engine.dynamic_shared, engine.launch->dynamic_shared))
    return engine.block[rank]->dynamic_shared + ((const char*)p - engine.dynamic_shared);
  return nullptr;
}
void require_remote(unsigned rank, const char* what) {
  if (rank >= (unsigned)engine.blocks)
    fail("%s: there is no rank %u in a cluster of %d", what, rank, engine.blocks);
  if (rank == self->block->rank) return;
  if (!engine.cluster_phase) fail("%s to rank %u before any cluster barrier: it may not have begun", what, rank);
  if (!engine.block[rank]->live) fail("%s to rank %u, which has returned", what, rank);
}

unsigned cluster_rank() { return self->block->rank; }
unsigned cluster_size() { return engine.blocks; }
void* cluster_map(const void* p, int rank) {
  require(90, "mapa");
  if (rank < 0 || rank >= engine.blocks) fail("mapa: there is no rank %d in a cluster of %d", rank, engine.blocks);
  const char* there = on_rank(p, rank);
  if (!there) fail("mapa: %p is not in this block's shared memory", p);
  return at_home(there);
}

// ---- the barrier: complete when every thread of the cluster that has not returned has arrived
void start_cluster() { engine.cluster_phase = engine.cluster_arrivals = 0; }
static void complete_if_all_arrived() {
  if (!engine.live || engine.cluster_arrivals < (unsigned)engine.live) return;
  engine.cluster_phase++;
  engine.cluster_arrivals = 0;
  engine.cluster_met = tick();
  for (int r = 0; r < engine.blocks; r++) {
    Block& b = *engine.block[r];
    b.met = engine.cluster_met;
    for (int i = 0; i < engine.threads; i++)
      if (b.thread[i].wait_on == &engine.cluster_phase) {
        b.thread[i].wait_on = nullptr;
        wake(&b.thread[i]);
      }
  }
}
void cluster_thread_left() {
  if (self->cluster_arrived && self->cluster_phase == engine.cluster_phase) engine.cluster_arrivals--;
  if (engine.cluster_arrivals) complete_if_all_arrived();
}
void cluster_arrive() {
  require(90, "barrier.cluster");
  meet(~0u, "cluster_arrive", nullptr, [](Meeting&) {});
  if (self->cluster_arrived) fail("cluster_arrive twice without cluster_wait");
  self->cluster_arrived = true;
  self->cluster_phase = engine.cluster_phase;
  engine.cluster_arrivals++;
  complete_if_all_arrived();
}
void cluster_wait() {
  if (!self->cluster_arrived) fail("cluster_wait without cluster_arrive");
  if (self->cluster_phase == engine.cluster_phase) block_self("cluster_wait", 0, &engine.cluster_phase);
  self->cluster_arrived = false;
}
}  // namespace emu
