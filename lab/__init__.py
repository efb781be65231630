"""Research on speculative decoding: `python -m lab`, from a clone.

The wheel does not contain this package, and `specdec_t5x` does not import `lab`.
"""
