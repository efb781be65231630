"""Common functions of the figures. No other module imports matplotlib."""

import importlib.util
import pathlib


def require_matplotlib() -> None:
  """Raises a ValueError if matplotlib is not installed."""
  if importlib.util.find_spec("matplotlib") is None:
    raise ValueError(
      "Figures need matplotlib, but matplotlib is not installed. Install matplotlib "
      "with pip install 'specdec_t5x[reproduce]'; the tables do not need matplotlib."
    )


def new_figure(width: float, height: float, panels: int = 1):
  """Returns a figure and a list of axes side by side."""
  # `Figure` needs no window system and no global state, unlike pyplot.
  from matplotlib.figure import Figure

  figure = Figure(figsize=(width, height), layout="constrained")
  axes = figure.subplots(1, panels, squeeze=False)[0]
  for axis in axes:
    axis.grid(alpha=0.3, linewidth=0.6)
  return figure, list(axes)


def save(figure, folder: str, name: str) -> list[str]:
  """Writes NAME.png and NAME.svg and returns their paths."""
  from matplotlib import rc_context

  paths = [pathlib.Path(folder) / f"{name}.{kind}" for kind in ("png", "svg")]
  paths[0].parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(paths[0], dpi=150)
  # Without a date and random names, equal figures give equal files.
  with rc_context({"svg.hashsalt": name}):
    figure.savefig(paths[1], metadata={"Date": None})
  return list(map(str, paths))
