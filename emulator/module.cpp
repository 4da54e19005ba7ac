// Modules, launches and tensor maps of the emulated driver.
#include "driver.hpp"
#include <algorithm>
#include <dlfcn.h>
#include <elf.h>
#include <set>
#include <sys/mman.h>
#include <unistd.h>

struct Module {
  void* handle;
  std::string path;
};
struct Function {
  Module* module;
  EmuKernel* kernel;
  unsigned dynamic_limit;
};
static auto& module_files = *new std::set<std::string>;  // never destroyed: used until the process is gone
void remove_module_files() {
  for (auto& path : module_files) unlink(path.c_str());
}
static std::string triple(const unsigned* v) {
  return "(" + std::to_string(v[0]) + "," + std::to_string(v[1]) + "," + std::to_string(v[2]) + ")";
}

static std::string arch_name() { return "sm_" + std::to_string(gpu().arch); }

extern "C" {
// ---- modules
int cuModuleLoadData(Module** out, const void* image) {
  LOCKED;
  if (const int refused = not_in_capture("cuModuleLoadData")) return refused;
  auto* h = (const Elf64_Ehdr*)image;
  if (memcmp(h->e_ident, ELFMAG, SELFMAG) || h->e_type != ET_DYN || h->e_machine == 190)
    return error(INVALID_IMAGE, "the emulated driver runs modules built for it (toolchain.py); this is device code");
  size_t bytes = h->e_shoff + (size_t)h->e_shentsize * h->e_shnum;  // section headers come last in what ld writes
  std::string path = std::string(getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp") + "/emu_module_XXXXXX";
  int fd = mkstemp(path.data());
  if (fd < 0 || write(fd, image, bytes) != (ssize_t)bytes) return error(INVALID_IMAGE, "cannot write " + path);
  close(fd);
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    unlink(path.c_str());
    return error(INVALID_IMAGE, std::string("module does not load: ") + dlerror());
  }
  int* abi = (int*)dlsym(handle, "emu_abi");
  if (!abi || *abi != EMU_ABI)
    return error(INVALID_IMAGE, "module was built for another version of the emulated driver");
  module_files.insert(path);  // kept until unloaded or exit: source lines are looked up in it
  *out = new Module{handle, path};
  return OK;
}
int cuModuleLoad(Module** out, const char* path) {
  FILE* f = fopen(path, "rb");
  if (!f) return error(FILE_NOT_FOUND, std::string("cannot read ") + path);
  std::string image;
  char part[1 << 16];
  for (size_t n; (n = fread(part, 1, sizeof part, f));) image.append(part, n);
  fclose(f);
  if (image.size() < sizeof(Elf64_Ehdr)) return error(INVALID_IMAGE, std::string(path) + " is not a module");
  return cuModuleLoadData(out, image.data());
}
int cuModuleLoadDataEx(Module** m, const void* image, unsigned, void*, void*) { return cuModuleLoadData(m, image); }
int cuModuleUnload(Module* m) {
  LOCKED;
  dlclose(m->handle);
  unlink(m->path.c_str());
  module_files.erase(m->path);
  delete m;
  return OK;
}
static std::string source_line(const Module* m, const void* where) {  // " at <file>:<line>", by addr2line
  Dl_info info;
  if (!where || !dladdr(where, &info)) return "";
  char command[512], line[512] = "";
  snprintf(command, sizeof command, "addr2line -e %s %#zx 2>/dev/null", m->path.c_str(),
           (size_t)((char*)where - (char*)info.dli_fbase - 1));
  if (FILE* p = popen(command, "r")) {
    if (!fgets(line, sizeof line, p)) line[0] = 0;
    pclose(p);
  }
  std::string at = line;
  at = at.substr(0, at.find_first_of(" \n"));
  return at.empty() || at[0] == '?' ? "" : " at " + at.substr(at.rfind('/') + 1);
}
int cuModuleGetFunction(Function** out, Module* m, const char* name) {
  EmuKernel* k = *(EmuKernel**)dlsym(m->handle, "emu_kernels");
  std::string have;
  for (; k && strcmp(k->name, name); k = k->next) have += std::string(" ") + k->name;
  if (!k) return error(NOT_FOUND, std::string("no kernel ") + name + " in this module; ALPHA_KERNEL names:" + have);
  *out = new Function{m, k, 48 << 10};
  return OK;
}
int cuModuleGetGlobal_v2(ptr* p, size_t* n, Module* m, const char* name) {
  *p = (ptr)dlsym(m->handle, name);
  Dl_info info;
  Elf64_Sym* symbol = nullptr;
  if (*p && dladdr1((void*)*p, &info, (void**)&symbol, RTLD_DL_SYMENT)) *n = symbol->st_size;
  if (*p) add_global(*p, *n);
  return *p ? OK : error(NOT_FOUND, std::string("no __constant__ ") + name);
}
int cuFuncGetAttribute(int* v, int a, Function* f) {
  *v = a == 0               ? (int)(f->kernel->bounds[0] ? f->kernel->bounds[0] : BLOCK_THREADS)
       : a == 4             ? 32
       : a == 8             ? (int)f->dynamic_limit
       : a >= 11 && a <= 13 ? (int)f->kernel->cluster[a - 11]
                            : 0;
  return OK;
}
int cuFuncSetAttribute(Function* f, int a, int v) {
  if (a == 8 && (size_t)v > gpu().block_shared)
    return error(INVALID_VALUE, std::to_string(v) + " bytes of shared memory, a block of " + arch_name() + " has " +
                                    std::to_string(gpu().block_shared));
  if (a == 8) f->dynamic_limit = v;
  return OK;
}
int cuFuncSetBlockShape(Function*, int, int, int) { return OK; }
int cuFuncSetSharedSize(Function*, unsigned) { return OK; }
int cuFuncSetCacheConfig(Function*, int) { return OK; }

// ---- launches
struct Launch {
  Function* function;
  unsigned grid[3], block[3], cluster[3], shared;  // cluster: 0 where the launch does not say
  std::string arguments;
};
static EmuFiberStacks stacks(size_t threads) {  // one per thread of a cluster, each with an unreadable page below
  static EmuFiberStacks s{nullptr, 64 << 10, 0};
  if (s.count < threads) {
    if (s.base) munmap(s.base, s.bytes_each * s.count);
    s.count = std::max<size_t>(threads, 1024);
    s.base = (char*)mmap(nullptr, s.bytes_each * s.count, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (size_t i = 0; i < s.count; i++) mprotect(s.base + i * s.bytes_each, 4096, PROT_NONE);
  }
  return s;
}
static std::string refusal(const Launch& l) {  // why a device would not take this launch, or ""
  const unsigned *g = l.grid, *b = l.block, limit = l.function->dynamic_limit;
  const EmuKernel& k = *l.function->kernel;
  if (!g[0] || !g[1] || !g[2] || g[1] > 65535 || g[2] > 65535) return "grid " + triple(g);
  if (!b[0] || !b[1] || !b[2] || b[2] > 64 || (size_t)b[0] * b[1] * b[2] > BLOCK_THREADS)
    return "block " + triple(b);
  if (l.shared > limit)
    return std::to_string(l.shared) + " bytes of dynamic shared memory, the limit is " + std::to_string(limit) +
           " (cuFuncSetAttribute raises it)";
  if (k.bounds[0] && (size_t)b[0] * b[1] * b[2] > k.bounds[0])
    return "block " + triple(b) + ", the kernel has registers for " + std::to_string(k.bounds[0]) +
           " threads (__launch_bounds__)";
  if (k.bounds[1] > gpu().blocks || k.bounds[0] * k.bounds[1] > gpu().threads)
    return "its __launch_bounds__ want " + std::to_string(k.bounds[1]) + " blocks of " + std::to_string(k.bounds[0]) +
           " threads on a multiprocessor, " + arch_name() + " has " + std::to_string(gpu().blocks) + " blocks and " +
           std::to_string(gpu().threads) + " threads";
  if (l.arguments.size() != k.argument_bytes)
    return "it takes " + std::to_string(k.argument_bytes) + " argument bytes (" + std::to_string(k.arguments) +
           " arguments), the launch brings " + std::to_string(l.arguments.size());
  if (k.argument_bytes > EMU_ARGUMENTS) return std::to_string(k.argument_bytes) + " bytes of arguments, at most 4096";
  return "";
}
static std::string cluster_refusal(const Launch& l) {  // and why it would not take these clusters
  const unsigned *c = l.cluster, *own = l.function->kernel->cluster;
  if (!c[0] || (c[0] == 1 && c[1] == 1 && c[2] == 1)) return "";
  if (gpu().arch < 90) return "clusters need sm_90, the device is " + arch_name();
  if (own[0] && memcmp(c, own, sizeof l.cluster)) return "clusters of " + triple(c) + ", the kernel has " + triple(own);
  if ((size_t)c[0] * c[1] * c[2] > EMU_CLUSTER) return "clusters of " + triple(c) + ", at most 8 blocks";
  for (int i = 0; i < 3; i++)
    if (!c[i] || l.grid[i] % c[i]) return "grid " + triple(l.grid) + " is not made of clusters of " + triple(c);
  return "";
}
static int run(const Launch& l) {
  LOCKED;
  Function* f = l.function;
  alignas(128) char arguments[EMU_ARGUMENTS + 128];
  memcpy(arguments, l.arguments.data(), l.arguments.size());
  EmuLaunch e{};
  memcpy(e.grid, l.grid, sizeof e.grid);
  memcpy(e.block, l.block, sizeof e.block);
  for (int i = 0; i < 3; i++) e.cluster[i] = std::max(1u, l.cluster[i]);
  e.dynamic_shared = l.shared;
  e.arguments = arguments;
  e.arena = arena;
  e.arena_bytes = arena_bytes;
  e.granules = granules;
  e.stacks = stacks((size_t)l.block[0] * l.block[1] * l.block[2] * e.cluster[0] * e.cluster[1] * e.cluster[2]);
  e.unchecked = setting("CHECKED") == "off";
  e.seed = number("SEED", 0);
  e.arch = gpu().arch;
  last_kernel = f->kernel->name;
  const double start = now_ms();
  const int failed = f->kernel->launch(&e);
  if (number("LOG", 0))
    fprintf(stderr, "  %s<<<%s, %s, %u>>> %.2f ms, %llu switches\n", last_kernel, triple(l.grid).c_str(),
            triple(l.block).c_str(), l.shared, now_ms() - start, (unsigned long long)e.switches);
  const std::string broken = guards_broken();
  if (failed) return error(LAUNCH_FAILED, e.message + source_line(f->module, e.where));
  return broken.empty() ? OK : error(LAUNCH_FAILED, broken);
}
static int launch(void* stream, Launch l, void** params, void** extra) {
  const EmuKernel& k = *l.function->kernel;
  if (params) {
    l.arguments.resize(k.argument_bytes);
    k.pack(params, l.arguments.data());
  }
  const char* packed = nullptr;
  size_t bytes = 0;
  for (; extra && *extra; extra += 2)  // CU_LAUNCH_PARAM_BUFFER_POINTER 1, CU_LAUNCH_PARAM_BUFFER_SIZE 2
    if (*extra == (void*)1) packed = (const char*)extra[1];
    else bytes = *(size_t*)extra[1];
  if (packed) l.arguments.assign(packed, bytes);
  if (!l.cluster[0]) memcpy(l.cluster, k.cluster, sizeof l.cluster);
  const std::string why = refusal(l), clusters = cluster_refusal(l), name = std::string("launch of ") + k.name + ": ";
  if (!why.empty()) return error(INVALID_VALUE, name + why);
  if (!clusters.empty()) return error(INVALID_CLUSTER_SIZE, name + clusters);
  return submit(stream, [l = std::move(l)] { return run(l); }, true);
}
int cuLaunchKernel(Function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** params, void** extra) {
  return launch(stream, {f, {gx, gy, gz}, {bx, by, bz}, {}, shared, ""}, params, extra);
}
struct LaunchAttribute {  // CUlaunchAttribute
  int id;
  alignas(8) unsigned value[16];
};
struct LaunchConfig {  // CUlaunchConfig
  unsigned grid[3], block[3], shared;
  void* stream;
  LaunchAttribute* attributes;
  unsigned count;
};
int cuLaunchKernelEx(const LaunchConfig* c, Function* f, void** params, void** extra) {
  Launch l{f, {}, {}, {}, c->shared, ""};
  memcpy(l.grid, c->grid, sizeof l.grid);
  memcpy(l.block, c->block, sizeof l.block);
  for (unsigned i = 0; i < c->count; i++) {  // CU_LAUNCH_ATTRIBUTE_IGNORE 0, CLUSTER_DIMENSION 4
    const LaunchAttribute& a = c->attributes[i];
    if (a.id == 4) memcpy(l.cluster, a.value, sizeof l.cluster);
    else if (a.id) return error(INVALID_VALUE, "the emulated driver has no launch attribute " + std::to_string(a.id));
  }
  return launch(c->stream, l, params, extra);
}

// ---- TMA tensor maps (tiled mode): the checks of the real call, our own contents
int cuTensorMapEncodeTiled(EmuTensorMap* map, int type, unsigned rank, void* address, const uint64_t* dim,
                           const uint64_t* stride, const uint32_t* box, const uint32_t* step, int interleave,
                           int swizzle, int, int fill) {
  static const int element[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2}, span[] = {0, 32, 64, 128};
  if (type < 0 || type > 9 || rank < 1 || rank > 5 || swizzle < 0 || swizzle > 3 || interleave || fill)
    return error(INVALID_VALUE, "tensor map: type, rank, swizzle, interleave or fill not supported");
  if ((ptr)map % 64) return error(INVALID_VALUE, "tensor map: it lies itself at no multiple of 64");
  if ((ptr)address % 16) return error(INVALID_VALUE, "tensor map: address not a multiple of 16");
  EmuTensorMap m{};
  m.magic = EMU_TENSOR_MAP_MAGIC;
  m.rank = rank;
  m.type = type;
  m.element_bytes = element[type];
  m.swizzle_bytes = span[swizzle];
  m.address = (uint64_t)address;
  for (unsigned i = 0; i < rank; i++) {
    m.dim[i] = dim[i];
    m.box[i] = box[i];
    m.stride[i] = i ? stride[i - 1] : m.element_bytes;
    m.step[i] = i ? step[i] : 1;  // the device ignores that of the innermost
    if (!dim[i] || dim[i] > (uint64_t)1 << 32 || box[i] < 1 || box[i] > 256 || step[i] < 1 || step[i] > 8)
      return error(INVALID_VALUE, "tensor map: dimension " + std::to_string(i) +
                                      ": extent 0 or above 2^32, box outside 1..256, or element stride outside 1..8");
    if (m.stride[i] >= (uint64_t)1 << 40 || (i && m.stride[i] % 16))
      return error(INVALID_VALUE, "tensor map: stride of dimension " + std::to_string(i) +
                                      " not a multiple of 16 bytes, or 2^40 and more");
  }
  size_t inner = box[0] * m.element_bytes;
  if (inner % 16 || (m.swizzle_bytes && inner > m.swizzle_bytes))
    return error(INVALID_VALUE, "tensor map: inner box of " + std::to_string(inner) +
                                    " bytes: not a multiple of 16, or wider than the swizzle");
  memset((void*)map, 0, 128);
  memcpy((void*)map, &m, sizeof m);
  return OK;
}
}
static_assert(sizeof(EmuTensorMap) <= 128, "must fit a CUtensorMap");
