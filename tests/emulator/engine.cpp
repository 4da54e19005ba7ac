// Runs a kernel on the CPU: one fiber per thread, switching only where threads meet.
#include "engine.hpp"
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <ucontext.h>

namespace emu {
Engine engine;
Thread* self;

// ---- context switch -------------------------------------------------------------------------------------------
#if defined(__x86_64__) && !defined(EMU_UCONTEXT)
extern "C" __attribute__((visibility("hidden"))) void emu_switch(void** save_sp, void* load_sp);
asm(R"(.text
.hidden emu_switch
.globl emu_switch
.type emu_switch, @function
emu_switch:
  push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
  ret
.size emu_switch, .-emu_switch
)");
static void* first_frame(char* stack_top, void (*entry)()) {  // what emu_switch pops; entry starts with rsp % 16 == 8
  void** sp = (void**)((uintptr_t)stack_top & ~(uintptr_t)15) - 2;
  *sp = (void*)entry;
  for (int i = 0; i < 6; i++) *--sp = nullptr;
  return sp;
}
#else  // any other processor: slower, same meaning
#include <ucontext.h>
static void emu_switch(void** save_sp, void* load_sp) {
  ucontext_t here;  // stays valid: this stack sleeps until it is resumed
  *save_sp = &here;
  swapcontext(&here, (ucontext_t*)load_sp);
}
static void* first_frame(char* stack_top, void (*entry)()) {
  ucontext_t* u = (ucontext_t*)((uintptr_t)(stack_top - sizeof(ucontext_t)) & ~(uintptr_t)63);
  getcontext(u);
  u->uc_stack.ss_size = 32 << 10;
  u->uc_stack.ss_sp = (char*)u - u->uc_stack.ss_size;
  u->uc_link = nullptr;
  makecontext(u, entry, 0);
  return u;
}
#endif

// ---- failure --------------------------------------------------------------------------------------------------
[[noreturn]] static void leave() {
  void* dead;
  emu_switch(&dead, engine.main_sp);
  __builtin_unreachable();
}
void fail(const char* format, ...) {
  char *m = engine.launch->message, *end = m + sizeof engine.launch->message;
  m += snprintf(m, end - m, "kernel %s, block (%u,%u,%u), thread (%u,%u,%u): ", engine.kernel, engine.block_idx.x,
                engine.block_idx.y, engine.block_idx.z, self->tid.x, self->tid.y, self->tid.z);
  va_list a;
  va_start(a, format);
  vsnprintf(m, end - m, format, a);
  va_end(a);
  leave();
}
[[noreturn]] static void deadlock() {
  char *m = engine.launch->message, *end = m + sizeof engine.launch->message;
  m += snprintf(m, end - m,
                "kernel %s, block (%u,%u,%u): deadlock, not all threads reach the same point:", engine.kernel,
                engine.block_idx.x, engine.block_idx.y, engine.block_idx.z);
  for (int i = 0; i < engine.threads && end - m > 1;) {  // group neighbours that are in the same place
    Thread& t = engine.thread[i];
    int j = i;
    auto same = [&](Thread& u) {
      return u.done == t.done && (t.done || (u.wait == t.wait && u.wait_line == t.wait_line));
    };
    while (j + 1 < engine.threads && same(engine.thread[j + 1])) j++;
    Thread& u = engine.thread[j];
    m += snprintf(m, end - m, "\n  threads (%u,%u,%u)..(%u,%u,%u) ", t.tid.x, t.tid.y, t.tid.z, u.tid.x, u.tid.y,
                  u.tid.z);
    if (end - m > 1)
      m += t.done        ? snprintf(m, end - m, "have returned")
           : t.wait_line ? snprintf(m, end - m, "wait at %s, line %d", t.wait, t.wait_line)
                         : snprintf(m, end - m, "wait at %s", t.wait);
    i = j + 1;
  }
  leave();
}
static void on_signal(int sig, siginfo_t* info, void* context) {
#if defined(__x86_64__)
  engine.launch->where = (void*)(((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP] + 1);
#endif
  if (sig == SIGFPE) fail("integer division by zero");
  if (sig == SIGABRT) fail("assertion failed (text on stderr)");
  if (sig == SIGILL) fail("array index out of its declared bounds, or __builtin_trap");
  fail("access to invalid address %p (null or wild pointer, or this thread's stack overflowed)", info->si_addr);
}

// ---- scheduler ------------------------------------------------------------------------------------------------
void wake(Thread* t) { engine.ready[(engine.head + engine.ready_count++) & 1023] = t; }
static Thread* pick() {
  if (!engine.ready_count) deadlock();
  if (engine.random) {  // xorshift; swap a random waiting thread to the front
    engine.random ^= engine.random << 13;
    engine.random ^= engine.random >> 17;
    engine.random ^= engine.random << 5;
    std::swap(engine.ready[engine.head & 1023],
              engine.ready[(engine.head + engine.random % engine.ready_count) & 1023]);
  }
  engine.ready_count--;
  return engine.ready[engine.head++ & 1023];
}
static void fiber_main();
static void* resume_point(Thread* t) {  // a thread that has not begun gets an idle fiber
  if (t->started) return t->sp;
  t->started = true;
  if (engine.idle_fibers.empty()) {  // tops at staggered offsets: else all share one cache set
    EmuFiberStacks& s = engine.launch->stacks;
    int i = engine.fibers++;
    return first_frame(s.base + (i + 1) * s.bytes_each - i % 64 * 320, fiber_main);
  }
  void* sp = engine.idle_fibers.back();
  engine.idle_fibers.pop_back();
  return sp;
}
void block_self(const char* what, int line, const void* on) {
  Thread* me = self;
  me->wait = what;
  me->wait_line = line;
  me->wait_on = on;
  Thread* next = pick();
  if (next == me) return;
  self = next;
  engine.launch->switches++;
  emu_switch(&me->sp, resume_point(next));
}
void yield(const char* what) {
  static unsigned alone;
  alone = engine.ready_count ? 0 : alone + 1;
  if (alone > 1000000)
    fail("spins in %s while no other thread of its block can run; does it wait for another block?", what);
  wake(self);
  block_self(what);
}

static void finish_thread() {
  Thread* me = self;
  if (!me->copies.empty()) fail("returned with %zu cp.async copies that no wait covers", me->copies.size());
  if (!me->wgmmas.empty()) fail("returned before wgmma_wait: its results never arrive");
  if (!me->stores.empty()) fail("returned before bulk_wait: a TMA store still reads shared memory");
  me->done = true;
  engine.live--;
  Warp& w = *me->warp;
  w.alive &= ~(1u << me->lane);
  if (w.open)
    for (Meeting& m : w.meeting)  // lanes that have returned are no longer waited for
      if (m.arrived && m.arrived == (m.mask & w.alive)) {
        m.run(m);
        for (int l = 0; l < 32; l++)
          if (m.arrived >> l & 1) wake(w.lane[l]);
        m.arrived = 0;
        w.open--;
      }
}
static void fiber_main() {
  for (;;) {
    engine.call(engine.args);
    finish_thread();
    if (!engine.live) {  // the block is complete
      engine.idle_fibers.push_back(nullptr);
      emu_switch(&engine.idle_fibers.back(), engine.main_sp);
      continue;
    }
    self = pick();
    if (!self->started) {  // no barrier so far: the same stack serves the next thread
      self->started = true;
      continue;
    }
    void** slot = (engine.idle_fibers.push_back(nullptr), &engine.idle_fibers.back());
    engine.launch->switches++;
    emu_switch(slot, self->sp);
  }
}

// ---- where threads meet ---------------------------------------------------------------------------------------
void barrier(int id, int count, const char* what, int line, bool wait) {
  Barrier& b = engine.barrier[id];
  if (b.count++ == 0) b.line = line;
  if (b.line != line)
    fail("divergent %s: this thread is at line %d, thread (%u,%u,%u) at line %d", what, line, b.waiting[0]->tid.x,
         b.waiting[0]->tid.y, b.waiting[0]->tid.z, b.line);
  if (b.count < count) {
    if (!wait) return;
    b.waiting.push_back(self);
    return block_self(what, line);
  }
  for (Thread* t : b.waiting) wake(t);
  b.waiting.clear();
  b.count = 0;
  engine.epoch++;
}
void meet(unsigned mask, const char* op, void* arg, void (*run)(Meeting&)) {
  Warp& w = *self->warp;
  if (!(mask >> self->lane & 1)) fail("%s: lane %d is not in its own mask 0x%08x", op, self->lane, mask);
  Meeting* m = w.open ? nullptr : &w.meeting[0];
  if (!m)
    for (Meeting& x : w.meeting) {
      if (x.arrived && x.mask == mask) {
        m = &x;
        break;
      }
      if (!x.arrived && !m) m = &x;
    }
  if (!m->arrived) {
    m->mask = mask;
    m->op = op;
    m->run = run;
    w.open++;
  } else if (m->op != op && strcmp(m->op, op))
    fail("divergent warp: lane %d is at %s, others of mask 0x%08x are at %s", self->lane, op, mask, m->op);
  m->arrived |= 1u << self->lane;
  m->arg[self->lane] = arg;
  if (m->arrived != (mask & w.alive)) return block_self(op);
  m->run(*m);
  if (m->arrived == w.alive) w.epoch++;
  unsigned others = m->arrived & ~(1u << self->lane);
  m->arrived = 0;
  w.open--;
  for (; others; others &= others - 1) wake(w.lane[__builtin_ctz(others)]);
}

// ---- one launch -----------------------------------------------------------------------------------------------
static void poison(void* p, size_t n) {
  for (size_t i = 0; i + 1 < n; i += 2) *(uint16_t*)((char*)p + i) = EMU_POISON;
}

// __shared__ is thread_local, so all static shared arrays of a module are its one thread-local segment.
static thread_local char shared_anchor;
static int find_shared(dl_phdr_info* info, size_t, void*) {
  char* here = (char*)&fiber_main;
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

static void run_block() {
  poison(engine.static_shared, engine.static_bytes);
  const size_t guard = 256, dynamic = (engine.launch->dynamic_shared + 1) & ~1u;
  poison(engine.dynamic_shared, dynamic + guard);
  for (Barrier& b : engine.barrier) {
    b.count = 0;
    b.waiting.clear();
  }
  for (int i = 0; i < (engine.threads + 31) / 32; i++) engine.warp[i].alive = engine.warp[i].open = 0;
  for (Warp& w : engine.warp)
    for (Meeting& m : w.meeting) m.arrived = 0;
  engine.head = engine.ready_count = 0;
  engine.live = engine.threads;
  engine.epoch++;
  check_block_start();
  start_block_copies();
  start_block_tensor();
  for (int i = 0; i < engine.threads; i++) {
    Thread& t = engine.thread[i];
    unsigned x = engine.block_dim.x, y = engine.block_dim.y;
    t.tid = uint3{i % x, i / x % y, i / (x * y)};
    t.id = i;
    t.lane = i & 31;
    t.warp = &engine.warp[i >> 5];
    t.started = t.done = false;
    t.wait_on = nullptr;
    t.warp->lane[t.lane] = &t;
    t.warp->alive |= 1u << t.lane;
    t.copies.clear();
    t.wgmmas.clear();
    t.stores.clear();
    t.copy_group = t.wgmma_group = t.store_group = 0;
    wake(&t);
  }
  self = pick();
  emu_switch(&engine.main_sp, resume_point(self));
  if (!engine.launch->message[0] && !is_poison(engine.dynamic_shared + dynamic, guard))
    snprintf(engine.launch->message, sizeof engine.launch->message,
             "kernel %s, block (%u,%u,%u): wrote past the %u bytes of dynamic shared memory of its launch",
             engine.kernel, engine.block_idx.x, engine.block_idx.y, engine.block_idx.z, engine.launch->dynamic_shared);
  self = nullptr;
}
int launch(EmuLaunch* l, const char* name, void (*call)(void**), void** args) {
  engine.launch = l;
  engine.kernel = name;
  engine.call = call;
  engine.args = args;
  engine.threads = l->block[0] * l->block[1] * l->block[2];
  engine.block_dim = dim3{l->block[0], l->block[1], l->block[2]};
  engine.grid_dim = dim3{l->grid[0], l->grid[1], l->grid[2]};
  engine.random = l->seed;
  locate_static_shared();
  static std::vector<char> dynamic_memory(256 * 1024);
  engine.dynamic_shared = (char*)(((uintptr_t)dynamic_memory.data() + 1023) & ~(uintptr_t)1023);
  engine.idle_fibers.clear();
  engine.fibers = 0;  // a failed launch leaves fibers behind: start anew

  static char signal_stack[64 * 1024];
  stack_t ss{signal_stack, 0, sizeof signal_stack}, old_ss;
  sigaltstack(&ss, &old_ss);
  struct sigaction sa{}, old_sa[5];
  sa.sa_sigaction = on_signal;
  sa.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  const int sigs[5] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL};
  for (int i = 0; i < 5; i++) sigaction(sigs[i], &sa, &old_sa[i]);
  l->message[0] = 0;
  l->where = nullptr;
  check_launch_start();
  const unsigned gx = l->grid[0], gy = l->grid[1];
  const uint64_t blocks = (uint64_t)gx * gy * l->grid[2];
  for (uint64_t i = 0; i < blocks && !l->message[0]; i++) {
    const uint64_t b = l->seed & 1 ? blocks - 1 - i : i;  // odd seeds: last block first
    engine.block_idx = uint3{(unsigned)(b % gx), (unsigned)(b / gx % gy), (unsigned)(b / gx / gy)};
    run_block();
  }
  for (int i = 0; i < 5; i++) sigaction(sigs[i], &old_sa[i], nullptr);
  sigaltstack(&old_ss, nullptr);
  return l->message[0] != 0;
}

}  // namespace emu

extern "C" {
__attribute__((visibility("default"))) int emu_abi = EMU_ABI;
__attribute__((visibility("default"))) EmuKernel* emu_kernels;
__attribute__((visibility("default"))) size_t emu_static_shared() {
  emu::locate_static_shared();
  return emu::engine.static_bytes;
}
}
