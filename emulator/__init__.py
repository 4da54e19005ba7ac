"""An emulated CUDA driver: the kernels of alpha.cuda on a machine without a GPU. See README.md."""
