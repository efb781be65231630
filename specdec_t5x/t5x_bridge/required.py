"""The error of a configuration that needs a pair of checkpoints and got none."""

from typing import NoReturn


def pair(config: str, example: str) -> NoReturn:
  """Raises an error that explains how to set a pair; a placeholder in gin files.

  Args:
    config: the gin file without a pair.
    example: a gin file with a pair.

  Raises:
    ValueError: always.
  """
  raise ValueError(
    f"{config} needs a target and a draft: add --gin_file={example} or another file of "
    "configs/pairs/ with --gin.TARGET_CHECKPOINT_PATH and --gin.DRAFT_CHECKPOINT_PATH, "
    "or a gin file of your own with the two paths, VOCABULARY_PATH and the sizes of "
    "the networks."
  )
