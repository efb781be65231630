"""The comparison as a picture: speed-ups and the predictions of Theorem 3.8."""

from benchmarks import plotting
from benchmarks.table import Table


def draw(table: Table, folder: str) -> list[str]:
  """Draws each draft's speed-up with quartiles, in a panel per temperature.

  Args:
    table: the table of `comparison.compare`.
    folder: the folder of comparison.png and comparison.svg.

  Returns:
    The paths of the pictures.
  """
  temperatures = list(dict.fromkeys(row["temperature"] for row in table.rows))
  figure, axes = plotting.new_figure(4 * len(temperatures), 3, len(temperatures))
  for axis, temperature in zip(axes, temperatures, strict=True):
    rows = [row for row in table.rows if row["temperature"] == temperature]
    names = [row["draft"] for row in rows]
    speeds = [row["speed"] for row in rows]
    below = [speed.median - speed.low for speed in speeds]
    above = [speed.high - speed.median for speed in speeds]
    medians = [speed.median for speed in speeds]
    axis.bar(names, medians, 0.6, yerr=[below, above], capsize=4, label="measured")
    theorem = [row["theorem"] for row in rows]
    axis.plot(names, theorem, "_k", markersize=24, label="Theorem 3.8")
    axis.axhline(1, color="0.3", linewidth=1)
    axis.set(title=f"T = {temperature}", ylim=(0, None))
  axes[0].set(ylabel="times as fast as plain decoding")
  axes[0].legend(fontsize=8)
  figure.suptitle(table.title, fontsize=10)
  return plotting.save(figure, folder, table.name)
