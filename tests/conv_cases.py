"""The catalogue of convolutions, which users have too: alpha/testing/conv_cases.py."""

from alpha.testing.conv_cases import (
    CASES,
    EDGE,
    INCEPTION,
    LENET5,
    NETWORKS,
    PAPER,
    Case,
    googlenet,
    paper_series,
    resnet18,
    small_cases,
    square,
    vgg16,
)

__all__ = ["CASES", "EDGE", "INCEPTION", "LENET5", "NETWORKS", "PAPER", "Case", "googlenet", "paper_series", "resnet18",
           "small_cases", "square", "vgg16"]
