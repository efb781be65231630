"""The draft that a run's DRAFTER names."""

from specdec_t5x.core.checks import is_whole
from specdec_t5x.network import ngram
from specdec_t5x.network.functional import Network
from specdec_t5x.t5x_bridge.checkpoint import parameter_shapes


def draft_network(
  drafter: str, network: Network, path: str | None, order: int = 0
) -> Network | None:
  """Returns the network that drafts; None where there is none to restore.

  Args:
    drafter: one of `assemble.DRAFTERS`.
    network: what gin configures, for 'draft_model'.
    path: the draft's checkpoint; the size of a table of n-grams is read off it.
    order: of 'ngram': look up no longer n-grams than these; 0 for all.

  Raises:
    ValueError: where there is no table at `path`, or `order` is not for this drafter.
  """
  if not is_whole(order, 0):
    raise ValueError(
      f"NGRAM_ORDER must be a whole number of at least 0, got {order!r}. 0 is the "
      "table's."
    )
  if drafter == "ngram":
    if path is None:
      raise ValueError(
        "DRAFTER='ngram' needs DRAFT_CHECKPOINT_PATH, a table that python -m "
        "specdec_t5x.train --job=ngrams made; got None."
      )
    return ngram.NgramTable(ngram.config_from_shapes(parameter_shapes(path), order))
  if order:
    raise ValueError(f"NGRAM_ORDER={order} needs DRAFTER='ngram', got {drafter!r}.")
  return None if drafter == "copy" else network
