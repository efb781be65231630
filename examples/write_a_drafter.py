"""A drafter of your own: drafts the tokens that followed an earlier equal token.

From Python:  python examples/write_a_drafter.py
From gin:     python -m t5x.infer --gin_file=configs/spec_ende.gin \
                --gin_file=examples/write_a_drafter.gin
"""

import dataclasses

import jax.numpy as jnp

import specdec_t5x
from specdec_t5x import Drafter, Proposal
from specdec_t5x.core import tree
from specdec_t5x.decoding.contracts import Traits
from specdec_t5x.demo import embedded


@dataclasses.dataclass(frozen=True)
class Echo(Drafter):
  """Drafts the tokens that followed the last token at an earlier place."""

  gamma: int | None = None  # The draft length; None is 2.

  traits = Traits(independent=False)  # Tokens are certain, not drawn.

  @property
  def tree(self):
    """Returns a chain of gamma tokens."""
    return tree.chain(self.gamma or 2)

  def propose(self, context, state, uniforms):
    """Copies the tokens after the latest earlier place of the last token."""
    places = jnp.arange(state.sequences.shape[1])
    is_it = state.sequences == state.last_tokens()[:, None]
    is_it &= places < state.lengths[:, None] - 1
    found = jnp.where(is_it, places, -1).max(axis=1)
    ahead = found[:, None] + 1 + jnp.arange(self.depth)
    tokens = jnp.take_along_axis(state.sequences, ahead, axis=1)
    # A new token has no draft, and drafts end at the last known token.
    num_valid = jnp.minimum(state.lengths - 1 - found, self.depth)
    return Proposal.chain(tokens, None, num_valid * (found >= 0)), None


def main() -> None:
  """Decodes a sentence with the embedded target, plainly and with Echo."""
  target = specdec_t5x.load_model(embedded.target())
  text = (
    "translate English to German: A strict driver whom Clara wants to call on Monday "
    "at ten o'clock should fall asleep on Monday at half past one, but she will travel "
    "to Leipzig."
  )
  for drafter in (None, Echo(gamma=3)):
    (output,) = specdec_t5x.generate(
      [text], target, None, embedded.vocabulary(), drafter=drafter
    )
    print(f"{output.target_calls:3d} calls of the target: {output.text}")


if __name__ == "__main__":
  main()
