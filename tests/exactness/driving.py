"""Compiled rules and the compiled loop, driven along every path of the oracle."""

import functools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.core.distributions import LEVELS, Sampling
from specdec_t5x.core.rules import rule_for
from specdec_t5x.core.types import Candidates, Proposal
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.state import DecodeState, initial_state, num_slots, row_keys
from specdec_t5x.decoding.step import Speculation
from specdec_t5x.decoding.widths import block_widths
from specdec_t5x.drafters.adaptive import AdaptiveDraft
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.multi import IndependentDrafts
from tests.exactness import enumeration, lengths
from tests.exactness.enumeration import Cell, Setting, explore, iterate
from tests.exactness.oracles import JUDGES

# Float32 may misplace so much probability at an edge of a cell; more would show.
MARGIN = 1e-6
LARGEST = 1 - 2.0**-24
PLACES = ("low", "middle", "high")
ANYWHERE = (Cell(0.0, 1.0, 1.0),)


def within(cell, place):
  """A uniform next to an edge of its cell, or in its middle."""
  margin = MARGIN / cell.reached
  if place == "middle" or cell.high - cell.low < 2 * margin:
    return min((cell.low + cell.high) / 2, LARGEST)
  return cell.low + margin if place == "low" else cell.high - margin


def uniforms_of(cells, place):
  """The uniforms of one decision, [L]; those that are not read are garbage."""
  unread = [0.5] * (LEVELS - len(cells))
  return [*unread, *(within(cell, place) for cell in cells)]


def difference(law, other):
  """The largest difference between two laws of outputs."""
  return max(abs(law.get(o, 0.0) - other.get(o, 0.0)) for o in {*law, *other})


# ---- One rule. ----


def rule_laws(rule, setting):
  """The law of outputs at each place of the cells, verdicts by the compiled rule.

  Iterations, drafts and what probability each cell of uniforms has come from the
  oracle; what happens in it from `rule.verify`.
  """
  paths = [
    (prefix, path)
    for prefix in enumeration.prefixes(setting)
    for path in explore(lambda world, p=prefix: iterate(world, setting, p))
  ]
  rows = [_rule_inputs(setting, *path, place) for place in PLACES for path in paths]
  # Rows are repeated up to a power of two: few shapes, so few programs to compile.
  size = 1 << (len(rows) - 1).bit_length()
  columns = [
    jnp.asarray(np.resize(column, (size, *np.shape(column[0]))))
    for column in map(np.stack, zip(*rows, strict=True))
  ]
  target_probs, *draft, uniforms = columns
  kind = Candidates if setting.num_candidates else Proposal
  # A function of its own: a rule with a planted fault must be traced anew.
  verify = jax.jit(lambda *inputs: rule.verify(*inputs))
  verdict = verify(target_probs, kind(*draft), uniforms)
  candidate = np.zeros(size, int)
  if verdict.candidate is not None:
    candidate = verdict.candidate
  columns = [
    np.asarray(c) for c in (verdict.num_accepted, verdict.next_token, candidate)
  ]
  verdicts = np.split(np.stack(columns, axis=1)[: len(rows)], len(PLACES))
  return [_law_of_verdicts(setting, paths, rows.tolist()) for rows in verdicts]


def _law_of_verdicts(setting, paths, verdicts):
  after = {}
  for (num_accepted, next_token, candidate), (prefix, path) in zip(
    verdicts, paths, strict=True
  ):
    draft = path.result[0][candidate]
    output = (*prefix, *draft[:num_accepted], next_token)
    if setting.eos_id in output:
      output = output[: output.index(setting.eos_id) + 1]
    after.setdefault(prefix, []).append((output, path.probability))
  # Where the oracle never ends an iteration the mass is lost, and missed by the caller.
  return enumeration.absorb(setting, lambda prefix: after.get(prefix, []))


def _rule_inputs(setting, prefix, path, place):
  """target_probs, the proposal's fields and uniforms of one path, as one row."""
  drafts, gamma = path.result[0], setting.gamma
  size = setting.target(()).size
  # What does not count is garbage, and must not matter.
  tokens = np.full((len(drafts), gamma), 2)
  draft_probs = np.full((len(drafts), gamma, size), 0.7, np.float32)
  target_probs = np.full((len(drafts), gamma + 1, size), 0.7, np.float32)
  for c, draft in enumerate(drafts):
    tokens[c, : len(draft)] = draft
    for i in range(len(draft) + 1):
      context = (*prefix, *draft[:i])
      target_probs[c, i] = setting.target(context)
      if i < len(draft):
        draft_probs[c, i] = setting.draft(context)
  valid = np.array([len(draft) for draft in drafts])
  first, last = len(drafts) * gamma, 2 * len(drafts) * gamma
  uniforms = [
    uniforms_of(path.cells.get(i, ANYWHERE), place) for i in range(first, last + 1)
  ]
  uniforms = np.array(uniforms, np.float32)
  columns = target_probs, tokens, draft_probs, valid
  if not setting.num_candidates:
    columns = [column[0] for column in columns]
  return *columns, uniforms


# ---- The whole loop. ----


@flax.struct.dataclass
class Driven(DecodeState):
  """A state whose uniforms are prescribed, [B, iterations, count, L]."""

  prescribed: jax.Array = None

  def uniforms(self, count):
    return self.prescribed[:, self.iteration, :count]


@functools.cache
def loop_paths(
  target, draft, sampling, name, gamma, max_length, num_candidates=0, policy=None
):
  """Every path of whole decodes of two table models, by the oracle."""
  laws = target.law(sampling), draft.law(sampling)
  judge = JUDGES[name]
  setting = Setting(*laws, judge, gamma, max_length, num_candidates=num_candidates)
  if policy is None:
    return setting, list(explore(lambda world: enumeration.decode(world, setting)))
  law = draft.law(Sampling()) if sampling.greedy else setting.draft
  decode = lambda world: lengths.decode(world, setting, policy, law)
  return setting, list(explore(decode))


def loop_laws(
  target, draft, sampling, name, gamma, max_length, num_candidates=0, policy=None
):
  """The law of outputs at each place of the cells, by the compiled loop.

  Returns:
    Laws of whole padded outputs, what stands after the end included.
  """
  _, paths = loop_paths(
    target, draft, sampling, name, gamma, max_length, num_candidates, policy
  )
  count = 2 * gamma * max(num_candidates, 1) + 1
  shape = len(PLACES), len(paths), max_length, count, LEVELS
  prescribed = np.full(shape, 0.5, np.float32)
  for rows, place in zip(prescribed, PLACES, strict=True):
    for row, path in zip(rows, paths, strict=True):
      for at, cells in path.cells.items():
        row[at] = uniforms_of(cells, place)
  # A function of its own: a loop with a planted fault must be traced anew.
  run = jax.jit(
    lambda uniforms: drive(
      uniforms, target, draft, sampling, name, gamma, num_candidates, policy
    )
  )
  tokens = run(jnp.asarray(prescribed.reshape(-1, *shape[2:])))
  laws = []
  for outputs in np.split(np.asarray(tokens), len(PLACES)):
    law = {}
    for output, path in zip(map(tuple, outputs.tolist()), paths, strict=True):
      law[output] = law.get(output, 0.0) + path.probability
    laws.append(law)
  return laws


def padded(law, length):
  """A law of outputs, the outputs padded with zeros as the loop's are."""
  return {output + (0,) * (length - len(output)): mass for output, mass in law.items()}


def drive(prescribed, target, draft, sampling, name, gamma, num_candidates, policy):
  """Outputs of the loop under prescribed uniforms [B, iterations, count, L]."""
  rows, max_length, *_ = prescribed.shape
  rule, target_sampling = rule_for(name, sampling)
  count = max(num_candidates, 1)
  slots = num_slots(max_length, gamma * count)
  model, widths = (draft.extend, gamma, sampling), ()
  drafter, drafter_state = DraftModel(*model), draft.start(rows * count, slots)
  if rule.takes_candidates:
    drafter = IndependentDrafts(drafter, count)
  if policy:
    drafter, widths = AdaptiveDraft(*model, policy, max_length, 1), block_widths(gamma)
    drafter_state = drafter.start(drafter_state, rows)
  spec = Speculation(
    target.extend, drafter, rule, target_sampling, gamma, max_length, 1, count, widths
  )
  state = initial_state(
    target.start(rows, slots),
    drafter_state,
    row_keys(jax.random.key(0), rows),
    max_length,
    gamma * count,
    jnp.broadcast_to(jnp.array(target.prompt, jnp.int32), (rows, len(target.prompt))),
  )
  return generate(spec, Driven(**vars(state), prescribed=prescribed)).tokens
