"""The T5X inference contract on machines where upstream T5X is not installed.

docs/t5x_contract.md says what is in it. `PROVIDER` tells the two apart.
"""

__version__ = "0.2.0+specdec"
PROVIDER = "specdec-t5x-runtime"
