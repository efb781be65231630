"""Serves requests from Python with a draft that learns online."""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from specdec_t5x import api, arguments, ways
from specdec_t5x.api import Generation
from specdec_t5x.contrib.online.learner import Learner, Requests
from specdec_t5x.contrib.online.rejections import KeepRejections
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.types import Rule
from specdec_t5x.decoding.checked import check_decoded
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.state import Decoded, keys_at
from specdec_t5x.prepared import Model
from specdec_t5x.vocabularies.frames import framed


def serve(
  requests: Iterable[str],
  target: Model,
  learner: Learner,
  vocabulary: str | os.PathLike,
  *,
  rule: Rule | str = "token",
  gamma: int | None = None,
  sampling: Sampling = GREEDY,
  input_length: int = 128,
  max_length: int = 128,
  batch_size: int = 16,
  seed: int = 0,
) -> Iterator[Generation]:
  """Decodes a stream of requests, and trains the draft online.

  The draft takes an optimizer step after every `learner.online.interval` requests, and
  serves the next requests with the new parameters. One program, compiled once, decodes
  all requests. The outputs follow the target's distribution, as in
  `specdec_t5x.generate`. Learning only changes the speed.

  Args:
    requests: texts, with the prefix of the models' training; `serve` takes
      `learner.online.interval` texts at a time.
    target: the target model, which determines the distribution of outputs.
    learner: the draft, which keeps learning from call to call.
    vocabulary: path of the SentencePiece model of both models.
    rule: as for `generate`.
    gamma: maximal draft length; 5 by default.
    sampling: temperature, top-k, top-p.
    input_length: maximal number of tokens of a request.
    max_length: maximal number of tokens of an output.
    batch_size: maximal number of requests that decode at once, at most
      `learner.online.interval`.
    seed: seed of the sampling; a request's sample depends on the seed, on the request's
      place, on the number of steps and, through the draft, on the earlier requests.

  Yields:
    The outputs, in order.

  Raises:
    ValueError: as for `generate`, and if a request is too long or the draft can't
      learn.
  """
  with api.from_python():
    vocabulary = arguments.path_of(vocabulary, "vocabulary")
    seed = arguments.seed_of(seed)
    input_length = arguments.count(input_length, "input_length")
    max_length = arguments.count(max_length, "max_length")
    batch_size = arguments.count(batch_size, "batch_size")
    arguments.check_sampling(sampling)
    target.generation.check()
    opened = api.opened(vocabulary, target)
    decoder, params = together(target, learner, rule, gamma, batch_size)
    decoder.check(sampling, max_length, 1)
    api.warn_where_lossy(decoder.rule.guarantee)
    end_ids = api.end_tokens(target, opened)
    run = api.compiled(decoder, sampling, max_length, end_ids)
    arguments.check_listed(requests, "requests")

    def encoded():
      for number, text in enumerate(requests):
        text = arguments.text(text, f"requests[{number}]")
        tokens = framed(opened, opened.encode(text))
        if len(tokens) > input_length:
          raise ValueError(
            f"Request {number} must have at most input_length={input_length} tokens, "
            f"EOS included, got {len(tokens)}. Raise input_length, or shorten the "
            "request."
          )
        yield tokens

    for decoded in decodes(run, params, learner, encoded(), input_length, seed):
      yield from api.generations(decoded, opened, end_ids)


def together(
  target: Model,
  learner: Learner,
  rule: Rule | str,
  gamma: int | None,
  batch_size: int,
) -> tuple[Decoder, Mapping[str, Any]]:
  """Returns a decoder that keeps rejections for the draft, and the parameters.

  The arguments are those of `serve`. The draft length is fixed: a policy that stops
  drafting if drafts do not pay would leave no rejections to learn from.
  """
  draft = Model(learner.network, learner.params)
  decoder, params = ways.assembled(
    target, draft, "draft_model", rule, gamma=gamma, policy="fixed"
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
  """Yields the decodes of `learner.online.interval` requests, then trains the draft.

  `run` is the compiled decoder of `together`, `params` the decoder's parameters, and
  `ids` the requests' tokens.
  """
  count = learner.online.interval
  source = iter(ids)
  for first in itertools.count(0, count):
    batch = list(itertools.islice(source, count))
    if not batch:
      return
    served = len(batch)
    inputs = np.zeros((count, input_length), np.int32)
    # The first request fills up a batch that is not full.
    for row, tokens in itertools.zip_longest(inputs, batch, fillvalue=batch[0]):
      row[: len(tokens)] = tokens
    # A draft must not propose by draws from the draft's training. Therefore every step
    # changes the key of the draws, also from call to call (docs/math.md, "A draft that
    # learns while it serves").
    key = jax.random.fold_in(jax.random.key(seed), learner.steps)
    keys = keys_at(key, first + np.arange(count))
    decoded = run({**params, "draft": learner.params}, inputs, keys)
    decoded = jax.tree.map(lambda x, served=served: x[:served], decoded)
    check_decoded(
      decoded.statistics.log_prob,
      decoded.statistics.acceptance_mass,
      lambda row, first=first: f"request {first + row}",
    )
    yield decoded
    learner.learn(Requests(inputs[:served], decoded.tokens, decoded.observed))
