"""Winograd and FFT on CUDA: transformed tiles around the products that exist.

    y = out( filter(w) . in(x) ) per tile           seen whole in alpha/cpu/algorithms/tiles.py, the oracle
"""
