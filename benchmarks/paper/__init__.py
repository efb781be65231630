"""The paper's tables and figures with our numbers (`python -m benchmarks`).

Leviathan, Kalman, Matias, ICML 2023, arXiv 2211.17192.
"""
