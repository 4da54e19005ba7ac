// Modules, launches and tensor maps of the emulated driver.
#include "driver.hpp"
#include <dlfcn.h>
#include <elf.h>
#include <set>
#include <sys/mman.h>
#include <unistd.h>

struct Module {
  void* handle;
  size_t static_shared;
  std::string path;
};
struct Function {
  Module* module;
  EmuKernel* kernel;
  unsigned dynamic_limit;
};
static std::set<std::string> module_files;
void remove_module_files() {
  for (auto& path : module_files) unlink(path.c_str());
}
static std::string triple(unsigned x, unsigned y, unsigned z) {
  return "(" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
}

extern "C" {
// ---- modules
int cuModuleLoadData(Module** out, const void* image) {
  LOCKED;
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
  *out = new Module{handle, ((size_t (*)())dlsym(handle, "emu_static_shared"))(), path};
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
static std::string source_line(const Module* m, const void* where) {  // " at kernel.cu:42", by addr2line
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
  *v = a == 0 ? 1024 : a == 1 ? (int)f->module->static_shared : a == 4 ? 32 : a == 8 ? (int)f->dynamic_limit : 0;
  return OK;
}
int cuFuncSetAttribute(Function* f, int a, int v) {
  if (a == 8 && v + f->module->static_shared > max_shared())
    return error(INVALID_VALUE, "more than " + std::to_string(max_shared() >> 10) + " KiB of shared memory");
  if (a == 8) f->dynamic_limit = v;
  return OK;
}
int cuFuncSetBlockShape(Function*, int, int, int) { return OK; }
int cuFuncSetSharedSize(Function*, unsigned) { return OK; }
int cuFuncSetCacheConfig(Function*, int) { return OK; }

static EmuFiberStacks stacks() {  // one per thread of a block, each with an unreadable page below
  static EmuFiberStacks s{nullptr, 64 << 10, 1024};
  if (!s.base) {
    s.base = (char*)mmap(nullptr, s.bytes_each * s.count, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (size_t i = 0; i < s.count; i++) mprotect(s.base + i * s.bytes_each, 4096, PROT_NONE);
  }
  return s;
}
static std::string refusal(const Function* f, const EmuLaunch& l) {  // why a device would not take this launch, or ""
  const unsigned *g = l.grid, *b = l.block;
  if (!g[0] || !g[1] || !g[2] || g[1] > 65535 || g[2] > 65535) return "grid " + triple(g[0], g[1], g[2]);
  if (!b[0] || !b[1] || !b[2] || b[2] > 64 || (size_t)b[0] * b[1] * b[2] > 1024)
    return "block " + triple(b[0], b[1], b[2]);
  if (l.dynamic_shared > f->dynamic_limit)
    return std::to_string(l.dynamic_shared) + " bytes of dynamic shared memory, the limit is " +
           std::to_string(f->dynamic_limit) + " (cuFuncSetAttribute raises it)";
  return "";
}
int cuLaunchKernel(Function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void*, void** params, void** extra) {
  LOCKED;
  EmuLaunch l{};
  l = {{gx, gy, gz}, {bx, by, bz}, shared, params, "", 0, arena, arena_bytes, granules, stacks()};
  for (; extra && *extra; extra += 2)  // CU_LAUNCH_PARAM_BUFFER_POINTER 1, CU_LAUNCH_PARAM_BUFFER_SIZE 2
    if (*extra == (void*)1) l.buffer = (const char*)extra[1];
    else l.buffer_bytes = *(size_t*)extra[1];
  l.seed = number("SEED", 0);
  last_kernel = f->kernel->name;
  const std::string why = refusal(f, l);
  if (!why.empty()) return error(INVALID_VALUE, std::string("launch of ") + last_kernel + ": " + why);
  const double start = now_ms();
  const int failed = f->kernel->launch(&l);
  if (number("LOG", 0))
    fprintf(stderr, "  %s<<<%s, %s, %u>>> %.2f ms, %llu switches\n", last_kernel, triple(gx, gy, gz).c_str(),
            triple(bx, by, bz).c_str(), shared, now_ms() - start, (unsigned long long)l.switches);
  const std::string broken = guards_broken();
  if (failed) return error(LAUNCH_FAILED, l.message + source_line(f->module, l.where));
  return broken.empty() ? OK : error(LAUNCH_FAILED, broken);
}

// ---- TMA tensor maps (tiled mode): the checks of the real call, our own contents
int cuTensorMapEncodeTiled(EmuTensorMap* map, int type, unsigned rank, void* address, const uint64_t* dim,
                           const uint64_t* stride, const uint32_t* box, const uint32_t* step, int interleave,
                           int swizzle, int, int) {
  static const int element[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4}, span[] = {0, 32, 64, 128};
  if (type < 0 || type > 12 || rank < 1 || rank > 5 || swizzle < 0 || swizzle > 3 || interleave)
    return error(INVALID_VALUE, "tensor map: type, rank, swizzle or interleave not supported");
  if ((ptr)address % 16) return error(INVALID_VALUE, "tensor map: address not a multiple of 16");
  EmuTensorMap m{
      EMU_TENSOR_MAP_MAGIC, rank, (uint32_t)element[type], (uint32_t)span[swizzle], (uint64_t)address, {}, {}, {}};
  for (unsigned i = 0; i < rank; i++) {
    m.dim[i] = dim[i];
    m.box[i] = box[i];
    m.stride[i] = i ? stride[i - 1] : m.element_bytes;
    if (!dim[i] || box[i] < 1 || box[i] > 256 || step[i] != 1)
      return error(INVALID_VALUE, "tensor map: dimension " + std::to_string(i) +
                                      ": extent 0, box outside 1..256, or element stride not 1");
    if (i && m.stride[i] % 16)
      return error(INVALID_VALUE,
                   "tensor map: stride of dimension " + std::to_string(i) + " not a multiple of 16 bytes");
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
