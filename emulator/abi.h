/* What the emulated driver and a kernel module (.so) know about each other. Plain C structs, nothing else. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define EMU_ABI 4
#define EMU_GRANULE 16    /* the driver keeps one byte per 16 bytes of device memory: how many of them may be touched */
#define EMU_ARGUMENTS 4096 /* bytes of arguments that a kernel may have */
#define EMU_CLUSTER 8      /* blocks of a cluster, at most */
#define EMU_POISON 0xFFF5 /* repeated over fresh memory: NaN as fp16, bf16, fp32 and fp64, and a wild index as int */

struct EmuFiberStacks {
  char* base;
  size_t bytes_each, count;
};

struct EmuLaunch {
  unsigned grid[3], block[3], cluster[3], dynamic_shared;
  char* arguments; /* packed, each at its natural alignment, at a multiple of 128, with room for 128 more */
  const char* arena;
  size_t arena_bytes; /* device memory, and what of it is allocated (see EMU_GRANULE) */
  const uint8_t* granules;
  struct EmuFiberStacks stacks;
  int unchecked;                /* hooks at loads and stores return at once */
  unsigned seed;                /* 0: threads run in order; else in a random order from this seed */
  unsigned arch;                /* class of the device, 75 for sm_75: instructions that it lacks fail */
  uint64_t switches, mma_flops; /* out: work done */
  const void* where;            /* out: the instruction at fault, or null */
  char message[1024];           /* out: why it failed */
};

struct EmuKernel {
  const char* name;
  unsigned cluster[3]; /* of __cluster_dims__; 0: it has none */
  unsigned bounds[2];  /* of __launch_bounds__: threads, and blocks of a multiprocessor; 0: it has none */
  unsigned arguments;
  size_t argument_bytes;
  void (*pack)(void** params, char* arguments); /* from one pointer per argument */
  int (*launch)(struct EmuLaunch*); /* 0, or 1 with message */
  struct EmuKernel* next;
};
/* A module exports: int emu_abi; struct EmuKernel *emu_kernels. */

struct EmuTensorMap { /* our contents of the 128 bytes of a CUtensorMap (tiled mode), from the innermost dimension */
  uint32_t magic, rank, type, element_bytes, swizzle_bytes;
  uint64_t address, dim[5], stride[5]; /* stride[0] is element_bytes */
  uint16_t box[5];                     /* elements of a tile, */
  uint8_t step[5];                     /* every step-th of the tensor */
};
#define EMU_TENSOR_MAP_MAGIC 0x7E45A9u
