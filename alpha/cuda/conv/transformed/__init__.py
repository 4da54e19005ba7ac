"""Winograd and FFT on CUDA: transformed tiles around the products that exist.

    y = out( filter(w) . in(x) ) per tile           seen whole in alpha/cpu/algorithms/tiles.py, the oracle

    pipeline      the candidates: chunks of tiles, blocks of channels, the launches of a pass, what it costs
    products      grouped 1x1 convolutions on FMA units, in sums of 64 terms
    transforms    winograd.cu: F(m x m, r x r); fft_tile.cu: spectra of tiles, and depthwise convolution in one pass
    tiling        how maps are cut into tiles, as the kernels take it
"""
