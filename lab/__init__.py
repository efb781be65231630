"""Research about this project: `python -m lab`, from a clone.

No wheel contains this package, and nothing in `specdec_t5x` imports it.
"""
