"""Ways to compute a convolution or a product: their names, what they can do, what they cost.  Knows no device.

    names             what a caller may write, and what a call asked for
    cost              Stage and Cost: work, bytes, depth, launches, and the time that follows from a device's rates
    tile_transform    Winograd's matrices, from points in exact fractions; the edges of FFT tiles
    family            what each algorithm serves, its stages, workspace and error; the choice among them
"""
