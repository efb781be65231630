"""The T5X inference contract on machines where upstream T5X is not installed.

docs/t5x_contract.md describes the contract. Upstream T5X has no `PROVIDER`.
"""

from t5x.quiet_start import load_triton

__version__ = "0.2.0+specdec"
PROVIDER = "specdec-t5x-runtime"

load_triton()
