"""Decodes texts with TensorFlow's loader of a SavedModel and prints JSON."""

import json
import pathlib
import sys

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401 - T5X's preprocessor is in the graph

folder, texts, keys = sys.argv[1:]
lines = pathlib.Path(texts).read_text().splitlines()
keys = np.load(keys)
decode = tf.saved_model.load(folder).signatures["serving_default"]
outputs = decode(text_batch=tf.constant(lines), decode_rng=tf.constant(keys))
assert not {"t5x", "specdec_t5x"} & set(sys.modules)
print(json.dumps([text.decode() for text in outputs["output_0"].numpy()]))
