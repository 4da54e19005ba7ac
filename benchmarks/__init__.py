"""Speed and memory of alpha, each figure beside PyTorch's from the same run."""
