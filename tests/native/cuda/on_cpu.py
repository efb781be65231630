"""The CUDA kernels, compiled for a CPU (cuda_on_cpu.h) and called through ctypes."""

import ctypes
import dataclasses
import pathlib
import struct
import subprocess
from collections.abc import Sequence

import numpy as np

HERE = pathlib.Path(__file__).parent
KERNELS = HERE.parents[2] / "specdec_t5x" / "native" / "cuda"
_LAYERS = 24
_RING = 3  # Chunks of weights in shared memory.


@dataclasses.dataclass(frozen=True)
class Fault:
  """A change of the kernels' source.

  Attributes:
    file: file of `KERNELS`.
    changes: what replaces an expression, or a statement with its semicolon. Each stands
      once in the file.
    after: text before each expression or statement.
  """

  file: str
  changes: dict[str, str]
  after: str = ""


def compiled(folder: pathlib.Path, faults: Sequence[Fault] = ()) -> ctypes.CDLL:
  """Compiles the kernels and returns the library.

  Without faults, the source is the source that nvcc compiles. With faults, the library
  contains all faults, and `plant` chooses one.

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


def _address(array: np.ndarray) -> int:
  assert array.flags.c_contiguous
  return array.ctypes.data


def step(
  library, layout, arrays, caches, *, steps, gated, scale, noise=None, temperature=1.0
):
  """Runs the step on a CPU, updates the caches, and returns the results.

  Args:
    library: from `compiled`.
    layout: a `layout.StepLayout`.
    arrays: the first arrays of `StepArrays` in step.cuh, by name, and the scratch.
    caches: keys, values, cross_keys and cross_values: lists of arrays by layer.
    steps: number of consecutive tokens.
    gated: whether the network is a T5 1.1.
    scale: factor of the logits.
    noise: noise of each step's logits, or None.
    temperature: divisor of the logits before noise is added.
  """
  rows = len(arrays["tokens"])
  results = {
    "chosen": np.full((steps, rows), -1, np.int32),
    "logits": np.full((steps, rows, layout.vocab), np.nan, np.float32),
    "features": np.full((steps, rows, layout.width), 0x7FFF, np.uint16),
  }
  # StepShape of step.cuh.
  integers = (
    *(rows, layout.width, layout.heads, layout.layers, layout.hidden, layout.vocab),
    *(caches["keys"][0].shape[2], caches["cross_keys"][0].shape[2], steps, gated),
    *(arrays["biases"].shape[1], layout.tiles, arrays["weights"].shape[2], _RING),
  )
  shape = struct.pack("14i2f", *integers, scale, temperature)
  # StepArrays of step.cuh.
  names = "tokens", "index", "weights", "embedding", "norms", "biases", "mask"
  addresses = [_address(arrays[name]) for name in names]
  addresses.append(0 if noise is None else _address(noise))
  addresses += map(_address, (arrays["scratch"], *results.values()))
  for name in ("keys", "values", "cross_keys", "cross_values"):
    addresses += map(_address, caches[name])
    addresses += [0] * (_LAYERS - layout.layers)
  pointers = struct.pack(f"{len(addresses)}P", *addresses)
  assert library.specdec_step(layout.cluster, shape, pointers) == 0
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
  results = [np.full((len(x), s.size), 0x7FFF, np.uint16) for _, s in matrices]
  # FewArrays of few.cuh, with room for three matrices.
  arrays = struct.pack("P", _address(x))
  for (weights, scales), y in zip(matrices, results, strict=True):
    pointers = map(_address, (weights, scales, y))
    arrays += struct.pack("3P2i", *pointers, scales.size, 0)
  arrays = arrays.ljust(8 + 3 * 32, b"\0") + struct.pack("2i", *x.shape)
  assert library.specdec_few(bits, cluster, arrays, len(matrices)) == 0
  return results
