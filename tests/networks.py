"""Networks of random parameters, in compiled parts: op by op each op is a program."""

import jax

from specdec_t5x.network.functional import start_decoding


def initialize(module, inputs, seed=0):
  """Returns the variables of an encoder-decoder."""
  init = jax.jit(lambda key: module.init(key, *[inputs] * 3, enable_dropout=False))
  return init(jax.random.key(seed))


def start(module, params, *args, **kwargs):
  """As `start_decoding`."""

  def extend(cache, tokens, *tree):
    return module.apply({"params": params}, cache, tokens, *tree, method="extend")

  begin = lambda params: start_decoding(module, params, *args, **kwargs)[1]
  return jax.jit(extend), jax.jit(begin)(params)
