r"""Checks and times the CUDA kernels against XLA on a GPU: cells of JSON in a folder.

  python lab/gpu_kernels.py --output DIR --times FILE [--parts tune native step]

Needs jax for the GPU, flax, jaxtyping and NumPy, and FILE, which is built beforehand:

  nvcc -std=c++20 -O3 -arch=sm_90 -shared -Xcompiler=-fPIC,-w -w \
    -Ispecdec_t5x/native/cuda lab/gpu_times.cu -o FILE

Each part is a process of its own with a time limit, so that a kernel that hangs costs
one part. Each cell is written as soon as it is measured. Times are medians of runs
after the third, in loops inside a program. The parts tune and native run the kernels
without XLA.

Shapes: R rows, N tokens of a block.
"""

import argparse
import contextlib
import ctypes
import datetime
import functools
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time
from concurrent import futures

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

PARTS = {"tune": 20, "native": 45, "xxl": 80, "step": 45, "check": 90, "few": 60}
GAMMA, SLOTS, INPUTS, START = 7, 136, 128, 60
_WARM, _RUNS = 3, 5
_LIST = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION"
_NAME, _LEAST = "xla_gpu_enable_command_buffer", "xla_gpu_graph_min_graph_size"
BUFFERS = {
  "default": {},
  "none": {_NAME: ""},
  "while": {_NAME: f"{_LIST},WHILE", _LEAST: 2},
  "while, conditional": {_NAME: f"{_LIST},WHILE,CONDITIONAL", _LEAST: 2},
}
# Inputs and outputs of XXL's products: query, key and value; the other three of
# attention; the two into the feed-forward layer; the one out of it; logits.
XXL = {
  "qkv": (4096, 12288),
  "out": (4096, 4096),
  "wi": (4096, 20480),
  "wo": (10240, 4096),
  "logits": (4096, 32128),
}
# KiB of the next matrix that a product brings to the cache.
AHEAD = (0, 8192, 20480)
_lock = threading.Lock()


class Cells:
  """The file of results."""

  def __init__(self, folder):
    self.path = pathlib.Path(folder) / "cells.jsonl"
    self.path.parent.mkdir(parents=True, exist_ok=True)

  def add(self, **cell):
    """Writes one cell."""
    with _lock, self.path.open("a") as file:
      file.write(json.dumps(cell) + "\n")
    print(json.dumps(cell), flush=True)

  def all(self):
    """Returns all cells."""
    if not self.path.exists():
      return []
    return [json.loads(line) for line in self.path.read_text().splitlines()]

  @contextlib.contextmanager
  def tried(self, **key):
    """Writes down an error instead of raising it."""
    try:
      yield
    except Exception as error:
      self.add(**key, error=f"{type(error).__name__}: {str(error)[:400]}")


# ---- Which division of the products is fastest. ----


def tune(cells, args):
  """Times products of few rows alone, one launch after the other, without JAX."""
  kernels = ctypes.CDLL(args.times)
  kernels.specdec_few_time.restype = ctypes.c_float
  for name, (inputs, outputs) in XXL.items():
    for bits in (16, 8, 4):
      size = inputs * outputs * bits // 8
      repeats = max(2, min(24, 600_000_000 // size))
      found = {}
      for cluster, unroll, ahead in itertools.product((1, 2, 4, 8), (1, 2), AHEAD):
        times = []
        for rows in (1, 8):
          given = bits, cluster, unroll, rows, inputs, outputs, repeats, ahead
          times.append(round(kernels.specdec_few_time(*given), 2))
        found[f"{cluster},{unroll},{ahead}"] = times
      right = {k: v for k, v in found.items() if min(v) > 0}
      best = min(right, key=lambda k: sum(right[k]), default=None)
      share = [round(size / us / 1e6 / 3.35, 3) for us in right.get(best, ())]
      cell = {"part": "tune", "name": name, "bits": bits}
      cells.add(**cell, best=best, of_peak=share, best_us=right.get(best), us=found)


def native(cells, args):
  """Checks and times the step without XLA."""
  import ml_dtypes
  import numpy as np

  from specdec_t5x.native.cuda import layout as layouts
  from specdec_t5x.network.layers import bucket
  from specdec_t5x.network.sizes import t5_1_1
  from tests.native.cuda import on_cpu, plain

  kernels = ctypes.CDLL(args.times)
  random = np.random.default_rng(0)
  bits = lambda x: np.array(x, ml_dtypes.bfloat16, order="C").view(np.uint16)

  def run(layout, arrays, caches, steps, launches, cooperative=1):
    ring = args.ring
    while True:
      given = on_cpu.step_arguments(layout, arrays, caches, steps=steps, ring=ring)
      shape, pointers, made = given
      room = kernels.specdec_step_room(layout.cluster, ctypes.byref(shape))
      if room >= layout.heads or ring == 6:
        break
      ring -= 1
    us = (ctypes.c_float * 2)()
    given = ctypes.byref(shape), ctypes.byref(pointers), cooperative, launches, us
    error = kernels.specdec_step_run(layout.cluster, *given)
    if error:
      raise RuntimeError(f"CUDA error {error}, room for {room} clusters, ring {ring}")
    return made, {"us": [round(x, 2) for x in us], "ring": ring, "room": room}

  def state(layout, rows, slots=SLOTS, inputs=INPUTS):
    cache = lambda n: [
      bits(random.normal(size=(rows, layout.heads, n, 64)))
      for _ in range(layout.layers)
    ]
    mask = random.random((rows, inputs)) < 0.8
    caches = {"keys": cache(slots), "values": cache(slots)}
    caches |= {"cross_keys": cache(inputs), "cross_values": cache(inputs)}
    return caches, {
      "tokens": random.integers(0, layout.vocab, rows).astype(np.int32),
      "index": ((START - 11 * np.arange(rows)) % 120).astype(np.int32),
      "mask": mask,
      "scratch": np.zeros(layouts.scratch_words(layout, rows), np.uint32),
    }

  checks = [("small", 16, 1, 2, 3), ("small", 8, 3, 2, 1), ("base", 8, 8, 2, 1)]
  checks += [("large", 4, 1, 2, 1), ("small", 16, 5, 1, 2), ("large", 4, 8, 1, 1)]
  for size, cluster, rows, layers, steps in _some(checks[1:4], checks, args):
    c = t5_1_1(size)
    shape = c.emb_dim, c.num_heads, c.mlp_dim, 5000, layers, cluster
    key = {"part": "native", "check": size, "cluster": cluster, "rows": rows}
    with cells.tried(**key):
      layout = layouts.StepLayout(*shape)
      params = plain.parameters(random, layout, True)
      caches, arrays = state(layout, rows)
      table = params["decoder"]["relpos_bias"]["rel_embedding"]
      arrays |= {
        "weights": bits(layouts.stream(layout, params)),
        "embedding": bits(params["token_embedder"]["embedding"]),
        "norms": bits(layouts.norms(layout, params)),
        "biases": np.array(layouts.distance_biases(table, bucket)),
      }
      floats = lambda x: x.view(ml_dtypes.bfloat16).astype(np.float64)
      exact = {k: [floats(x) for x in v] for k, v in caches.items()}
      made, _ = run(layout, arrays, caches, steps, 0)
      tokens, index, errors = arrays["tokens"], arrays["index"].copy(), []
      for i in range(steps):
        logits, _ = plain.step(params, exact, tokens, index, arrays["mask"], True, 1.0)
        errors.append(round(_norm_error(made["logits"][i], logits), 5))
        best = made["logits"][i].argmax(-1)
        assert (best == made["chosen"][i]).all(), (best, made["chosen"][i])
        tokens, index = made["chosen"][i], index + 1
      pairs = [
        (ours, theirs)
        for name in ("keys", "values")
        for ours, theirs in zip(caches[name], exact[name], strict=True)
      ]
      cached = max(_norm_error(floats(ours), theirs) for ours, theirs in pairs)
      cells.add(**key, steps=steps, logits_error=errors, caches_error=round(cached, 6))

  block = bits(random.normal(size=1 << 22) * 0.03)
  sizes = [("small", 8), ("base", 8), ("large", 4), ("small", 16), ("base", 4)]
  wanted = [
    *((s, 1, n) for s in sizes for n in (1, GAMMA)),
    *((s, r, 1) for s in sizes[:3] for r in (4, 8)),
  ]
  for (size, cluster), rows, steps in _some(wanted[:8], wanted, args):
    key = {"part": "native", "time": size, "cluster": cluster, "rows": rows}
    with cells.tried(**key):
      layout = _draft(size, cluster).layout
      caches, arrays = state(layout, rows)
      chunks = _chunks(layout)
      arrays |= {
        "weights": np.resize(block, (layout.heads, cluster, chunks, 8192)),
        "embedding": np.resize(block, (layout.vocab, layout.width)),
        "norms": bits(np.ones((3 * layout.layers + 1, layout.width))),
        "biases": random.normal(size=(layout.heads, 129)).astype(np.float32),
      }
      made, found = run(layout, arrays, caches, steps, GAMMA if steps == 1 else 1)
      found["us"] = [round(x / steps, 2) for x in found["us"]]
      found["finite"] = bool(np.isfinite(made["logits"]).all())
      if hasattr(kernels, "specdec_step_stamps"):
        # A library with clocks in the kernel: cycles at points of one layer.
        stamps = (ctypes.c_longlong * 40)()
        kernels.specdec_step_stamps(stamps)
        clocks = [[x for x in stamps[i : i + 11] if x] for i in (0, 12, 24)]
        found["cycles"] = [np.diff(one).tolist() for one in clocks]
      cells.add(**key, steps=steps, **found)


def _some(quick, full, args):
  if args.times_only:
    return [case for case in quick if case[1:] == (1, 1)]
  return quick if args.quick else full


def _chunks(layout):
  """Returns the chunks of a block's stream."""
  k_steps, hidden = layout.width // layout.cluster // 16, layout.hidden // 16
  layer = k_steps * (12 + 4 + 4 + 4 + 2 * hidden + hidden)
  return -(-(layer * layout.layers + layout.tiles * layout.width // 16) // 32)


def _divided(cells):
  """Returns the fastest divisions that `tune` found."""
  from specdec_t5x.native.cuda import few

  found = {}
  for cell in cells.all():
    if cell.get("part") == "tune" and cell["best"]:
      cluster, unroll, _ = map(int, cell["best"].split(","))
      found[cell["name"], cell["bits"]] = few.Tuning(cluster, unroll)
  return found


# ---- What XLA and the kernel compute. ----


def _network(size, dtype="bfloat16"):
  from specdec_t5x.network.sizes import random_params, t5_1_1
  from specdec_t5x.network.transformer import Transformer

  module = Transformer(t5_1_1(size, dtype))
  return module, functools.partial(random_params, module, 0)


def _cache(config, rows, index, dtype="bfloat16", seed=1):
  import jax
  import jax.numpy as jnp

  from specdec_t5x.network.cache import DecoderCache

  def arrays(length, key):
    shape = rows, config.num_heads, length, 64
    keys = jax.random.split(key, config.num_decoder_layers)
    draw = lambda k: jax.random.normal(k, shape, jnp.bfloat16).astype(dtype)
    return tuple(jax.jit(jax.vmap(draw))(keys))

  keys = jax.random.split(jax.random.key(seed), 4)
  mask = jnp.ones((rows, INPUTS), bool).at[:, INPUTS - 20 :].set(False)
  return DecoderCache(
    index=jnp.full((rows,), index, jnp.int32),
    keys=arrays(SLOTS, keys[0]),
    values=arrays(SLOTS, keys[1]),
    cross_keys=arrays(INPUTS, keys[2]),
    cross_values=arrays(INPUTS, keys[3]),
    encoder_mask=mask,
  )


def _draft(size, cluster=None):
  from specdec_t5x.native.cuda import layout
  from specdec_t5x.network import draft_step
  from specdec_t5x.network.sizes import t5_1_1

  c = t5_1_1(size)
  shape = c.emb_dim, c.num_heads, c.mlp_dim, c.vocab_size, c.num_decoder_layers
  cluster = cluster or layout.cluster_of(c.num_heads)
  return draft_step.DraftStep(layout.StepLayout(*shape, cluster))


def _norm_error(ours, theirs):
  import numpy as np

  ours, theirs = (np.asarray(x, np.float64) for x in (ours, theirs))
  return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def check(cells, args):
  """Compares the kernels with XLA in float32."""
  with cells.tried(part="check", few="all"):
    _check_few(cells, args)
  cases = [("small", 8, 1), ("large", 4, 1), ("base", 8, 1), ("small", 16, 8)]
  cases += [("base", 8, 4), ("large", 4, 2), ("small", 16, 3)]
  for size, cluster, rows in cases[:2] if args.quick else cases:
    key = {"part": "check", "size": size, "cluster": cluster, "rows": rows}
    with cells.tried(**key):
      cells.add(**key, **_checked_step(size, cluster, rows))


def _checked_step(size, cluster, rows):
  import jax
  import jax.numpy as jnp
  import numpy as np

  module, make = _network(size)
  exact, _ = _network(size, "float32")
  params = make()
  draft = _draft(size, cluster)
  if reason := draft.problem(rows):
    return {"problem": reason}
  weights = jax.jit(draft.prepared)(params)
  index = jnp.asarray([(START - 11 * i) % 120 for i in range(rows)], jnp.int32)
  tokens = jnp.arange(rows, dtype=jnp.int32) * 1001 + 17
  cache = _cache(module.config, rows, 0).at(index)
  whole = _cache(exact.config, rows, 0, "float32").at(index)
  wide = jax.tree.map(lambda x: x.astype(jnp.float32), params)
  run = jax.jit(draft, static_argnames="steps", donate_argnums=())
  scratch = draft.scratch(rows)
  chosen, logits, features, after, scratch = run(weights, tokens, cache, scratch)
  seven = run(weights, tokens, cache, scratch, steps=GAMMA)
  with jax.default_matmul_precision("highest"):
    apply = lambda p, c, t: exact.apply({"params": p}, c, t, method="extend")
    theirs, their_features, their_cache = jax.jit(apply)(wide, whole, tokens[:, None])
  bf16 = lambda p, c, t: module.apply({"params": p}, c, t, method="extend")
  rough, _, _ = jax.jit(bf16)(params, cache, tokens[:, None])
  # One after the other, the same bits as seven in one call.
  one, at, token, state = [], cache, tokens, seven[-1]
  for _ in range(GAMMA):
    found = run(weights, token, at, state)
    at, state, token = found[3], found[4], found[0][0]
    one.append(found)
  new = jnp.asarray(index)
  one_row = lambda buffer, r: np.asarray(buffer[r, :, new[r]], np.float32)
  picked = lambda buffers: np.stack(
    [one_row(buffer, r) for buffer in buffers for r in range(rows)]
  )
  ours_best = np.asarray(chosen[0])
  top = np.asarray(theirs[:, 0]).max(axis=-1)
  return {
    "logits_error": _norm_error(logits[0], theirs[:, 0]),
    "xla_bfloat16_logits_error": _norm_error(rough[:, 0], theirs[:, 0]),
    "features_error": _norm_error(
      features[0].astype(jnp.float32), their_features[:, 0]
    ),
    "keys_error": _norm_error(picked(after.keys), picked(their_cache.keys)),
    "values_error": _norm_error(picked(after.values), picked(their_cache.values)),
    "argmax_equal": bool((np.asarray(logits[0]).argmax(-1) == ours_best).all()),
    "largest_gap": float(
      (top - np.asarray(theirs)[np.arange(rows), 0, ours_best]).max()
    ),
    "finite": bool(jnp.isfinite(seven[1]).all()),
    "seven_in_one_equal": bool(
      all((seven[1][i] == one[i][1][0]).all() for i in range(GAMMA))
    ),
    "tokens": np.asarray(seven[0])[:, 0].tolist(),
  }


def _check_few(cells, args):
  import jax
  import jax.numpy as jnp

  from specdec_t5x.native.cuda import few

  keys = jax.random.split(jax.random.key(0), 4)
  shapes = {n: XXL[n] for n in ("out", "wo")} if args.quick else XXL
  for name, (inputs, outputs) in shapes.items():
    matrix = jax.random.normal(keys[0], (inputs, outputs)) / inputs**0.5
    x = jax.random.normal(keys[1], (8, inputs)).astype(jnp.bfloat16)
    for bits in (16, 8, 4):
      weights = jax.jit(few.rounded, static_argnums=1)(matrix, bits)
      codes = weights.codes
      if bits == 4:
        low, high = codes & 15, codes >> 4
        codes = jnp.stack([low, high], -1).reshape(inputs, outputs).astype(jnp.int8)
        codes = jnp.where(codes > 7, codes - 16, codes)
      wide = codes.astype(jnp.float32)
      if weights.scales is not None:
        wide *= weights.scales.astype(jnp.float32)
      exact = jnp.dot(x.astype(jnp.float32), wide, precision="highest")
      best = few.tuning(bits, outputs).cluster
      for cluster in (best,) if args.quick else (1, 2, 4, 8):
        run = lambda x, w, c=cluster: few.multiply(x, w, divided=few.Tuning(c, 2))[0]
        eight = jax.jit(run)(x, weights)
        one = jax.jit(run)(x[3:4], weights)
        cells.add(
          **{"part": "check", "few": name, "bits": bits, "cluster": cluster},
          error=_norm_error(eight.astype(jnp.float32), exact),
          rows_alike=bool((one[0] == eight[3]).all()),
        )
  # What stands before and after.
  weights = few.rounded(jax.random.normal(keys[0], (4096, 4096)) / 64, 16)
  x, gate, residual = (
    jax.random.normal(k, (8, 4096)).astype(jnp.bfloat16) for k in keys[1:]
  )
  wide, scale = weights.codes.astype(jnp.float32), jnp.ones(4096, jnp.bfloat16) * 0.5
  f32 = lambda y: y.astype(jnp.float32)
  normed = f32(x) * jax.lax.rsqrt((f32(x) ** 2).mean(-1, keepdims=True) + 1e-6) * 0.5
  product = lambda y: jnp.dot(y, wide, precision="highest") + f32(residual)
  run = jax.jit(functools.partial(few.multiply, residuals=(residual,)))
  cells.add(
    part="check",
    few="norm and gelu",
    norm_error=_norm_error(f32(run(x, weights, norm=scale)[0]), product(normed)),
    gelu_error=_norm_error(
      f32(run(x, weights, gate=gate)[0]), product(jax.nn.gelu(f32(gate)) * f32(x))
    ),
  )


# ---- Times. ----


def _timed(program, *args):
  """Returns the median seconds of runs after the third."""
  import jax

  seconds = []
  for _ in range(_WARM + _RUNS):
    start = time.perf_counter()
    jax.block_until_ready(program(*args))
    seconds.append(time.perf_counter() - start)
  return statistics.median(seconds[_WARM:])


def _compiled(function, args, options):
  import jax

  return jax.jit(function).lower(*args).compile(compiler_options=options or None)


def _slope(program, few_turns, many, *args):
  """Returns seconds of one turn of a program's loop, and of the rest."""
  import jax.numpy as jnp

  short, long = (_timed(program, jnp.int32(n), *args) for n in (few_turns, many))
  turn = (long - short) / (many - few_turns)
  return turn, short - few_turns * turn


def _xla_draft(module):
  import jax
  import jax.numpy as jnp

  def step(_, carried, params):
    cache, token = carried
    apply = module.apply
    logits, _, cache = apply({"params": params}, cache, token[:, None], method="extend")
    return cache, jnp.argmax(logits[:, 0], axis=-1).astype(jnp.int32)

  def fori(params, cache, token, scratch):
    body = functools.partial(step, params=params)
    cache, token = jax.lax.fori_loop(0, GAMMA, body, (cache, token))
    return cache, token, scratch

  def unrolled(params, cache, token, scratch):
    for i in range(GAMMA):
      cache, token = step(i, (cache, token), params)
    return cache, token, scratch

  return {"xla, loop": fori, "xla, unrolled": unrolled}


def _kernel_draft(draft):
  import jax

  def step(_, carried, weights):
    cache, token, scratch = carried
    chosen, _, _, cache, scratch = draft(weights, token, cache, scratch)
    return cache, chosen[0], scratch

  def fori(weights, cache, token, scratch):
    body = functools.partial(step, weights=weights)
    return jax.lax.fori_loop(0, GAMMA, body, (cache, token, scratch))

  def unrolled(weights, cache, token, scratch):
    carried = cache, token, scratch
    for i in range(GAMMA):
      carried = step(i, carried, weights)
    return carried

  def one_call(weights, cache, token, scratch):
    chosen, _, _, cache, scratch = draft(weights, token, cache, scratch, steps=GAMMA)
    return cache, chosen[-1], scratch

  return {
    "kernel, loop": fori,
    "kernel, unrolled": unrolled,
    "kernel, one call": one_call,
  }


def _rounds(draft):
  """Returns a program that drafts GAMMA tokens `n` times, from the same prefix."""
  import jax

  def program(n, weights, cache, token, scratch):
    def body(state):
      i, cache, token, scratch = state
      cache, token, scratch = draft(weights, cache, token, scratch)
      return i + 1, cache.at(cache.index * 0 + START), token, scratch

    state = 0, cache, token, scratch
    return jax.lax.while_loop(lambda state: state[0] < n, body, state)[2]

  return program


def step(cells, args):
  """Times drafts of GAMMA tokens by XLA and by the kernel."""
  import jax
  import jax.numpy as jnp

  from specdec_t5x.native.cuda import library

  library.loaded()
  sizes = [("small", 1), ("base", 1), ("large", 1)]
  sizes += [] if args.quick else [("small", 4), ("small", 8), ("base", 8)]
  wanted = ["kernel, loop", "kernel, one call", "kernel, unrolled"]
  made = {}
  for (size, rows), name in [
    *((s, w) for s in sizes for w in wanted[:2]),
    *((s, wanted[2]) for s in sizes[:1]),
    *((s, "xla, loop") for s in sizes[:3]),
  ]:
    key = {"part": "step", "size": size, "rows": rows, "way": name}
    with cells.tried(**key):
      module, make = _network(size)
      draft = _draft(size)
      if (size, rows) not in made:
        params = make()
        weights = jax.jit(draft.prepared)(params)
        cache = _cache(module.config, rows, START)
        token = jnp.full((rows,), 5, jnp.int32)
        made[size, rows] = params, weights, cache, token, draft.scratch(rows)
      params, weights, *others = made[size, rows]
      functions = {**_kernel_draft(draft), **_xla_draft(module)}
      given = params if name.startswith("xla") else weights, *others
      for buffers in ("default", "while") if rows == 1 else ("default",):
        start = time.perf_counter()
        arguments = jnp.int32(1), *given
        run = _compiled(_rounds(functions[name]), arguments, BUFFERS[buffers])
        seconds = time.perf_counter() - start
        turn, outside = _slope(run, 4, 24, *given)
        cells.add(
          **key,
          buffers=buffers,
          us_a_token=round(turn / GAMMA * 1e6, 2),
          outside_us=round(outside * 1e6, 1),
          compile_s=round(seconds, 1),
        )


def few(cells, args):
  """Times products at XXL's shapes in a program of XLA's."""
  import jax
  import jax.numpy as jnp

  from specdec_t5x.native.cuda import few as few_lib
  from specdec_t5x.native.cuda import library

  library.loaded()
  divided = _divided(cells)

  def xla(x, weights):
    codes = weights.codes
    if weights.bits == 4:
      codes = codes.astype(jnp.int4)
    y = jnp.dot(x, codes.astype(x.dtype))
    return y if weights.scales is None else y * weights.scales

  for bits in (16, 8):
    for name, (inputs, outputs) in XXL.items():
      count = max(2, min(12, 800_000_000 // (inputs * outputs * bits // 8)))
      keys = jax.random.split(jax.random.key(0), count)
      matrix = lambda k: jax.random.normal(k, (inputs, outputs)) / 64  # noqa: B023
      make = jax.jit(lambda k: few_lib.rounded(matrix(k), bits))  # noqa: B023
      weights = [make(k) for k in keys]
      how = divided.get((name, bits))
      ours = lambda x, w, how=how: few_lib.multiply(x, w, divided=how)[0]
      ways = {"kernel": ours, "xla": xla}
      for rows in (1, 8):
        for way, function in ways.items():
          key = {"part": "few", "name": name, "bits": bits, "rows": rows, "way": way}

          def program(n, x, weights, function=function):
            def body(state):
              i, x = state
              for w in weights:
                y = function(x, w)
                # The next product waits for this one.
                x = y if x.shape == y.shape else x.at[:, 0].set(y[:, 0] * 1e-9)
              return i + 1, x

            return jax.lax.while_loop(lambda state: state[0] < n, body, (0, x))[1]

          with cells.tried(**key):
            x = jax.random.normal(keys[0], (rows, inputs)).astype(jnp.bfloat16)
            run = _compiled(program, (jnp.int32(1), x, weights), {})
            turn, _ = _slope(run, 2, 12, x, weights)
            us = turn / count * 1e6
            rate = inputs * outputs * bits / 8 / us / 1e3
            cells.add(**key, us=round(us, 2), GB_per_s=round(rate))
  with cells.tried(part="few", way="pallas"):
    _time_pallas(cells)


def _time_pallas(cells):
  """Times JAX's own product of int8 by bfloat16, of 64 rows: fewer it does not take."""
  import jax
  import jax.numpy as jnp
  from jax.experimental.pallas.ops.gpu import hopper_mixed_type_matmul_mgpu as mixed

  config = mixed.TuningConfig(
    tile_m=64, tile_n=64, tile_k=128, max_concurrent_steps=4,
    epi_tile_n=64, epi_tile_m=64, wg_dimension=mixed.MatmulDimension.M,
  )  # fmt: skip
  for name in ("wi", "out", "wo"):
    inputs, outputs = XXL[name]
    count = max(2, min(12, 800_000_000 // (inputs * outputs)))
    draw = jax.jit(jax.random.randint, static_argnums=(1, 4))
    weights = [
      draw(k, (outputs, inputs), -127, 128, jnp.int8)
      for k in jax.random.split(jax.random.key(0), count)
    ]
    x = jax.random.normal(jax.random.key(1), (inputs, 64)).astype(jnp.bfloat16)

    def program(n, x, weights):
      def body(state):
        i, x = state
        for w in weights:
          y = mixed.mixed_matmul_kernel(w, x, out_dtype=jnp.bfloat16, config=config)
          x = x.at[0].set(y[0] * 1e-9)
        return i + 1, x

      return jax.lax.while_loop(lambda state: state[0] < n, body, (0, x))[1]

    key = {"part": "few", "name": name, "bits": 8, "rows": 64, "way": "pallas"}
    with cells.tried(**key):
      run = _compiled(program, (jnp.int32(1), x, weights), {})
      turn, _ = _slope(run, 2, 12, x, weights)
      us = turn / count * 1e6
      cells.add(**key, us=round(us, 2), GB_per_s=round(inputs * outputs / us / 1e3))


# ---- A whole step of XXL. ----


def _xxl_weights(module, params, bits):
  """Returns the decoder's matrices in so many bits."""
  import jax

  from specdec_t5x.native.cuda import few as few_lib

  # In 16 bits nothing is copied.
  names = "self_attention", "cross_attention", "mlp"
  by_xla = jax.jit(few_lib.rounded, static_argnums=1)
  rounded = few_lib.rounded if bits == 16 else by_xla
  decoder, layers = params["decoder"], []
  for i in range(module.config.num_decoder_layers):
    layer = decoder[f"layers_{i}"]
    attention, cross = layer["self_attention"], layer["encoder_decoder_attention"]
    matrix = lambda dense: rounded(dense["kernel"], bits)
    layers.append({
      "qkv": [matrix(attention[n]) for n in ("query", "key", "value")],
      "out": matrix(attention["out"]),
      "cross_query": matrix(cross["query"]),
      "cross_out": matrix(cross["out"]),
      "wi": [matrix(layer["mlp"][n]) for n in ("wi_0", "wi_1")],
      "wo": matrix(layer["mlp"]["wo"]),
      "norms": [layer[f"pre_{n}_layer_norm"]["scale"] for n in names],
    })  # fmt: skip
  return {
    "layers": layers,
    "norm": decoder["decoder_norm"]["scale"],
    "logits": rounded(decoder["logits_dense"]["kernel"], bits),
    "embedding": params["token_embedder"]["embedding"],
    "biases": decoder["relpos_bias"]["rel_embedding"],
  }


def _xxl_step(config, how, ahead=True):
  """Returns a decoder step of one row's block by products of few rows."""
  import jax.numpy as jnp
  import numpy as np

  from specdec_t5x.native.cuda import few as few_lib
  from specdec_t5x.network import cache as cache_lib
  from specdec_t5x.network.attention import mask_bias
  from specdec_t5x.network.layers import MAX_DISTANCE, bucket
  from specdec_t5x.network.products import xla_attend

  def multiply(name, x, *matrices, following, size=8 << 20, **more):
    divided = how.get((name, matrices[0].bits))
    more |= {"following": following, "following_bytes": size} if ahead else {}
    return few_lib.multiply(x, *matrices, divided=divided, **more)

  def step(weights, cache, tokens):
    size = tokens.shape[1]
    x = weights["embedding"][tokens[0]]
    slots = jnp.arange(SLOTS)
    positions = cache.index[0] + jnp.arange(size)
    distance = positions[:, None] - slots
    table = bucket(-np.arange(MAX_DISTANCE + 1), False)
    by_distance = weights["biases"][:, table]
    bias = by_distance[:, jnp.clip(distance, 0, MAX_DISTANCE)]
    bias = (bias + jnp.where(distance >= 0, 0, -1e10).astype(bias.dtype))[None]
    cross_bias = mask_bias(cache.encoder_mask[:, None, None], "bfloat16")
    heads = lambda y: y.reshape(1, size, config.num_heads, 64)
    keys, values = [], []
    for i, layer in enumerate(weights["layers"]):
      norms = layer["norms"]
      # While XLA's attention runs, the next matrix comes to the cache.
      known = {"following": layer["out"], "size": 24 << 20}
      q, k, v = multiply("qkv", x, *layer["qkv"], norm=norms[0], **known)
      write = lambda buffer, new: cache_lib.write(
        buffer, heads(new).swapaxes(1, 2), cache.index
      )
      keys.append(write(cache.keys[i], k))
      values.append(write(cache.values[i], v))
      mixed = xla_attend(heads(q), keys[-1], values[-1], bias)
      known = {"residuals": [x], "following": layer["cross_query"]}
      (x,) = multiply("out", mixed.reshape(size, -1), layer["out"], **known)
      known = {"following": layer["cross_out"], "size": 24 << 20}
      (q,) = multiply("out", x, layer["cross_query"], norm=norms[1], **known)
      known = cache.cross_keys[i], cache.cross_values[i]
      mixed = xla_attend(heads(q), *known, cross_bias)
      known = {"residuals": [x], "following": layer["wi"][0]}
      (x,) = multiply("out", mixed.reshape(size, -1), layer["cross_out"], **known)
      known = {"following": layer["wo"]}
      gate, linear = multiply("wi", x, *layer["wi"], norm=norms[2], **known)
      after = weights["logits"]
      if i + 1 < len(weights["layers"]):
        after = weights["layers"][i + 1]["qkv"][0]
      known = {"gate": gate, "residuals": [x], "following": after}
      (x,) = multiply("wo", linear, layer["wo"], **known)
    known = {"norm": weights["norm"], "following": None}
    (logits,) = multiply("logits", x, weights["logits"], **known)
    cache = cache.replace(
      index=cache.index + size, keys=tuple(keys), values=tuple(values)
    )
    return logits[None].astype(jnp.float32), cache

  return step


def _tokens_loop(step):
  """Returns a program that scores `n` blocks, each of argmaxes of the one before."""
  import jax
  import jax.numpy as jnp

  def program(n, weights, cache, tokens):
    def body(state):
      i, cache, tokens = state
      logits, after = step(weights, cache, tokens)
      tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
      return i + 1, after.at(after.index * 0 + START), tokens

    return jax.lax.while_loop(lambda s: s[0] < n, body, (0, cache, tokens))[2]

  return program


def xxl(cells, args):
  """Times steps of XXL's decoder, of all its layers or, if quick, of its first few."""
  import jax
  import jax.numpy as jnp

  from specdec_t5x.native.cuda import library

  library.loaded()
  depths = (2, 6) if args.quick else (24,)
  modules = {n: _xxl_network(n) for n in depths}
  params = _parameters(modules[depths[-1]])
  how = _divided(cells)
  block = lambda n: jnp.arange(n, dtype=jnp.int32)[None] + 7
  shape_of = lambda tree: jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree
  )
  # Bits, tokens, and whether the next matrix is brought to the cache.
  ways = [("kernel", 16, 1, True), ("kernel", 8, 1, True), ("kernel", 16, 8, True)]
  ways += [("kernel", 4, 1, True), ("kernel", 16, 1, False), ("kernel", 8, 8, True)]
  ways += [("xla", 16, 1, False), ("xla", 16, 8, False)]
  jobs = [(*way, depth) for way in ways for depth in depths]
  made = {}
  caches = {n: _cache(module.config, 1, START) for n, module in modules.items()}

  def weights_of(way, bits, depth):
    if way == "xla":
      return params
    if bits not in made:
      made[bits] = _xxl_weights(modules[depths[-1]], params, bits)
    return {**made[bits], "layers": made[bits]["layers"][:depth]}

  def compiled(job, weights):
    way, _, size, ahead, depth = job
    step = functools.partial(_xla_step, modules[depth])
    if way == "kernel":
      step = _xxl_step(modules[depth].config, how, ahead)
    start = time.perf_counter()
    given = jnp.int32(1), weights, caches[depth], block(size)
    return _compiled(_tokens_loop(step), given, {}), time.perf_counter() - start

  def measure(jobs, pool):
    found = []
    for job in jobs:
      way, bits, _, _, depth = job
      found.append(pool.submit(compiled, job, shape_of(weights_of(way, bits, depth))))
    times = {}
    for job, future in zip(jobs, found, strict=True):
      way, bits, size, ahead, depth = job
      key = {"part": "xxl", "way": way, "bits": bits, "tokens": size, "ahead": ahead}
      with cells.tried(**key, layers=depth):
        program, seconds = future.result()
        given = weights_of(way, bits, depth), caches[depth], block(size)
        turn, outside = _slope(program, 2, 18, *given)
        ms = {"ms": round(turn * 1e3, 4), "outside_ms": round(outside * 1e3, 3)}
        times[depth] = turn * 1e3
        if depth == 6:
          # All 24 layers, of the times of 2 and 6.
          ms["ms_of_24_layers"] = round(times[6] + 18 * (times[6] - times[2]) / 4, 3)
        cells.add(**key, layers=depth, **ms, compile_s=round(seconds, 1))

  with futures.ThreadPoolExecutor(8) as pool:
    # XLA tries out its products on the GPU while it compiles: not while others run.
    measure([job for job in jobs if job[0] == "kernel"], pool)
    measure([job for job in jobs if job[0] == "xla"], pool)
  with cells.tried(part="xxl", check="two layers"):
    _check_xxl(cells, how, params)


def _xxl_network(layers, dtype="bfloat16"):
  import dataclasses

  from specdec_t5x.network.sizes import t5_1_1
  from specdec_t5x.network.transformer import Transformer

  config = t5_1_1("xxl", dtype)
  sizes = {"num_decoder_layers": layers, "num_encoder_layers": 1}
  return Transformer(dataclasses.replace(config, **sizes))


def _parameters(module):
  from specdec_t5x.network.sizes import random_params

  return random_params(module, 0)


def _xla_step(module, params, cache, tokens):
  logits, _, cache = module.apply({"params": params}, cache, tokens, method="extend")
  return logits, cache


def _check_xxl(cells, how, params):
  """Compares two layers of XXL with XLA's in float32."""
  import jax
  import jax.numpy as jnp

  exact, module = _xxl_network(2, "float32"), _xxl_network(2)
  weights = _xxl_weights(module, params, 16)
  cache = _cache(module.config, 1, START)
  wide = _cache(exact.config, 1, START, "float32")
  tokens = jnp.arange(8, dtype=jnp.int32)[None] + 7
  few = jax.jit(_xxl_step(module.config, how))
  eight, _ = few(weights, cache, tokens)
  one, _ = few(weights, cache, tokens[:, :1])
  with jax.default_matmul_precision("highest"):
    theirs, _ = jax.jit(functools.partial(_xla_step, exact))(params, wide, tokens)
  rough, _ = jax.jit(functools.partial(_xla_step, module))(params, cache, tokens)
  alone, _ = jax.jit(functools.partial(_xla_step, module))(params, cache, tokens[:, :1])
  cells.add(
    part="xxl",
    check="two layers",
    error=_norm_error(eight, theirs),
    xla_bfloat16_error=_norm_error(rough, theirs),
    first_of_8_alike=bool((one[:, 0] == eight[:, 0]).all()),
    xla_first_of_8_alike=bool((alone[:, 0] == rough[:, 0]).all()),
  )


def main():
  """Runs the parts, each in a process."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--output", default=os.environ.get("OUT", "runs/gpu_kernels"))
  parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
  parser.add_argument("--library", help="of specdec_t5x/native/cuda")
  parser.add_argument("--times", help="the library of lab/gpu_times.cu")
  parser.add_argument("--ring", type=int, default=12, help="chunks in shared memory")
  parser.add_argument("--quick", action="store_true", help="leave out the slow cells")
  parser.add_argument(
    "--times_only", action="store_true", help="of the part native, of one row"
  )
  parser.add_argument("--one", choices=PARTS)
  args = parser.parse_args()
  os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
  cells = Cells(args.output)
  if args.one:
    run = {"tune": tune, "native": native, "check": check, "step": step}
    ({**run, "few": few, "xxl": xxl})[args.one](cells, args)
    return
  if not args.library:
    from specdec_t5x.native.cuda import library

    args.library = str(library.built())
  cells.add(part="machine", **_machine())
  for part in args.parts:
    command = [sys.executable, __file__, "--output", args.output, "--one", part]
    command += ["--library", args.library, "--times", str(args.times)]
    command += ["--ring", str(args.ring), *(["--quick"] if args.quick else [])]
    start = time.monotonic()
    try:
      environment = {"JAX_PLATFORMS": "cpu"} if part == "native" else {}
      environment = {**os.environ, **environment}
      done = subprocess.run(command, timeout=PARTS[part], env=environment).returncode
    except subprocess.TimeoutExpired:
      done = "timeout"
    cells.add(part="seconds", of=part, code=done, s=round(time.monotonic() - start, 1))


def _machine():
  from importlib import metadata

  names = ("jax", "jaxlib", "flax", "numpy")
  query = "nvidia-smi --query-gpu=name,driver_version --format=csv,noheader"
  gpu = subprocess.run(query.split(), capture_output=True, text=True, check=False)
  return {
    "device": gpu.stdout.strip(),
    "date": str(datetime.date.today()),
    "versions": {name: metadata.version(name) for name in names},
  }


if __name__ == "__main__":
  main()
