"""Losses of single tokens, and the weighted mean of such losses.

p is the target's distribution and q the draft's, both softmax of float32 logits. A
draft is accepted with probability alpha = sum_x min(p(x), q(x)) (Leviathan et al.,
2023, Corollary 3.6), so total variation, 1 - alpha, is the probability of a rejection.

Shapes: B batch, V vocabulary.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Logits = Float[Array, "*B V"]
PerToken = Float[Array, "*B"]


def cross_entropy(
  logits: Logits, tokens: Int[Array, "*B"], z_loss: float = 0.0
) -> PerToken:
  """Computes the cross-entropy of each token, as in T5X.

    -log q(token) + z_loss * log(sum_x exp(logit(x)))^2

  The last term keeps the logits close to log-probabilities.

  Args:
    logits: the network's logits.
    tokens: the labels.
    z_loss: weight of the last term; 1e-4 in T5 pre-training.
  """
  logits = logits.astype(jnp.float32)
  log_total = jax.nn.logsumexp(logits, axis=-1)
  of_token = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
  return log_total - of_token + z_loss * jnp.square(log_total)


def forward_kl(target_logits: Logits, draft_logits: Logits) -> PerToken:
  """Computes KL(p || q) = sum_x p(x) (log p(x) - log q(x)): q covers all of p."""
  log_p, log_q = _log_probs(target_logits, draft_logits)
  return _expected(log_p, log_p - log_q)


def reverse_kl(target_logits: Logits, draft_logits: Logits) -> PerToken:
  """Computes KL(q || p) = sum_x q(x) (log q(x) - log p(x)).

  The draft q avoids tokens that p avoids.
  """
  log_p, log_q = _log_probs(target_logits, draft_logits)
  return _expected(log_q, log_q - log_p)


def total_variation(target_logits: Logits, draft_logits: Logits) -> PerToken:
  """Computes 1/2 sum_x |p(x) - q(x)| = 1 - sum_x min(p(x), q(x)) = 1 - alpha."""
  log_p, log_q = _log_probs(target_logits, draft_logits)
  return 0.5 * jnp.abs(jnp.exp(log_p) - jnp.exp(log_q)).sum(-1)


def negative_log_alpha(target_logits: Logits, draft_logits: Logits) -> PerToken:
  """Computes -log alpha, with the minimum of total variation and a larger gradient.

  The gradient is 1 / alpha times total variation's gradient. A draft can therefore
  learn from scratch, when alpha is near 0 (Samarin et al., arXiv 2602.23881).
  """
  log_p, log_q = _log_probs(target_logits, draft_logits)
  return -jax.nn.logsumexp(jnp.minimum(log_p, log_q), axis=-1)


DistillationLoss = Callable[[Logits, Logits], PerToken]
DISTILLATION_LOSSES: dict[str, DistillationLoss] = {
  "forward_kl": forward_kl,
  "reverse_kl": reverse_kl,
  "total_variation": total_variation,
  "negative_log_alpha": negative_log_alpha,
}


def get_distillation_loss(name: str) -> DistillationLoss:
  """Returns the distillation loss of a name; raises a ValueError if there is none."""
  if name not in DISTILLATION_LOSSES:
    raise ValueError(
      f"Unknown distillation loss {name!r}; expected one of "
      f"{sorted(DISTILLATION_LOSSES)}. Correct DISTILL_LOSS."
    )
  return DISTILLATION_LOSSES[name]


def weighted_mean(
  values: Float[Array, "*B"], weights: Float[Array, "*B"] | Int[Array, "*B"]
) -> Float[Array, ""]:
  """Computes sum(values * weights) / sum(weights), and 0 if all weights are 0."""
  # `where` is needed because the value at padding may be infinite: 0 * inf is NaN.
  total = jnp.where(weights > 0, values * weights, 0.0).sum()
  return total / jnp.maximum(weights.sum(), 1)


def _log_probs(target_logits, draft_logits):
  """Returns log p, without gradient, and log q."""
  log_p = jax.nn.log_softmax(target_logits.astype(jnp.float32), axis=-1)
  log_q = jax.nn.log_softmax(draft_logits.astype(jnp.float32), axis=-1)
  return jax.lax.stop_gradient(log_p), log_q


def _expected(log_probs, values):
  # exp(-inf) * (-inf - ...) is NaN, but a token without mass contributes 0.
  return (jnp.exp(log_probs) * jnp.where(log_probs > -jnp.inf, values, 0.0)).sum(-1)
