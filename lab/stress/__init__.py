"""Tools that stress the commands for hours; results are in docs/results/reliability.md."""
