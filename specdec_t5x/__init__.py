"""Speculative decoding for T5 in JAX, inside the T5X setup."""

__version__ = "0.1.0"
