"""Checks the outputs of this device, and our kernels for GPUs against XLA.

  python -m tests.native.device

Prints one line per check. The exit status is 1 if a check fails. Needs JAX, Flax,
jaxtyping, and NumPy.

Shapes: R rows, I inputs, O outputs.
"""

import argparse
import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import tokens
from benchmarks.oracle import random_model
from benchmarks.sizes import SIZES, random_params, t5_1_1
from benchmarks.study import NEVER, Decode, Group, Job, Study
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.native.cuda import few, layout, library
from specdec_t5x.native.cuda.step import DraftStep
from specdec_t5x.network.cache import DecoderCache
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.ways import POLICIES, Model, assembled

PASSED, FAILED, LEFT_OUT = "passed", "failed", "left out"
LINES = 64
BATCH = 16
GAMMA = 5
_INPUTS = 24
_OUTPUTS = 32
_INDEX = 60  # The step's place in the cache.
_STEPS = 7
# Inputs and outputs of XXL's products. The kernel rounds sums to bfloat16 once.
_PRODUCTS = {"attention": (4096, 4096), "feed-forward": (10240, 4096)}
_ROUNDING = 0.01
_SLACK = 1.1  # XLA's own error differs from program to program.
_NOISE = 0.03  # The relative noise of the draft's weights.
_AGREEMENTS = ("float32", None), ("bfloat16", None), ("bfloat16", True)
# Sampled pairs: the vocabulary size, the number of samples, a temperature without rare
# pairs, and the probability of rejecting a right sampler.
_KINDS, _SAMPLES, _TEMPERATURE, _LEVEL = 6, 8192, 8.0, 1e-4

# Returns whether a check passes, and the numbers.
CheckFn = Callable[[], tuple[bool, str]]


@dataclasses.dataclass(frozen=True)
class Check:
  """The result of a check.

  Attributes:
    check: the check's name.
    verdict: `PASSED`, `FAILED` or `LEFT_OUT`.
    found: the numbers, or the reason.
  """

  check: str
  verdict: str
  found: str

  def __str__(self) -> str:
    """Returns the check in one line."""
    return f"{self.verdict}: {self.check}: {self.found}"


def checks(size: str = "small") -> Iterator[Check]:
  """Runs all checks with a network of `size`; yields the results as they come.

  The checks run in parallel, as most of the time is compilation. Quick checks start
  first.
  """
  jobs: dict[str, CheckFn] = {"sampled pairs of tokens": sampled}
  if reason := library.problem():
    yield Check("native kernels", LEFT_OUT, reason)
  else:
    for product, bits in itertools.product(_PRODUCTS, (8, 4)):
      name = f"{product} product of few rows in {bits} bits"
      jobs[name] = functools.partial(few_rows, *_PRODUCTS[product], bits)
    for draft in ("small", "base", "large"):
      jobs[f"draft step of {draft}"] = functools.partial(draft_step, draft)
  jobs["greedy lines in float32 against the CPU's"] = functools.partial(on_cpu, size)
  for dtype, same_bits in _AGREEMENTS:
    words = f"{dtype} with SAME_BITS" if same_bits else dtype
    name = f"greedy lines in {words} against plain decoding's"
    jobs[name] = functools.partial(agreement, size, dtype, same_bits)
  with futures.ThreadPoolExecutor() as pool:
    running = [pool.submit(_tried, name, job) for name, job in jobs.items()]
    for finished in futures.as_completed(running):
      yield finished.result()


def agreement(size: str, dtype: str, same_bits: bool | None = None) -> tuple[bool, str]:
  """Counts the lines that differ from plain decoding, with fixed drafts and 'auto'.

  The draft has the target's weights with noise, so some drafts are accepted. In float32
  and with a fixed width of blocks (SAME_BITS), no line may differ. In bfloat16 lines
  may differ: calls of other shapes round near-ties differently (docs/tpu.md).
  """
  target = random_model(size, dtype)
  leaves, tree = jax.tree.flatten(target.params)
  keys = jax.random.split(jax.random.key(1), len(leaves))
  noisy = [
    x * (1 + _NOISE * jax.random.normal(key, x.shape)).astype(x.dtype)
    for x, key in zip(leaves, keys, strict=True)
  ]
  draft = Model(target.network, jax.tree.unflatten(tree, noisy))
  drafted, params = assembled(target, draft, gamma=GAMMA, same_bits=same_bits)
  decoders = {
    "plain": Decoder(target.network, same_bits=same_bits),
    f"GAMMA={GAMMA}": drafted,
    "auto": dataclasses.replace(drafted, policy=POLICIES["auto"]),
  }
  vocab = target.network.config.vocab_size
  inputs = jax.random.randint(jax.random.key(2), (LINES, _INPUTS), 2, vocab)
  inputs = np.asarray(inputs)
  study = Study(Job("", "", {}, None, _OUTPUTS), target, (), (), NEVER)
  lines = {}
  calls = {}
  # An accelerator multiplies float32 in fewer bits by default.
  with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):
    for name, decoder in decoders.items():
      used = params if decoder.drafter else {"target": target.params}
      decode = Decode(decoder, used, GREEDY, _OUTPUTS)
      outputs = study.grouped(decode, BATCH)(Group(0, inputs, LINES))
      lines[name] = tokens(outputs)
      calls[name] = sum(int(x.statistics.target_calls.sum()) for x in outputs)
  plain = lines.pop("plain")
  parts = []
  differ = 0
  for name, ours in lines.items():
    count = int((ours != plain).any(axis=1).sum())
    differ += count
    per_call = f"{LINES * _OUTPUTS / calls[name]:.1f} tokens a call"
    parts.append(f"{name} {count} of {LINES} differ, {per_call}")
  may_differ = dtype != "float32" and not same_bits
  return not differ or may_differ, "; ".join(parts)


def on_cpu(size: str) -> tuple[bool, str]:
  """Counts the lines of plain decoding that differ from lines decoded on the CPU."""
  if jax.default_backend() == "cpu":
    return True, "this device is the CPU"
  target = random_model(size, "float32")
  vocab = target.network.config.vocab_size
  inputs = jax.random.randint(jax.random.key(2), (BATCH, _INPUTS), 2, vocab)

  def lines(device):
    with jax.default_device(device), jax.default_matmul_precision("highest"):
      params = jax.device_put({"target": target.params}, device)
      decode = Decode(Decoder(target.network), params, GREEDY, _OUTPUTS)
      return tokens([decode(*jax.device_put(decode.given(inputs)[1:], device))])

  ours = lines(jax.devices()[0])
  on_host = lines(jax.devices("cpu")[0])
  differ = int((ours != on_host).any(axis=1).sum())
  return not differ, f"{differ} of {BATCH} differ"


def sampled(rule: str = "token") -> tuple[bool, str]:
  """Compares sampled pairs of tokens with the target's distribution, by chi-squared.

  The network is tiny, so all pairs can be enumerated. The level is `_LEVEL`.
  """
  config = dataclasses.replace(
    t5_1_1("tiny"), vocab_size=_KINDS, num_encoder_layers=1, num_decoder_layers=1
  )
  target = Transformer(config)
  draft = Transformer(config)
  params = {"target": random_params(target, 0), "draft": random_params(target, 1)}
  inputs = jnp.arange(2, _KINDS, dtype=jnp.int32)[None]
  decoder = Decoder(target, DraftModel(draft, 2), RULES[rule])
  decode = Decode(decoder, params, Sampling(_TEMPERATURE), 2)
  rows = jnp.repeat(inputs, _SAMPLES, axis=0)
  pairs = np.asarray(decode(*decode.given(rows)[1:]).tokens)
  counts = np.bincount(pairs @ [_KINDS, 1], minlength=_KINDS**2)
  # The distribution after the start token, and after each first token.
  firsts = jnp.arange(_KINDS, dtype=jnp.int32)[:, None]
  forced = jnp.pad(firsts, ((0, 0), (1, 0)))
  logits = target.apply(
    {"params": params["target"]},
    jnp.repeat(inputs, _KINDS, axis=0),
    forced,
    jnp.ones_like(forced),
    enable_dropout=False,
  )
  probs = np.asarray(jax.nn.softmax(logits / _TEMPERATURE), np.float64)
  expected = (probs[0, 0][:, None] * probs[:, 1]).ravel() * _SAMPLES
  statistic = ((counts - expected) ** 2 / expected).sum()
  freedom = _KINDS**2 - 1
  chance = float(jax.scipy.special.gammaincc(freedom / 2, statistic / 2))
  return chance > _LEVEL, f"p = {chance:.2g} of {_SAMPLES} pairs"


def draft_step(size: str) -> tuple[bool, str]:
  """Compares two layers of a draft's step with XLA's network.

  The kernel's logits must be about as close to float32 logits as XLA's bfloat16 logits.
  Several steps in one launch must equal steps one after the other. Steps with noise
  must choose the argmax of logits / temperature + noise.
  """
  small = {"num_encoder_layers": 1, "num_decoder_layers": 2}
  networks = [
    Transformer(dataclasses.replace(t5_1_1(size, dtype), **small))
    for dtype in ("float32", "bfloat16")
  ]
  c = networks[1].config
  shape = c.emb_dim, c.num_heads, c.mlp_dim, c.vocab_size, c.num_decoder_layers
  step = DraftStep(layout.StepLayout(*shape, layout.cluster_of(c.num_heads)))
  if reason := step.problem(1):
    return False, reason
  params = random_params(networks[1], 0)
  cache = _cache(c)
  token = jnp.array([17])

  @functools.partial(jax.jit, static_argnums=0)
  def extend(network, params, cache):
    outputs = network.apply({"params": params}, cache, token[:, None], method="extend")
    return outputs[0][:, 0]

  wide = jax.tree.map(_widened, (params, cache))
  with jax.default_matmul_precision("highest"):
    exact = extend(networks[0], *wide)
  by_xla = _error(extend(networks[1], params, cache), exact)
  run = jax.jit(step, static_argnames="steps")
  weights = jax.jit(step.prepared)(params)
  chosen, logits, _, _, scratch = run(weights, token, cache, step.scratch(1))
  ours = _error(logits[0], exact)
  together = run(weights, token, cache, scratch, steps=_STEPS)
  scratch = together[4]
  noise = jax.random.gumbel(jax.random.key(2), (_STEPS, 1, c.vocab_size))
  words = {"steps": _STEPS, "noise": noise, "temperature": _TEMPERATURE}
  drawn = run(weights, token, cache, scratch, **words)
  scratch = drawn[4]
  perturbed = drawn[1] / _TEMPERATURE + noise
  coupled = bool((perturbed.argmax(-1) == drawn[0]).all())
  single = []
  for _ in range(_STEPS):
    tokens, step_logits, _, cache, scratch = run(weights, token, cache, scratch)
    token = tokens[0]
    single.append(step_logits[0])
  equal = bool((together[1] == jnp.stack(single)).all())
  largest = bool((logits[0].argmax(-1) == chosen[0]).all())
  found = f"error {ours:.4f}, XLA's {by_xla:.4f}; argmax {_is(largest)}"
  passed = ours <= _SLACK * by_xla and largest and equal and coupled
  launch = f"{_STEPS} steps in one launch {_is(equal)}, with noise {_is(coupled)}"
  return passed, f"{found}; {launch}"


def few_rows(inputs: int, outputs: int, bits: int) -> tuple[bool, str]:
  """Compares a product of 8 rows with XLA's, and a row's bits with the row alone."""
  keys = jax.random.split(jax.random.key(0), 2)
  x = jax.random.normal(keys[1], (few.MOST_ROWS, inputs)).astype(jnp.bfloat16)
  most = 2 ** (bits - 1)
  codes = jax.random.randint(keys[0], (inputs, outputs), -most, most, jnp.int8)
  scales = jnp.linspace(1 / most, 2 / most, outputs, dtype=jnp.bfloat16)
  wide = codes.astype(jnp.float32) * scales.astype(jnp.float32)
  if bits == 4:
    # Codes are in two's complement, with the even column in the lower half.
    halves = (codes & 15).astype(jnp.uint8)
    codes = halves[:, ::2] | halves[:, 1::2] << 4
  weights = {"codes": codes, "scales": scales[None]}
  exact = jnp.dot(x.astype(jnp.float32), wide, precision="highest")
  multiply = jax.jit(lambda x, weights: few.multiply(x, weights)[0])
  product = multiply(x, weights)
  error = _error(product, exact)
  equal = bool((multiply(x[3:4], weights)[0] == product[3]).all())
  return error <= _ROUNDING and equal, f"error {error:.4f}; a row alone {_is(equal)}"


def _cache(config) -> DecoderCache:
  def draw(key, length):
    shape = config.num_decoder_layers, 1, config.num_heads, length, config.head_dim
    return tuple(jax.random.normal(key, shape, jnp.bfloat16))

  keys = jax.random.split(jax.random.key(1), 4)
  slots = _INDEX + 2 * _STEPS
  return DecoderCache(
    index=jnp.array([_INDEX]),
    keys=draw(keys[0], slots),
    values=draw(keys[1], slots),
    cross_keys=draw(keys[2], _INPUTS),
    cross_values=draw(keys[3], _INPUTS),
    encoder_mask=jnp.ones((1, _INPUTS), bool).at[:, -5:].set(False),
  )


def _widened(x):
  return x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x


def _error(ours, exact) -> float:
  ours, exact = (np.asarray(x.astype(jnp.float32), np.float64) for x in (ours, exact))
  return float(np.linalg.norm(ours - exact) / np.linalg.norm(exact))


def _is(equal: bool) -> str:
  return "equal" if equal else "DIFFERENT"


def _tried(name: str, check: CheckFn) -> Check:
  """Runs a check; an error of the device is a failed check."""
  try:
    passed, words = check()
  except jax.errors.JaxRuntimeError as error:
    return Check(name, FAILED, str(error).splitlines()[0])
  return Check(name, PASSED if passed else FAILED, words)


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the checks and returns the exit status: 1 if one failed."""
  parser = argparse.ArgumentParser(prog="python -m tests.native.device")
  parser.add_argument("--size", default="small", choices=SIZES)
  failed = False
  for check in checks(parser.parse_args(argv).size):
    print(check, flush=True)
    failed |= check.verdict == FAILED
  return int(failed)


if __name__ == "__main__":
  sys.exit(main())
