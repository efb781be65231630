"""Trimming a draft to the tokens that a task's outputs are made of."""

import jax
import numpy as np

from specdec_t5x import api
from specdec_t5x.checkpoints.parameters import T5XParameters
from specdec_t5x.network import hot
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.heads import FeatureDrafter
from specdec_t5x.training import batches
from specdec_t5x.training.checkpoints import new_checkpoint
from specdec_t5x.vocabularies.frames import end_ids_of


def trim_draft(
  task: str,
  draft_checkpoint: str,
  output_dir: str,
  size: int,
  target_checkpoint: str | None = None,
  split: str = "train",
) -> str:
  """Writes a draft that says a task's most frequent tokens alone, as a checkpoint.

  Args:
    task: a registered task; best one of what the target writes (`jobs.written`).
    draft_checkpoint: a draft model, or heads.
    output_dir: gets checkpoint_0.
    size: how many tokens it keeps (K).
    target_checkpoint: of heads, which draft by its projection.
    split: whose targets are counted.

  Returns:
    The checkpoint's path.

  Raises:
    ValueError: saying what was expected, what came, and what to do.
  """
  path = new_checkpoint(output_dir)
  draft = api.load_model(draft_checkpoint)
  network, params = draft.network, jax.tree.map(np.asarray, draft.params.unfreeze())
  is_heads = isinstance(network, FeatureDrafter)
  if getattr(network.config, "hot", 1):
    raise ValueError(
      "DRAFT_CHECKPOINT_PATH must be a draft model or heads that say all tokens, got a "
      f"{type(network).__name__} at {draft_checkpoint}. Trim the one that was trained."
    )
  if is_heads != (target_checkpoint is not None):
    wanted = "the target's, by whose projection they draft" if is_heads else "left out"
    raise ValueError(
      f"TARGET_CHECKPOINT_PATH must be {wanted}: {draft_checkpoint} holds "
      f"{'heads' if is_heads else 'a draft model'}; got {target_checkpoint!r}."
    )
  owner = api.load_model(target_checkpoint) if is_heads else draft
  if owner.network.config.is_gemma:
    raise ValueError(
      "A T5Gemma's projection is its embedding, unscaled, and can't be trimmed. Trim a "
      f"T5's draft, got {target_checkpoint or draft_checkpoint}."
    )
  head = hot.projection(owner.params)
  counts = np.zeros(head.shape[1], np.int64)
  for tokens in batches.targets_of(task, split):
    np.add.at(counts, tokens, 1)
  vocabulary = batches.get_task(task).output_features["targets"].vocabulary
  tokens = hot.frequent(counts, size, end_ids_of(vocabulary))
  config, params = hot.trimmed(network.config, params, tokens, head)
  T5XParameters(network_for(config), output_dir).save(0, params)
  share = counts[tokens].sum() / max(counts.sum(), 1)
  print(f"{path}: {size} of {counts.size} tokens, {share:.1%} of the targets'")
  return path
