"""Checkpoints of T5X's format, Orbax's and Hugging Face's, opened once."""
