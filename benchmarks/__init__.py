"""Measurements and tables: `python -m benchmarks`, from a clone, not in the wheel."""
