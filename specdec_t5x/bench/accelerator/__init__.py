"""What an accelerator does with a pair, in minutes: `scripts/bench_accelerator.sh`."""
