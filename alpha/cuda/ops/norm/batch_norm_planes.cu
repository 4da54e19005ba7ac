// What:    the passes of batch norm (batch_norm.cu) that write float32 results as planes (planes.cu), in the memory
//          that float32 would take, for a reader that is a tensor core: 4 bytes are written of an element and 4 are
//          read, where writing, measuring and splitting moves 16.
// Layout:  rows are contiguous, of a multiple of 8 elements; hi of all rows, then lo. y without a residual may be some
//          columns of a larger matrix (planes.cu): flag and scale are those of the whole then
// Scale:   known before, from a bound of |y| or |dx| in the header: with M rows
//            |y| <= |gamma| sqrt(M - 1) + |beta| + most |residual|
//            |dx| <= |gamma istd| (most |v| + |mean(v)| + sqrt(M - 1) |mean(v xhat)|)
//          What planes leave out is at most 2^-39 of the bound: with M = 2^19, 2^-29 of a channel's standard deviation,
//          where float32 has 2^-24 of an element. So the bound may be far from the largest element. That one is kept
//          in the header when it is known, for what y is a residual of: bounds do not grow from layer to layer.
// Flag:    see planes.cuh; what follows behind it is the pass that writes float32
// Requires: C a multiple of 8; 16-byte aligned tensors
// Threads: as batch_norm.cu, fewer blocks: each of them ends with three atomics on one header
// Measured: not by itself
#include "channel_norm.cuh"
#include "lazy/planes.cuh"

using WideNorm = Norm<float>;
#define BOUNDS (THREADS, 4)

// sums_bound: the largest of |v| of each channel's chunks, besides the sums; and the header made ready.
#define BACKWARD(suffix, RELU) \
  ALPHA_ENTRY(sums_bound##suffix, SUMMERS, (const Pitched<float> g, const float *x, const WideNorm norm, \
                                           float *partial, OperandHeader *header, const Walk w), \
              if (blockIdx.x == 0 && threadIdx.x == 0) *header = {}; \
              sums<float, 4, RELU, BoundedPair>(g, x, norm, partial, w, Place(w))) \
  ALPHA_ENTRY(gradient_planes##suffix, BOUNDS, \
              (const Pitched<float> g, const float *x, const WideNorm norm, const float *coefficients, void *dx, \
               OperandHeader *header, int *lost_ranges, const Walk w), \
              PlaneWriter out(dx, w.rows * w.columns * 4, header); \
              gradient<float, 4, RELU>(g, x, norm, coefficients, out, w, BACKWARDS, w.columns * 4, 1); \
              out.finish(header, lost_ranges))
BACKWARD(, false)
BACKWARD(_relu, true)

// The rows of y are those of a matrix of `columns`, from `begin` on; blocks: of all launches that write this.
ALPHA_ENTRY(apply_planes, BOUNDS, (const float *x, const WideNorm norm, void *y, OperandHeader *header, float floor,
                                   int *lost_ranges, i64 columns, i64 begin, int blocks, const Walk w),
            PlaneWriter out(y, w.rows * columns, header);
            const Among among{columns, begin};
            apply<float, 4>(x, Nothing(), norm, out, floor, w, BACKWARDS, 1, among);
            out.finish(header, lost_ranges, blocks))
