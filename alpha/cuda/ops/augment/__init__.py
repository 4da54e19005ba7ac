"""Batches of augmented, normalised images from the 8-bit images on the GPU, in a launch for each op."""

from __future__ import annotations

from functools import lru_cache

from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, empty
from alpha.ops.augment import EPOCH_BLOCKS, augment_images, mix_images, transform_images
from alpha.random import STREAMS

THREADS = 256
LANES = 4           # elements of a packet
MAX_BLOCKS = 65535  # along the second axis of a grid


@lru_cache(maxsize=16)
def _kernel(channels: int) -> Kernel:
    return Kernel("augment.cu", "augment_images", "ptr images, ptr index, ptr key, ptr mean, ptr std, ptr y, "
                  "i64 count, i32 height, i32 width, i32 channels, u64 seed, u32 stream, u64 first_block, i32 crop, "
                  "i32 flip, i32 cutout", shared=3 * 4 * channels)


_kernel(3)  # declares the source, so that it is compiled together with the others


@augment_images.impl("cuda")
def augment_images_cuda(images: Array, index: Array, mean: Array, std: Array, key: Array | None, *, seed: int,
                        epoch: int, crop: int, flip: bool, cutout: int) -> Array:
    count, h, w, c = images.shape
    y = empty((index.size, h, w, c), "float32")
    blocks = min(MAX_BLOCKS, -(-h * w * c // (THREADS * LANES)))
    _kernel(c)((index.size, blocks), images, index, key, mean, std, y, count, h, w, c, seed, STREAMS["augment"],
               epoch * EPOCH_BLOCKS, crop, flip, cutout)
    return y


THREADS_OF_STEPS = 512


@lru_cache(maxsize=16)
def _transform(channels: int) -> Kernel:
    return Kernel("transform.cu", "transform_images", "ptr images, ptr index, ptr rows, ptr mean, ptr y, ptr spare, "
                  "ptr wide, i64 count, i32 steps, i32 height, i32 width, i32 channels", threads=THREADS_OF_STEPS,
                  shared=channels)


_transform(3)
_MIX = Kernel("mix.cu", "mix_images", "ptr x, ptr table, ptr y, i32 elements, i32 width, i32 channels")


@transform_images.impl("cuda")
def transform_images_cuda(images: Array, index: Array, rows: Array, mean: Array) -> Array:
    count, h, w, c = images.shape
    y, spare, wide = (empty((index.size, h, w, c * k), "uint8") for k in (1, 1, 2))
    _transform(c)(index.size, images, index, rows, mean, y, spare, wide, count, rows.shape[1], h, w, c)
    return y


@mix_images.impl("cuda")
def mix_images_cuda(x: Array, table: Array) -> Array:
    _, h, w, c = x.shape
    y = empty((table.shape[0], h, w, c), "float32")
    _MIX((table.shape[0], min(MAX_BLOCKS, -(-h * w * c // THREADS))), x, table, y, h * w * c, w, c)
    return y
