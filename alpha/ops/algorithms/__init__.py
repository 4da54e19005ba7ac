"""Ways to compute a convolution or a product: what each can do, and what it costs.  Knows no device.

    names             what a caller may write
    tile_transform    Winograd's matrices, from points in exact fractions; the edges of FFT tiles
    family            what each algorithm serves, its stages, workspace and error

alpha.plan chooses among them.
"""
