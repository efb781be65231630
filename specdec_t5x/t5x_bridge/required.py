"""What a configuration without a pair of its own says when it is run bare."""

from typing import NoReturn


def pair(config: str, example: str) -> NoReturn:
  """Stands in gin files where a pair's values belong, and says how to give one.

  Args:
    config: the gin file that lacks a pair.
    example: a gin file that has one.

  Raises:
    ValueError: always.
  """
  raise ValueError(
    f"{config} needs a target and a draft, and no demo pair is made for its task. Add "
    f"--gin_file={example} or another file of configs/pairs/ with "
    "--gin.TARGET_CHECKPOINT_PATH and --gin.DRAFT_CHECKPOINT_PATH; a file of your own "
    "binds those two, VOCABULARY_PATH and the sizes of the networks, as they do."
  )
