"""Shape annotations are checked in tests."""

from jaxtyping import install_import_hook

CHECKED = [
  f"specdec_t5x.{part}" for part in ("core", "decoding", "drafters", "network")
]
install_import_hook(CHECKED, "beartype.beartype")
