"""Measurements and checks on a GPU, or a TPU: `make gpu` and `make test-gpu`."""
