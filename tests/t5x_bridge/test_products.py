"""PRODUCTS reaches every network of a run, WEIGHTS and HEAD the target alone."""

import pytest

from tests.e2e.test_drafters import built

SET = {"PRODUCTS": "xla", "WEIGHTS": "int8", "HEAD": "full"}


@pytest.mark.parametrize(
  "name", ["spec_ende", "spec_cnndm", "baseline_ende", "spec_lm", "baseline_lm"]
)
def test_products_are_set_for_target_and_draft(name):
  for bindings, target, draft in (
    ({}, ("auto", "float32", "auto"), ("auto", "float32", "auto")),
    (SET, ("xla", "int8", "full"), ("xla", "float32", "auto")),
  ):
    decoder = built([f"configs/{name}.gin"], bindings)
    found = {
      network: (each.config.products, each.config.weights, each.config.head)
      for network, each in decoder.networks.items()
    }
    expected = {"target": target, "draft": draft}
    assert found == {network: expected[network] for network in found}
    assert ("draft" in found) == name.startswith("spec")
