"""The part of `editdistance` that seqio uses, computed by RapidFuzz.

editdistance has no wheel for Python 3.13 and newer, so pip would have to compile it.
"""

from collections.abc import Hashable, Sequence

from rapidfuzz.distance import Levenshtein


def eval(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
  """Returns the Levenshtein distance of two sequences.

  >>> eval("kitten", "sitting"), eval([1, 2], []), eval("", "")
  (3, 2, 0)
  """
  return Levenshtein.distance(a, b)
