// Runs a kernel on the CPU: one fiber per thread, switching only where threads meet.
#include "engine.hpp"
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
  pop %rcx
  jmp *%rcx
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
  for (int r = 0; r < engine.blocks; r++) {
    const Block& b = *engine.block[r];
    if (engine.blocks > 1 && end - m > 1)
      m += snprintf(m, end - m, "\n  block (%u,%u,%u)", b.idx.x, b.idx.y, b.idx.z);
    for (int i = 0; i < engine.threads && end - m > 1;) {  // group neighbours that are in the same place
      const Thread& t = b.thread[i];
      int j = i;
      auto same = [&](const Thread& u) {
        return u.done == t.done && (t.done || (u.wait == t.wait && u.wait_line == t.wait_line));
      };
      while (j + 1 < engine.threads && same(b.thread[j + 1])) j++;
      const Thread& u = b.thread[j];
      m += snprintf(m, end - m, "\n  threads (%u,%u,%u)..(%u,%u,%u) ", t.tid.x, t.tid.y, t.tid.z, u.tid.x, u.tid.y,
                    u.tid.z);
      if (end - m > 1)
        m += t.done        ? snprintf(m, end - m, "have returned")
             : t.wait_line ? snprintf(m, end - m, "wait at %s, line %d", t.wait, t.wait_line)
                           : snprintf(m, end - m, "wait at %s", t.wait);
      i = j + 1;
    }
  }
  leave();
}
static void on_signal(int sig, siginfo_t* info, void* context) {
#if defined(__x86_64__)
  engine.launch->where = (void*)(((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP] + 1);
#endif
  if (sig == SIGFPE) fail("integer division by zero");
  if (sig == SIGABRT) fail("assertion failed (text on stderr)");
  if (sig == SIGILL) fail("array index out of its declared bounds, misaligned address, or __builtin_trap");
  fail("access to invalid address %p (null or wild pointer, or this thread's stack overflowed)", info->si_addr);
}

void catch_signals(bool on) {
  static char stack[64 * 1024];
  static stack_t old_stack;
  static struct sigaction old[5];
  const int signals[5] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL};
  const stack_t own{stack, 0, sizeof stack};
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  if (on) sigaltstack(&own, &old_stack);
  for (int i = 0; i < 5; i++) sigaction(signals[i], on ? &action : &old[i], on ? &old[i] : nullptr);
  if (!on) sigaltstack(&old_stack, nullptr);
}

// ---- scheduler ------------------------------------------------------------------------------------------------
static const unsigned RING = sizeof engine.ready / sizeof *engine.ready;
void wake(Thread* t) { engine.ready[(engine.head + engine.ready_count++) % RING] = t; }
static Thread* pick() {
  if (!engine.ready_count) deadlock();
  if (engine.random) {  // xorshift; swap a random waiting thread to the front
    engine.random ^= engine.random << 13;
    engine.random ^= engine.random >> 17;
    engine.random ^= engine.random << 5;
    std::swap(engine.ready[engine.head % RING],
              engine.ready[(engine.head + ((uint64_t)engine.random * engine.ready_count >> 32)) % RING]);
  }
  engine.ready_count--;
  return engine.ready[engine.head++ % RING];
}
static void run_as(Thread* t) {  // what the next thread sees: itself, its block, and the static arrays of that
  Block &from = *self->block, &to = *t->block;
  self = t;
  if (&from == &to) return;
  memcpy(from.away.data(), engine.static_shared, engine.static_bytes);
  memcpy(engine.static_shared, to.away.data(), engine.static_bytes);
  engine.block_idx = to.idx;
  engine.dynamic_shared = to.dynamic_shared;
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
  engine.spins = 0;
  Thread* next = pick();
  if (next == me) return;
  run_as(next);
  engine.launch->switches++;
  emu_switch(&me->sp, resume_point(next));
}
void yield(const char* what) {
  const unsigned spins = engine.spins + 1;
  if (spins > 100000)
    fail("spins in %s while no other thread of its block or cluster can go on; does it wait for another block?", what);
  wake(self);
  block_self(what);
  engine.spins = std::max(engine.spins, spins);
}

static void finish_thread() {
  Thread* me = self;
  if (!me->copies.empty()) fail("returned with %zu cp.async copies that no wait covers", me->copies.size());
  for (const Accumulator& a : me->accumulators)
    if (a.pending) fail("returned before wgmma_wait: its results never arrive");
  if (!me->stores.empty()) fail("returned before bulk_wait: a TMA store still reads shared memory");
  me->done = true;
  engine.live--;
  engine.spins = 0;
  if (--me->block->live == 0 && engine.blocks > 1) leave_shared(*me->block);
  cluster_thread_left();
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
    if (!engine.live) {  // the block, or the cluster of blocks, is complete
      engine.idle_fibers.push_back(nullptr);
      emu_switch(&engine.idle_fibers.back(), engine.main_sp);
      continue;
    }
    run_as(pick());
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
  Barrier& b = self->block->barrier[id];
  if (b.count++ == 0) {
    b.line = line;
    b.expected = count;
  }
  if (b.expected != count)
    fail("%s: barrier %d is for %d threads here, and for %d where another thread waits", what, id, count, b.expected);
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
  self->block->met = tick();
}
void named_barrier(int id, int count, bool wait) {
  const char* what = wait ? "bar.sync" : "bar.arrive";
  if (id < 1 || id > 15) fail("%s: there is no barrier %d; 0 is __syncthreads, 1 to 15 are free", what, id);
  if (count < 32 || count % 32 || count > (engine.threads + 31) / 32 * 32)
    fail("%s: %d threads are not whole warps of a block of %d", what, count, engine.threads);
  barrier(id, count, what, 0, wait);
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
  if (m->arrived == w.alive) w.met = tick();
  unsigned others = m->arrived & ~(1u << self->lane);
  m->arrived = 0;
  w.open--;
  for (; others; others &= others - 1) wake(w.lane[__builtin_ctz(others)]);
}

void run_threads() {
  self = &engine.block[0]->thread[0];
  run_as(pick());
  emu_switch(&engine.main_sp, resume_point(self));
}
}  // namespace emu
