"""Optimizers and learning rates: T5's Adafactor, Adam, warm-up and decay."""

import dataclasses

import jax.numpy as jnp
import optax

OPTIMIZERS = ("adafactor", "adam")
SCHEDULES = ("constant", "inverse_sqrt", "cosine")


@dataclasses.dataclass(frozen=True)
class Schedule:
  """A learning-rate schedule with linear warm-up and decay.

  In step t = 1, 2, ..., with warm-up W and last step S, the rate is `peak` times

    t / W                                      while t < W, then
    1                                          constant,
    sqrt(max(W, 1) / t)                        inverse_sqrt,
    (1 + cos(pi min(1, (t - W) / (S - W)))) / 2  cosine.

  T5 pre-training uses inverse_sqrt with W = 10,000 and peak 0.01 (without warm-up:
  constant up to W). T5 fine-tuning uses constant 0.001. Both use Adafactor.
  """

  kind: str = "inverse_sqrt"  # One of `SCHEDULES`.
  peak: float = 0.01  # The maximal rate.
  warmup_steps: int = 1000  # W; 0 starts at the peak.
  decay_steps: int | None = None  # S, for cosine only.

  def __post_init__(self):
    if self.kind not in SCHEDULES:
      raise ValueError(f"Unknown SCHEDULE {self.kind!r}; expected one of {SCHEDULES}.")
    if not 0.0 < self.peak < float("inf"):
      raise ValueError(
        f"LEARNING_RATE must be a finite number above 0, got {self.peak}. Usual are "
        "0.01 or 0.001 for Adafactor and 0.0003 for Adam."
      )
    if self.warmup_steps < 0:
      raise ValueError(f"WARMUP_STEPS must be at least 0, got {self.warmup_steps}.")
    if self.kind != "cosine":
      # Other schedules do not depend on the last step, so a longer run is the same run.
      object.__setattr__(self, "decay_steps", None)
    elif self.decay_steps is None or self.decay_steps <= self.warmup_steps:
      raise ValueError(
        "The cosine schedule needs STEPS above WARMUP_STEPS, got "
        f"{self.decay_steps} and {self.warmup_steps}. Lower WARMUP_STEPS."
      )

  def __call__(self, count):
    """Returns the rate of the step after `count` steps."""
    step = jnp.asarray(count, jnp.float32) + 1.0
    warmup = jnp.minimum(1.0, step / max(self.warmup_steps, 1))
    decay = jnp.ones_like(step)
    if self.kind == "inverse_sqrt":
      decay = jnp.sqrt(max(self.warmup_steps, 1) / step)
    if self.kind == "cosine":
      progress = (step - self.warmup_steps) / (self.decay_steps - self.warmup_steps)
      decay = 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.clip(progress, 0.0, 1.0)))
    return self.peak * jnp.where(step < self.warmup_steps, warmup, decay)


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """The name and the settings of an optimizer.

  Adafactor (Shazeer and Stern, 2018) is optax's, with T5's settings as defaults: the
  second moment is factored if both dimensions are at least 128, and decays by beta_t =
  1 - t^-0.8; updates are clipped to an RMS of 1 and multiplied by the parameter's RMS,
  of at least 1e-3; there is no momentum. Adam's gradients are scaled down to a global
  norm of at most 1.
  """

  schedule: Schedule
  name: str = "adafactor"  # One of `OPTIMIZERS`.

  def __post_init__(self):
    if self.name not in OPTIMIZERS:
      raise ValueError(
        f"Unknown OPTIMIZER {self.name!r}; expected one of {OPTIMIZERS}."
      )

  def make(self) -> optax.GradientTransformation:
    """Returns the optax optimizer."""
    if self.name == "adafactor":
      return optax.adafactor(self.schedule)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(self.schedule))
