// libcuda.so.1 for machines without a GPU: device memory is host memory, modules are shared objects that toolchain.py
// builds, and a launch runs on the CPU before cuLaunchKernel returns. Environment variables ALPHA_EMULATED_...:
//   MEMORY   bytes of device memory (default 1 GiB)     SEED   n > 0: random thread order; odd: the last block first
//   DEVICES  0: no device                               LOG    1: print errors, allocations and launches
//   ARCH     class of GPU (default sm_90)               LEAKS  1: report at exit what was not freed
//   SMS      multiprocessors (default 4)
#include "driver.hpp"
#include <chrono>

std::recursive_mutex mutex;
const char* last_kernel = "none";
static auto& last_text = *new std::string;  // never destroyed: errors are told until the process is gone
static int last_code;

std::string setting(const char* name) {
  const char* value = getenv((std::string("ALPHA_EMULATED_") + name).c_str());
  return value ? value : "";
}
size_t number(const char* name, size_t otherwise) {
  const std::string value = setting(name);
  return value.empty() ? otherwise : strtoull(value.c_str(), nullptr, 0);
}
double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
int error(int code, const std::string& text) {
  last_code = code;
  last_text = text;
  if (number("LOG", 0)) fprintf(stderr, "  emulated driver: %s\n", text.c_str());
  return code;
}
__attribute__((destructor)) static void end() {
  remove_module_files();
  if (number("LEAKS", 0)) fprintf(stderr, "emulated driver: %s\n", memory_report().c_str());
}

static int arch_of(const std::string& name) {  // "sm_90a" or "sm_90": 90; what names none: 0
  int arch = 0;
  return sscanf(name.c_str(), "sm_%d", &arch) == 1 ? arch : 0;
}
static int named_arch() {
  const std::string name = setting("ARCH");
  return name.empty() ? 90 : arch_of(name);
}

extern "C" {
int cuGetErrorName(int e, const char** s) {
  *s = e == OUT_OF_MEMORY    ? "CUDA_ERROR_OUT_OF_MEMORY"
       : e == NO_DEVICE      ? "CUDA_ERROR_NO_DEVICE"
       : e == INVALID_DEVICE ? "CUDA_ERROR_INVALID_DEVICE"
       : e == INVALID_VALUE  ? "CUDA_ERROR_INVALID_VALUE"
       : e == LAUNCH_FAILED  ? "CUDA_ERROR_LAUNCH_FAILED"
       : e == NOT_SUPPORTED  ? "CUDA_ERROR_NOT_SUPPORTED"
                             : "CUDA_ERROR";
  return OK;
}
int cuGetErrorString(int e, const char** s) {
  *s = e == OUT_OF_MEMORY    ? "out of memory"
       : e == NO_DEVICE      ? "no CUDA-capable device is detected"
       : e == INVALID_DEVICE ? "invalid device ordinal"
       : e == NOT_SUPPORTED  ? "operation not supported (emulated driver)"
       : e == last_code      ? last_text.c_str()
                             : "error (emulated driver)";
  return OK;
}

// ---- device
int cuInit(unsigned) { return number("DEVICES", 1) ? OK : NO_DEVICE; }
int cuDriverGetVersion(int* v) {
  *v = 13000;
  return OK;
}
int cuDeviceGetCount(int* n) {
  *n = number("DEVICES", 1) != 0;
  return OK;
}
int cuDeviceGet(int* d, int i) {
  *d = i;
  return i ? INVALID_DEVICE : OK;
}
int cuDeviceGetName(char* b, int n, int) {
  snprintf(b, n, "emulated (no GPU)");
  return OK;
}
int cuDeviceComputeCapability(int* major, int* minor, int) {
  *major = named_arch() / 10;
  *minor = named_arch() % 10;
  return OK;
}
int cuDeviceTotalMem_v2(size_t* n, int) {
  *n = memory_bytes;
  return OK;
}
int cuDeviceGetAttribute(int* v, int a, int d) {
  int major, minor;
  cuDeviceComputeCapability(&major, &minor, d);
  // clang-format off
  switch (a) {
    case 1: case 2: case 3: *v = 1024; break;          // threads per block; block x, y
    case 4: *v = 64; break;                            // block z
    case 5: *v = 0x7fffffff; break;                    // grid x
    case 6: case 7: *v = 65535; break;                 // grid y, z
    case 8: *v = 48 << 10; break;                      // shared memory of a block
    case 97: *v = gpu().block_shared; break;           //   and when it opts in
    case 81: *v = gpu().all_shared; break;             //   and of a multiprocessor
    case 111: *v = gpu().reserved; break;              //   and what a block takes beside it
    case 10: *v = 32; break;                           // warp
    case 12: case 82: *v = REGISTERS; break;
    case 13: *v = 1000000; break;                      // clock rate, kHz
    case 16: *v = number("SMS", 4); break;
    case 36: *v = 1215000; break;                      // clock of the memory, kHz
    case 37: *v = 5120; break;                         //   and its width, bits
    case 39: *v = gpu().threads; break;                // threads of a multiprocessor
    case 106: *v = gpu().blocks; break;                //   and blocks
    case 120: *v = major >= 9; break;                  // clusters
    case 75: *v = major; break;
    case 76: *v = minor; break;
    default: *v = 1;
  }
  // clang-format on
  return OK;
}

// ---- context: there is one
int cuDevicePrimaryCtxRetain(void** c, int) {
  *c = (void*)16;
  return OK;
}
int cuDevicePrimaryCtxRelease_v2(int) { return OK; }
int cuCtxCreate_v4(void** c, void*, unsigned, int) {
  *c = (void*)16;
  return OK;
}
int cuCtxDestroy_v2(void*) { return OK; }
int cuCtxDetach(void*) { return OK; }
int cuCtxPushCurrent_v2(void*) { return OK; }
int cuCtxPopCurrent_v2(void** c) {
  if (c) *c = (void*)16;
  return OK;
}
int cuCtxGetCurrent(void** c) {
  *c = (void*)16;
  return OK;
}
int cuCtxGetDevice(int* d) {
  *d = 0;
  return OK;
}
}

const Gpu& gpu() {  // of a class that is not listed: the newest one before it
  static const size_t K = 1 << 10;
  static const Gpu classes[] = {
      {70, 96 * K, 96 * K, 0, 2048, 32},    {75, 64 * K, 64 * K, 0, 1024, 16},    {80, 163 * K, 164 * K, K, 2048, 32},
      {86, 99 * K, 100 * K, K, 1536, 16},   {87, 163 * K, 164 * K, K, 1536, 16},  {89, 99 * K, 100 * K, K, 1536, 24},
      {90, 227 * K, 228 * K, K, 2048, 32},  {100, 227 * K, 228 * K, K, 2048, 32}, {103, 227 * K, 228 * K, K, 2048, 32},
      {110, 227 * K, 228 * K, K, 1536, 24}, {120, 99 * K, 100 * K, K, 1536, 24},  {121, 99 * K, 100 * K, K, 1536, 24}};
  const Gpu* found = classes;
  for (const Gpu& each : classes)
    if (each.arch <= named_arch()) found = &each;
  return *found;
}
