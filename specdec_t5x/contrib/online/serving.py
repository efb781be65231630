"""Serving requests from Python with a draft that learns from them."""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from specdec_t5x import api, arguments, build
from specdec_t5x.api import Generation
from specdec_t5x.build import Model
from specdec_t5x.contrib.online.learner import Learner, Requests
from specdec_t5x.contrib.online.rejections import KeepRejections
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.types import Rule
from specdec_t5x.decoding.checked import check_decoded
from specdec_t5x.decoding.decoders import SpeculativeDecoder
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.decoding.state import Decoded, row_keys
from specdec_t5x.names import python_names
from specdec_t5x.promotion import usual_promotion
from specdec_t5x.vocabularies.frames import framed


def serve(
  requests: Iterable[str],
  target: Model,
  learner: Learner,
  vocabulary: str | os.PathLike,
  *,
  drafter: Drafter | str | None = None,
  rule: Rule | str = "token",
  gamma: int | None = None,
  sampling: Sampling = GREEDY,
  input_length: int = 128,
  max_length: int = 128,
  batch_size: int = 16,
  seed: int = 0,
) -> Iterator[Generation]:
  """Decodes requests as they come, and has the draft learn from them on the way.

  The draft serves `learner.online.interval` requests, then takes a step, and serves the
  next ones as it then is: by one program, compiled once. So outputs are the target's
  own, as `specdec_t5x.generate` gives them; only how long they take changes.

  Args:
    requests: texts, with whatever prefix the models were trained with; read a step's
      worth at a time.
    target: the model whose distribution is kept.
    learner: the draft; it goes on learning from call to call.
    vocabulary: path of the SentencePiece model that both were trained with.
    drafter: how tokens are drafted: an object with the learner's network as 'draft',
      or 'draft_model', the default.
    rule: as `generate`'s.
    gamma: most tokens of a named drafter's draft; 5 by default.
    sampling: temperature, top-k, top-p.
    input_length: the most tokens of a request.
    max_length: the most tokens of an output.
    batch_size: requests decoded at once, of those that are served by one draft.
    seed: of the sampling; a request's sample depends on it, on the request's place, on
      how many steps were taken and, through the draft, on the requests before.

  Yields:
    The outputs, in order.

  Raises:
    ValueError: as `generate`, and where a request is too long or the draft can't learn.
  """
  with python_names(), usual_promotion():
    vocabulary = arguments.path_of(vocabulary, "vocabulary")
    seed = arguments.seed_of(seed)
    input_length = arguments.count(input_length, "input_length")
    max_length = arguments.count(max_length, "max_length")
    batch_size = arguments.count(batch_size, "batch_size")
    arguments.check_sampling(sampling)
    target.generation.check()
    found = api.opened(vocabulary, target)
    decoder, params = together(target, learner, drafter, rule, gamma, batch_size)
    decoder.check(sampling, max_length, 1)
    api.warn_where_lossy(decoder.guarantee)
    end_ids = api.end_tokens(target, found)
    run = api.compiled(decoder, sampling, max_length, end_ids)
    ids = (_encoded(n, text, found, input_length) for n, text in enumerate(requests))
    for decoded in decodes(run, params, learner, ids, input_length, seed):
      yield from api.generations(decoded, found, end_ids)


def together(
  target: Model,
  learner: Learner,
  drafter: Drafter | str | None,
  rule: Rule | str,
  gamma: int | None,
  batch_size: int,
) -> tuple[SpeculativeDecoder, Mapping[str, Any]]:
  """Returns the decoder that hands out what the draft learns from, and its parameters.

  Its arguments are those of `serve`. The drafts' length is fixed: a policy that rests
  where drafts do not pay would have nothing to learn from.
  """
  draft = Model(learner.network, learner.params)
  decoder, params = build.together(
    target, draft, drafter, rule, gamma=gamma, num_candidates=1, policy="fixed"
  )
  slots = min(batch_size, learner.online.interval)
  observer = KeepRejections(learner.online.kept)
  return dataclasses.replace(decoder, slots=slots, observer=observer), params


def decodes(
  run: api.DecodeFn,
  params: Mapping[str, Any],
  learner: Learner,
  ids: Iterable[Sequence[int]],
  input_length: int,
  seed: int,
) -> Iterator[Decoded]:
  """Yields the decodes of as many requests as a step takes, then has the draft learn.

  `run` is the compiled decoder of `together`, `params` its parameters, and `ids` the
  requests' tokens.

  Raises:
    ValueError: where the logits of a request are NaN.
  """
  count, source = learner.online.interval, iter(ids)
  for first in itertools.count(0, count):
    batch = list(itertools.islice(source, count))
    if not batch:
      return
    served = len(batch)
    # One that is not full repeats its first request.
    batch += batch[:1] * (count - served)
    inputs = np.zeros((count, input_length), np.int32)
    for row, tokens in zip(inputs, batch, strict=True):
      row[: len(tokens)] = tokens
    # No draft may know draws that it proposes by: after a step they are all new, from
    # call to call as well (docs/math.md, "A draft that learns while it serves").
    key = jax.random.fold_in(jax.random.key(seed), learner.steps)
    keys = row_keys(key, count, first)
    decoded = run({**params, "draft": learner.params}, inputs, keys)
    decoded = jax.tree.map(lambda x, served=served: x[:served], decoded)
    name = lambda row, first=first: f"request {first + row}"
    check_decoded(decoded.scores, decoded.statistics.acceptance_mass, name)
    yield decoded
    kept = decoded.observed
    outputs = map(np.asarray, (decoded.tokens, kept.tokens, kept.probs))
    learner.learn(Requests(inputs[:served], *outputs))


def _encoded(number: int, text: str, vocabulary, length: int) -> list[int]:
  """Returns a request's tokens, with those around them."""
  text = arguments.text(text, f"requests[{number}]")
  tokens = framed(vocabulary, vocabulary.encode(text))
  if len(tokens) > length:
    raise ValueError(
      f"Request {number} has {len(tokens)} tokens, its end included, more than "
      f"input_length={length}. Raise input_length, or cut it."
    )
  return tokens
