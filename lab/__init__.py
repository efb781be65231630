"""Research about this project, outside the wheel: `python -m lab`, from a clone.

Nothing in `specdec_t5x` imports it.
"""
