"""Families of ops, each with its wrapper and its kernels side by side."""
