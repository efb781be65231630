"""The one place that times and tabulates: `python -m specdec_t5x.bench`."""
