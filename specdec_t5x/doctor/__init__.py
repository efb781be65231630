"""Checks whether this machine can run the project: `python -m specdec_t5x.doctor`.

`facts` gathers facts, `checks` judges the facts, and `__main__` is the command.
"""
