"""Networks of every common family, alpha's and PyTorch's, as a benchmark: see `python -m benchmarks.zoo --help`."""
