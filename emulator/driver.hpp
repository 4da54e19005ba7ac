// What the parts of the emulated driver share: driver.cpp is errors, device and context; memory.cpp device memory;
// stream.cpp streams and events; module.cpp modules, launches and tensor maps.
#pragma once
#include "abi.h"
#include <functional>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>

typedef unsigned long long ptr;
enum {
  OK,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  FILE_NOT_FOUND = 301,
  INVALID_HANDLE = 400,
  ILLEGAL_STATE = 401,
  NOT_FOUND = 500,
  LAUNCH_FAILED = 719,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURE_ISOLATION = 905,
  CAPTURE_IMPLICIT = 906,
  CAPTURED_EVENT = 907,
  INVALID_CLUSTER_SIZE = 912
};

extern std::recursive_mutex mutex;  // PyCUDA releases the GIL around copies and synchronisation
#define LOCKED std::lock_guard<std::recursive_mutex> lock(mutex)
extern const char* last_kernel;
int error(int code, const std::string& text);  // returns code; cuGetErrorString then gives the text
std::string setting(const char* name);         // the environment variable ALPHA_EMULATED_<name>, or ""
size_t number(const char* name, size_t otherwise);
struct Gpu {  // a class of GPUs, as CUDA's programming guide has it
  int arch;                         // 75 for sm_75
  size_t block_shared, all_shared;  // bytes of shared memory of a block, and of a multiprocessor;
  size_t reserved;                  //   that a block takes beside its own
  unsigned threads, blocks;         // of a multiprocessor
};
const Gpu& gpu();  // the one that ALPHA_EMULATED_ARCH names
constexpr unsigned REGISTERS = 65536, BLOCK_THREADS = 1024;  // of a multiprocessor and of a block; of all classes
double now_ms();

extern char* arena;  // all device memory
extern size_t arena_bytes, memory_bytes;
extern uint8_t* granules;          // see EMU_GRANULE
typedef std::function<int()> Work;
int submit(void* stream, Work work, bool is_kernel = false);   // does it, or records it where the stream is being captured
int not_in_capture(const char* what);  // OK, or the error of a call that must not come while a stream is captured
int not_beside_capture(const char* what);  // the same of calls that use the default stream
std::string guards_broken();       // what was overwritten behind a device block, or ""
void add_global(ptr p, size_t n);  // a __constant__ array: copies to and from it are legal
std::string memory_report();
void remove_module_files();
