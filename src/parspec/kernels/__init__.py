"""Kernels of our own, where torch and oneDNN leave too much on the table (docs/performance.md says how much)."""
