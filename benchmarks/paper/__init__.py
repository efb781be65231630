"""Tables and figures of Leviathan, Kalman, Matias, ICML 2023, arXiv 2211.17192."""
