"""The exactness kit: distributions of whole outputs, compared with float64 oracles.

`enumeration`, `oracles`, `lengths` and `cascades` are the oracles. `driving` drives the
compiled rules and loops along the oracles' paths. `checks` are short tests that fail
with each fault of `faults` and `draft_faults`.

Other tests import names that a user may import. These also use the library's internals:
tests/hash_model.py (`decoding.decoder`, `decoding.state`) makes table models of a loop;
`faults` and `draft_faults` replace private functions, one in place of the right code;
tests/core/grid.py (`core.distributions._invert`) computes the distribution of draws.
"""
