"""The CUDA kernels, compiled for a CPU (cuda_on_cpu.h) and called through ctypes."""

import ctypes
import dataclasses
import pathlib
import subprocess
from collections.abc import Sequence

import numpy as np

HERE = pathlib.Path(__file__).parent
KERNELS = HERE.parents[2] / "specdec_t5x" / "native" / "cuda"
_ROWS = 8
_LAYERS = 24
_SUMS = 32
_RING = 3


class StepShape(ctypes.Structure):
  """StepShape of step.cuh."""

  _fields_ = [
    *((name, ctypes.c_int) for name in ("rows", "width", "heads", "layers", "hidden")),
    *((name, ctypes.c_int) for name in ("vocab", "slots", "inputs", "steps", "gated")),
    *((name, ctypes.c_int) for name in ("distances", "tiles", "chunks", "ring")),
    *((name, ctypes.c_float) for name in ("scale", "temperature")),
  ]


class StepArrays(ctypes.Structure):
  """StepArrays of step.cuh."""

  _fields_ = [
    *((name, ctypes.c_void_p) for name in ("tokens", "index", "weights", "embedding")),
    *((name, ctypes.c_void_p) for name in ("norms", "biases", "mask", "noise")),
    ("scratch", ctypes.c_void_p),
    *((name, ctypes.c_void_p) for name in ("chosen", "logits", "features")),
    *((name, ctypes.c_void_p * _LAYERS) for name in ("keys", "values")),
    *((name, ctypes.c_void_p * _LAYERS) for name in ("cross_keys", "cross_values")),
  ]


class FewMatrix(ctypes.Structure):
  """FewMatrix of few.cuh."""

  _fields_ = [
    *((name, ctypes.c_void_p) for name in ("weights", "scales", "y")),
    ("outputs", ctypes.c_int),
    ("blocks", ctypes.c_int),
  ]


class FewArrays(ctypes.Structure):
  """FewArrays of few.cuh."""

  _fields_ = [
    ("x", ctypes.c_void_p),
    ("matrices", FewMatrix * 3),
    *((name, ctypes.c_int) for name in ("rows", "inputs")),
  ]


@dataclasses.dataclass(frozen=True)
class Fault:
  """A change of the kernels' source.

  Attributes:
    file: file of `KERNELS`.
    changes: statements, which end with a semicolon, or expressions by what replaces
      them. Each stands once in the file.
    after: text before each statement or expression.
  """

  file: str
  changes: dict[str, str]
  after: str = ""


def compiled(folder: pathlib.Path, faults: Sequence[Fault] = ()) -> ctypes.CDLL:
  """Compiles the kernels and returns the library.

  Without faults the source is the source that nvcc compiles. With faults, the library
  has all of them, and `plant` chooses one.

  Args:
    folder: folder to build in.
    faults: the faults.
  """
  for path in KERNELS.glob("*.cuh"):
    text = path.read_text()
    for number, fault in enumerate(faults):
      for old, new in fault.changes.items() if path.name == fault.file else ():
        assert text.count(fault.after + old) == 1, (fault, old)
        is_planted = f"specdec_fault == {number}"
        switch = f"({is_planted} ? {new} : {old})"
        if old.endswith(";"):
          switch = f"if ({is_planted}) {{ {new} }} else {{ {old} }}"
        text = text.replace(fault.after + old, fault.after + switch)
    (folder / path.name).write_text(text)
  flags = ["-O1", "-std=c++20", "-pthread", "-fno-strict-aliasing", "-fPIC", "-w"]
  sizes = "-DSPECDEC_STEP_THREADS=128", "-DSPECDEC_FEW_WARPS=4"
  source = HERE / "kernels_on_cpu.cc"
  library = folder / "kernels.so"
  command = ["g++", "-shared", *flags, *sizes, f"-I{folder}", f"-I{HERE}", str(source)]
  subprocess.run([*command, "-o", str(library)], check=True)
  return ctypes.CDLL(str(library))


def plant(library: ctypes.CDLL, number: int) -> None:
  """Plants a fault of a library that was compiled with faults; -1 plants no fault."""
  ctypes.c_int.in_dll(library, "specdec_fault").value = number


def pointer(array: np.ndarray) -> int:
  """Returns the address of a contiguous array."""
  assert array.flags.c_contiguous
  return array.ctypes.data


def step_arguments(
  layout,
  arrays,
  caches,
  *,
  steps=1,
  gated=True,
  scale=1.0,
  ring=_RING,
  noise=None,
  temperature=1.0,
):
  """Returns the arguments of the step and the result arrays.

  Args:
    layout: a `layout.StepLayout`.
    arrays: the input arrays of `StepArrays` by name.
    caches: lists of arrays by layer, by name.
    steps: number of consecutive tokens.
    gated: whether the network is a T5 1.1.
    scale: factor of the logits.
    ring: chunks in shared memory.
    noise: noise of each step's logits, or None.
    temperature: divisor of the logits before noise is added.
  """
  rows = len(arrays["tokens"])
  slots, inputs = (caches[k][0].shape[2] for k in ("keys", "cross_keys"))
  sizes = {
    **{"rows": rows, "width": layout.width, "heads": layout.heads},
    **{"layers": layout.layers, "hidden": layout.hidden, "vocab": layout.vocab},
    **{"slots": slots, "inputs": inputs, "steps": steps, "gated": int(gated)},
    **{"distances": arrays["biases"].shape[1], "tiles": layout.tiles},
    **{"chunks": arrays["weights"].shape[2], "ring": ring, "scale": scale},
    "temperature": temperature,
  }
  results = {
    "chosen": np.full((steps, rows), -1, np.int32),
    "logits": np.full((steps, rows, layout.vocab), np.nan, np.float32),
    "features": np.full((steps, rows, layout.width), 0x7FFF, np.uint16),
  }
  given = {**arrays, **results} | ({} if noise is None else {"noise": noise})
  arguments = StepArrays(**{k: pointer(v) for k, v in given.items()})
  for name, buffers in caches.items():
    for i, buffer in enumerate(buffers):
      getattr(arguments, name)[i] = pointer(buffer)
  return StepShape(**sizes), arguments, results


def step(library, layout, arrays, caches, **settings):
  """Runs the step on a CPU, updates the caches, and returns the results.

  Args:
    library: from `compiled`.
    layout: see `step_arguments`.
    arrays: see `step_arguments`; read only.
    caches: see `step_arguments`; read and written.
    **settings: further arguments of `step_arguments`.
  """
  shape, arguments, results = step_arguments(layout, arrays, caches, **settings)
  status = library.specdec_step(
    layout.cluster, ctypes.byref(shape), ctypes.byref(arguments)
  )
  assert status == 0
  return results


def few(library, bits, cluster, x, matrices):
  """Runs the products of few rows and returns the results as bits of bfloat16.

  Args:
    library: from `compiled`.
    bits: bits of a weight.
    cluster: blocks that divide the inputs.
    x: bits of bfloat16, [R, I].
    matrices: (weights, scales) by matrix.
  """
  rows, inputs = x.shape
  arrays = FewArrays(x=pointer(x), rows=rows, inputs=inputs)
  results = []
  for i, (weights, scales) in enumerate(matrices):
    y = np.full((rows, scales.size), 0x7FFF, np.uint16)
    matrix = arrays.matrices[i]
    matrix.weights = pointer(weights)
    matrix.y = pointer(y)
    matrix.outputs = scales.size
    matrix.scales = pointer(scales)
    results.append(y)
  count = len(matrices)
  assert library.specdec_few(bits, cluster, ctypes.byref(arrays), count) == 0
  return results
