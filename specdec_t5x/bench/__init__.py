"""Timing and tables: `python -m specdec_t5x.bench`."""
