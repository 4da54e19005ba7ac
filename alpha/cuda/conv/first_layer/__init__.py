"""Convolutions with at most four input channels, which a network's first layer has."""
