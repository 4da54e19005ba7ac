"""Fuzz targets: each module has `attempt(rng, folder)`, one random case per call."""
