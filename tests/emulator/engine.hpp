// What a kernel module shares with the engine: the state of the block that runs, and the few calls into it.
// One OS thread runs everything, blocks one after another, so there are no locks.
#pragma once
#include "abi.h"
#include <stdio.h>
#include <string.h>
#include <utility>
#include <vector>
#include <vector_types.h>

namespace emu {
struct Warp;
struct AsyncCopy {
  char* dst;
  const char* src;
  int bytes, valid, group;
};  // cp.async that has not landed yet
struct PendingWgmma {
  float* d;
  int n, group;
  std::vector<float> value;
};  // result that is not visible yet
struct PendingStore {
  EmuTensorMap map;
  const char* src;
  int coord[5], group;
};  // TMA store that has not read its tile yet

struct Thread {
  void* sp;
  uint3 tid;
  int id, lane;
  Warp* warp;
  bool started, done;
  const char* wait;
  int wait_line;
  const void* wait_on;  // where it is blocked, for the deadlock report
  std::vector<AsyncCopy> copies;
  int copy_group;
  std::vector<PendingWgmma> wgmmas;
  int wgmma_group;
  std::vector<PendingStore> stores;
  int store_group;
};
struct Meeting {  // lanes gathering for one warp-wide operation
  unsigned mask, arrived;
  const char* op;
  void (*run)(Meeting&);
  void* arg[32];
};
struct Warp {
  unsigned alive, epoch, open;
  Thread* lane[32];
  Meeting meeting[16];
};  // 16 pairs can meet at a time
struct Barrier {
  int count, line;
  std::vector<Thread*> waiting;
};

struct Engine {
  EmuLaunch* launch;
  const char* kernel;
  uint3 block_idx;
  dim3 block_dim, grid_dim;
  void* main_sp;
  int threads, live;
  bool checked;  // built with the hooks of check.cpp
  bool fenced, in_atomic;
  unsigned epoch, random;  // epoch: number of block-wide meetings so far
  Thread thread[1024];
  Warp warp[32];
  Thread* ready[1024];
  unsigned head, ready_count;  // ring of threads that can go on
  std::vector<void*> idle_fibers;
  int fibers;
  Barrier barrier[16];  // 0 is __syncthreads
  char *dynamic_shared, *static_shared;
  size_t static_bytes, anchor_at;
  void (*call)(void**);
  void** args;
};
extern Engine engine;
extern Thread* self;

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);
void wake(Thread*);                                                         // may go on
void block_self(const char* what, int line = 0, const void* on = nullptr);  // returns once another thread wakes us
void yield(const char* what);
void barrier(int id, int count, const char* what, int line, bool wait = true);
// A warp-wide operation: every lane of mask brings its argument; the last to come runs it for all of them.
void meet(unsigned mask, const char* op, void* arg, void (*run)(Meeting&));
int launch(EmuLaunch*, const char* name, void (*call)(void**), void** args);

// Memory touched on a thread's behalf (cp.async, ldmatrix, TMA): checked like its own loads and stores.
void check_access(const void*, size_t bytes, bool write);
void mark_in_flight(const void*, size_t bytes);  // shared bytes that an asynchronous copy will write,
void mark_landed(const void*, size_t bytes);     // and has written
void check_launch_start();
void check_block_start();
void start_block_copies();  // copy.cpp, tensor.cpp: forget what the last block left in flight
void start_block_tensor();

// ---- arguments and registration
template <auto Entry, class... Args, size_t... Index>
void call_with(void** p, std::index_sequence<Index...>) {
  Entry(*(Args*)p[Index]...);
}
template <auto Entry, class... Args>
struct Launcher {
  static inline const char* name;
  static void call(void** p) { call_with<Entry, Args...>(p, std::index_sequence_for<Args...>()); }
  static int launch(EmuLaunch* l) {
    void* args[sizeof...(Args) + 1];
    if (!l->params) {  // the packed buffer: each argument at its natural alignment
      size_t at = 0, i = 0;
      ((at = (at + alignof(Args) - 1) / alignof(Args) * alignof(Args), args[i++] = (char*)l->buffer + at,
        at += sizeof(Args)),
       ...);
      if (at != l->buffer_bytes) {
        snprintf(l->message, sizeof l->message,
                 "kernel %s takes %zu argument bytes (%zu arguments), the launch brings %zu", name, at, sizeof...(Args),
                 l->buffer_bytes);
        return 1;
      }
    }
    return emu::launch(l, name, call, l->params ? l->params : args);
  }
};
template <auto Entry, class... Args>
Launcher<Entry, Args...> launcher_of(void (*)(Args...));

extern "C" __attribute__((visibility("default"))) EmuKernel* emu_kernels;
template <auto Entry>
struct Register {
  EmuKernel kernel;
  explicit Register(const char* name) {
    using Self = decltype(launcher_of<Entry>(Entry));
    Self::name = name;
    kernel = {name, Self::launch, emu_kernels};
    emu_kernels = &kernel;
#ifdef __SANITIZE_THREAD__
    engine.checked = true;
#endif
  }
};
}  // namespace emu
