"""Kernels of our own for CUDA, in Triton, which comes with torch there; imported where they are used."""
