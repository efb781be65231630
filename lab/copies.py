"""Copying of texts with given outputs, by a target of random weights."""

import argparse
import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from benchmarks import comparison
from benchmarks.command import Command
from benchmarks.oracle import oracle_start, random_model
from benchmarks.sizes import VOCAB_SIZE
from benchmarks.study import COPY, Decode, Draft, Group, Job, Study
from benchmarks.table import Table
from benchmarks.timed import iterated
from specdec_t5x.data import text_files
from specdec_t5x.vocabularies.opening import open_vocabulary


def make(args: argparse.Namespace) -> Table:
  """Decodes the given output of every input, with copies."""
  return comparison.make("copy", args, _texts(args), package="lab")


@dataclasses.dataclass(frozen=True)
class Replay(Study):
  """A target with random weights, whose argmax is bent to given outputs."""

  # The output of each input, with EOS and padding.
  outputs: tuple[Int[Array, "1 T"], ...] = ()

  def groups(self, rows: int) -> list[Group]:
    """Returns a group per input."""
    return [Group(i, text, rows) for i, text in enumerate(self.inputs)]

  def grouped(self, decode: Decode, rows: int) -> Callable[[Group], Any]:
    """Returns a program that decodes the output of a group's input."""
    run = iterated(oracle_start(decode))
    most = jnp.int32(decode.max_length)
    return lambda group: run(
      most, {"target": self.outputs[group.first]}, *decode.given(group.inputs)
    )


def _texts(args: argparse.Namespace) -> Replay:
  """Returns the texts of the flags with a random target."""
  vocabulary = open_vocabulary(args.vocabulary)
  if vocabulary.vocab_size > VOCAB_SIZE:
    raise ValueError(
      f"--vocabulary {args.vocabulary} has {vocabulary.vocab_size} pieces, more than "
      f"the network's {VOCAB_SIZE}. Use T5's vocabulary, or a smaller vocabulary."
    )

  def padded(text, length):
    """Returns tokens cut to length - 1, with EOS and padding."""
    ended = [*vocabulary.encode(text)[: length - 1], vocabulary.eos_id]
    return jnp.array([ended + [0] * (length - len(ended))], jnp.int32)

  fields = [args.source] if args.lead else [args.source, args.output_field]
  inputs = []
  outputs = []
  for row in text_files.read_fields(args.texts, fields)[: args.num_texts]:
    output = row.get(args.output_field)
    if args.lead:
      sentences = re.split(r"(?<=[.!?]) +", row[args.source])
      output = " ".join(sentences[: args.lead])
    inputs.append(padded(args.prefix + row[args.source], args.input_length))
    outputs.append(padded(output, args.max_length))
  eos_id = vocabulary.eos_id
  job = Job(args.texts, args.size, {COPY: COPY}, lambda: ([], eos_id), args.max_length)
  drafts = (Draft(COPY, COPY, None, COPY, ""),)
  model = random_model(args.size)
  return Replay(job, model, drafts, tuple(inputs), eos_id, tuple(outputs))


COMMAND = Command("copy", make, package="lab")
