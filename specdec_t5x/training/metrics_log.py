"""A run's measurements: one JSON object a line, in <OUTPUT_DIR>/metrics.jsonl."""

import json
from collections.abc import Mapping

from etils import epath

METRICS = "metrics.jsonl"


class MetricsLog:
  """Appends measurements; a resumed run drops those of steps that it takes again.

  Args:
    directory: of the run.
    step: the step that the run goes on from.
  """

  def __init__(self, directory: str, step: int):
    self._path = epath.Path(directory) / METRICS
    if not self._path.exists():
      return
    # A killed run may have left half a line at the end.
    whole = [x for x in self._path.read_text().splitlines() if x.endswith("}")]
    kept = [line for line in whole if json.loads(line)["step"] <= step]
    partial = self._path.with_name(f"{METRICS}.partial")
    partial.write_text("".join(f"{line}\n" for line in kept))
    partial.replace(self._path)

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Appends {"step": step, **values}."""
    # Not epath's open(): buckets can't append, and a run's log is on its machine.
    line = json.dumps({"step": step, **values})
    with self._path.open("a") as file:
      file.write(line + "\n")
