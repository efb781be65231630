"""The paper's tables and figures, ours beside theirs (scripts/reproduce_*.py).

Leviathan, Kalman, Matias, ICML 2023, arXiv 2211.17192.
"""
