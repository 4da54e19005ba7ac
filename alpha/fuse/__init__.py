"""Pointwise ops as data: what each computes (equation.py), from which kernels of single ops and of chains are made."""
