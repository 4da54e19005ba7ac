// What a kernel module shares with the engine: the state of the block that runs, and the few calls into it.
// One OS thread runs everything, blocks one after another, so there are no locks.
#pragma once
#include "abi.h"
#include <algorithm>
#include <stdio.h>
#include <string.h>
#include <utility>
#include <vector>
#include <vector_types.h>

namespace emu {
struct Warp;
struct Block;
struct AsyncCopy {
  char* dst;
  const char* src;
  int bytes, valid, group;
};  // cp.async that has not landed yet
struct Accumulator {
  float* d;
  int group;
  unsigned fences;
  bool pending;
  std::vector<float> value;
};  // registers of wgmma: pending, their value is not visible yet; else it is what the last wait left in them
struct PendingStore {
  EmuTensorMap map;
  const char* src;
  int coord[5], group;
  bool adds;
};  // TMA store that has not read its tile yet

struct Thread {
  void* sp;
  uint3 tid;
  int id, lane;
  Warp* warp;
  Block* block;
  bool started, done;
  const char* wait;
  int wait_line;
  const void* wait_on;  // where it is blocked, for the deadlock report
  std::vector<AsyncCopy> copies;
  int copy_group;
  std::vector<Accumulator> accumulators;
  int wgmma_group;
  bool pending;           // an accumulator is
  unsigned wgmma_fences;  // how many this thread has executed
  unsigned proxy_fence;   // when it executed the last fence of the asynchronous proxy
  std::vector<PendingStore> stores;
  int store_group;
  unsigned cluster_phase;  // the phase of the cluster barrier that it has arrived in
  bool cluster_arrived;    // and not waited for yet
};
struct Meeting {  // lanes gathering for one warp-wide operation
  unsigned mask, arrived;
  const char* op;
  void (*run)(Meeting&);
  void* arg[32];
};
struct Warp {
  unsigned alive, met, open;  // met: when all of it did last, see Engine::clock
  unsigned wgmmas, registers;  // issued; per thread since setmaxnreg, 0: never asked for
  Thread* lane[32];
  Meeting meeting[16];
};  // 16 pairs can meet at a time
struct Barrier {
  int count, line, expected;
  std::vector<Thread*> waiting;
};
struct Block {
  uint3 idx;
  unsigned rank, met;  // in its cluster; when all of it met last
  uint32_t writer;     // its name in what check.cpp knows of device memory
  int live, vote;
  Thread thread[1024];
  Warp warp[32];
  Barrier barrier[16];  // 0 is __syncthreads
  char* dynamic_shared;
  std::vector<char> memory;  // holds dynamic_shared
  std::vector<char> away;    // its static shared memory while another block of its cluster runs
};

struct Engine {
  EmuLaunch* launch;
  const char* kernel;
  uint3 block_idx;  // of the block that runs
  dim3 block_dim, grid_dim, cluster_dim;
  void* main_sp;
  int threads, blocks, live;  // threads of a block; blocks of a cluster, and its threads that have not returned
  bool hooked, checked;       // built with the hooks of check.cpp; and are they to check?
  bool fenced, in_atomic;
  unsigned random, spins;                     // spins: how often threads yielded since one did anything else
  unsigned clock, cluster_met;                // meetings of any kind so far, and fences; when blocks met last
  unsigned cluster_phase, cluster_arrivals;   // of the cluster barrier
  Block* block[EMU_CLUSTER];                  // the blocks of the cluster, by rank
  Thread* ready[EMU_CLUSTER * 1024];          // ring of threads that can go on
  unsigned head, ready_count;
  std::vector<void*> idle_fibers;
  int fibers;
  char *dynamic_shared, *static_shared;  // of the block that runs
  size_t static_bytes, anchor_at;
  void (*call)(void**);
  void* args[EMU_ARGUMENTS];
};
extern Engine engine;
extern Thread* self;
inline unsigned tick() { return ++engine.clock; }

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);
// Fails on a device that lacks an instruction: on those before a class; `alone`: on all of other classes.
inline void require(unsigned arch, const char* what, bool alone = false) {
  const unsigned here = engine.launch->arch;
  if (here < arch || (alone && here != arch))
    fail("%s needs sm_%u%s, the device is sm_%u", what, arch, alone ? "a" : "", here);
}
void wake(Thread*);                                                         // may go on
void block_self(const char* what, int line = 0, const void* on = nullptr);  // returns once another thread wakes us
void yield(const char* what);
void barrier(int id, int count, const char* what, int line, bool wait = true);
// A warp-wide operation: every lane of mask brings its argument; the last to come runs it for all of them.
void meet(unsigned mask, const char* op, void* arg, void (*run)(Meeting&));
void run_threads();  // those of a cluster, to the end or to the first failure
void catch_signals(bool on);
int launch(EmuLaunch*, const char* name, void (*call)(void**));
void leave_shared(Block&);  // a block of a cluster is done

// A block's static arrays are in one place while it runs and in another while it does not: its home, by which all
// blocks of its cluster know a byte. Everything else stays where it is. home: from an address as the running block sees
// it; at_home: the way back; on_rank: the home of the same byte of another block, nullptr if it is not shared memory.
char* home(const void*);
char* at_home(const void* home);
char* on_rank(const void*, unsigned rank);
void require_remote(unsigned rank, const char* what);  // fails where that block's shared memory may not be touched
void cluster_thread_left();
void start_cluster();

// Memory touched on a thread's behalf (cp.async, ldmatrix, TMA): checked like its own loads and stores.
void check_access(const void*, size_t bytes, bool write);
void check_async_read(const void*, size_t bytes);  // by TMA or wgmma: also, is there a fence after ordinary writes?
void mark_in_flight(const void*, size_t bytes);  // shared bytes that an asynchronous copy will write,
void mark_landed(const void*, size_t bytes);     // and has written
void check_launch_start();
void check_cluster_start();
void start_cluster_copies();  // copy.cpp, tensor.cpp: forget what the last blocks left in flight
void start_cluster_tensor();
const char* tensor_complaint(const Block&);  // about a block that is done, or nullptr

// ---- arguments and registration
template <auto Entry, class... Args, size_t... Index>
void call_with(void** p, std::index_sequence<Index...>) {
  Entry(*(Args*)p[Index]...);
}
// Arguments begin at 0x210 of a bank. Where the first has an alignment of 128 bytes, ptxas moves all: it has it there.
constexpr size_t BANK = 0x210 % 128;
template <class... Args>
constexpr size_t moved = std::max({size_t(1), alignof(Args)...}) > 64 ? 128 - BANK : 0;
template <class... Args, class Function>
constexpr size_t each_argument(Function f) {  // f(index, offset, bytes); returns the bytes of all
  size_t at = 0, i = 0;
  ((at = (at + alignof(Args) - 1) / alignof(Args) * alignof(Args), f(i++, moved<Args...> + at, sizeof(Args)),
    at += sizeof(Args)), ...);
  return moved<Args...> + at;
}
// An object of this type before an ALPHA_KERNEL takes the kernel's __launch_bounds__.
inline unsigned bounds_of_next[2];
struct LaunchBounds {
  explicit LaunchBounds(unsigned threads, unsigned blocks = 0) { bounds_of_next[0] = threads, bounds_of_next[1] = blocks; }
};
template <auto Entry, class... Args>
struct Launcher {
  static inline const char* name;
  static void call(void** p) { call_with<Entry, Args...>(p, std::index_sequence_for<Args...>()); }
  static void pack(void** params, char* to) {
    each_argument<Args...>([=](size_t i, size_t at, size_t n) { memcpy(to + at, params[i], n); });
  }
  static int launch(EmuLaunch* l) {
    if (moved<Args...>) {
      memmove(l->arguments + BANK, l->arguments, each_argument<Args...>([](size_t, size_t, size_t) {}));
      l->arguments += BANK;
    }
    each_argument<Args...>([=](size_t i, size_t at, size_t) { engine.args[i] = l->arguments + at; });
    return emu::launch(l, name, call);
  }
  static EmuKernel kernel(const uint3& cluster) {
    return {name, {cluster.x, cluster.y, cluster.z}, {bounds_of_next[0], bounds_of_next[1]}, sizeof...(Args),
            each_argument<Args...>([](size_t, size_t, size_t) {}), pack, launch, nullptr};
  }
};
template <auto Entry, class... Args>
Launcher<Entry, Args...> launcher_of(void (*)(Args...));

// __cluster_dims__ becomes an object of this type before the kernel; the ALPHA_KERNEL after the kernel takes its dims.
inline uint3 cluster_of_next;
struct ClusterDims {
  explicit ClusterDims(unsigned x = 1, unsigned y = 1, unsigned z = 1) { cluster_of_next = {x, y, z}; }
};

extern "C" __attribute__((visibility("default"))) EmuKernel* emu_kernels;
template <auto Entry>
struct Register {
  EmuKernel kernel;
  explicit Register(const char* name) {
    using Self = decltype(launcher_of<Entry>(Entry));
    Self::name = name;
    kernel = Self::kernel(cluster_of_next);
    kernel.next = emu_kernels;
    emu_kernels = &kernel;
    cluster_of_next = {};
    bounds_of_next[0] = bounds_of_next[1] = 0;
#ifdef __SANITIZE_THREAD__
    engine.hooked = true;
#endif
  }
};
}  // namespace emu
