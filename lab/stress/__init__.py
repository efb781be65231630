"""Tools that stress the commands for hours: docs/results/reliability.md."""
