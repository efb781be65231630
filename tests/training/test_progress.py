"""Progress lines of a run with the remaining time."""

from specdec_t5x.training import progress


def test_the_remaining_time_is_estimated_from_past_steps():
  now = [0.0]
  lines = []
  with progress.Progress(100, 0, lambda: now[0], lines.append) as bar:
    for step in range(1, 31):
      now[0] += 60.0 if step == 1 else 2.0  # The first step compiles.
      if step == 9:
        bar.show({"loss": 1.25})
      bar.after(step)
  assert lines[0] == "      step 1 of 100"
  assert lines[1] == "      step 9 of 100, loss 1.250, 3 min left"  # 91 times 2 s.
  assert lines[2] == "      step 17 of 100, loss 1.250, 2 min 50 s left"


def test_a_resumed_run_estimates_from_its_new_steps():
  now = [0.0]
  lines = []
  with progress.Progress(100, 90, lambda: now[0], lines.append) as bar:
    for step in (91, 92, 93):
      now[0] += 20.0
      bar.after(step)
  assert lines[1] == "      step 92 of 100, 2 min 40 s left"
