"""Measurements and tables: `python -m benchmarks`, from a clone.

The wheel does not contain this package, and `specdec_t5x` does not import `benchmarks`.
"""
