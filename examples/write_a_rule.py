"""A rule of your own: accepts tokens at least half as likely as the likeliest token.

From Python:  python examples/write_a_rule.py
From gin:     python -m t5x.infer --gin_file=configs/spec_ende.gin \
                --gin_file=examples/write_a_rule.gin --gin.TEMPERATURE=1.0
"""

import dataclasses

import specdec_t5x
from specdec_t5x import Guarantee, Rule, Verdict
from specdec_t5x.core.distributions import sample
from specdec_t5x.core.rules.token import drafted_probs, leading, probs_at
from specdec_t5x.demo import embedded


@dataclasses.dataclass(frozen=True)
class Plausible(Rule):
  """Accepts drafted tokens x with p(x) >= share max p, up to the first failure."""

  share: float = 0.5  # The least ratio of p(x) to max p.

  guarantee = Guarantee.LOSSY  # Written into every run's results.

  def verify(self, target_probs, proposal, uniforms):
    """Accepts a prefix. The next token is drawn from p."""
    p = drafted_probs(target_probs, proposal)
    passes = p >= self.share * target_probs[:, :-1].max(axis=-1)
    num_accepted = leading(passes & proposal.is_valid)
    next_probs = probs_at(target_probs, num_accepted)
    return Verdict(num_accepted, sample(next_probs, uniforms[:, -1]))


def main() -> None:
  """Samples from the embedded pair's target with two rules."""
  target = specdec_t5x.load_model(embedded.target())
  draft = specdec_t5x.load_model(embedded.draft())
  text = "translate English to German: Jan says that he returned the present to Oskar."
  for rule in ("token", Plausible(share=0.3)):
    (output,) = specdec_t5x.generate(
      [text],
      target,
      draft,
      embedded.vocabulary(),
      rule=rule,
      sampling=specdec_t5x.Sampling(temperature=1.0),
    )
    print(f"{output.target_calls:3d} calls of the target: {output.text}")


if __name__ == "__main__":
  main()
