// Filters turned round, by which dgrad at stride 1 is a forward pass (alpha/cuda/conv/turned.py):
//
//   what      out[ic][th][tw][oc] = w[oc][FH - 1 - th][FW - 1 - tw][ic], of each plane
//   elements  of 16 bits, copied as they are
//   threads   one for each element, planes in y. Reads are apart by a filter, but all of w is in the L2 cache
#include "storage.cuh"

extern "C" __global__ void __launch_bounds__(256)
turned_filters(const unsigned short *w, unsigned short *out, int oc, int taps, int ic) {
  const int size = oc * taps * ic, i = blockIdx.x * 256 + threadIdx.x;
  if (i >= size) return;
  const int o = i % oc, t = i / oc % taps, c = i / oc / taps;
  const i64 plane = (i64)blockIdx.y * size;
  out[plane + i] = w[plane + (o * taps + taps - 1 - t) * (i64)ic + c];
}
ALPHA_KERNEL(turned_filters)
