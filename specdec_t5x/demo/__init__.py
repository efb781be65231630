"""The pair in the package, and `make demo`: a first run, without data or network.

`embedded` has the paths of the pair, and `__main__` is the command.
"""
