"""Says whether this machine can run the project: `python -m specdec_t5x.doctor`.

`facts` gathers what there is, `checks` judges it, `__main__` is the command.
"""
