"""Stress tests of the commands, for hours: docs/results/reliability.md."""
