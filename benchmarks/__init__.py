"""Benchmarks: one command each, every figure measured beside a reference in the same run."""
