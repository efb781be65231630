"""T5Gemma networks: settings that shapes don't show, and drafts.

tests/hugging_face/test_parity.py compares the logits with transformers.
"""

import dataclasses
import json

import chex
import flax
import pytest

from lab.peers import hf_folder
from specdec_t5x import api
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.network.config import config_from_shapes
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.training.heads import new_heads
from tests.network import kinds
from tests.network.kinds import GEMMA_1, GEMMA_2
from tests.training.conftest import saved


@pytest.mark.slow
@kinds.each(kinds.GEMMAS)
def test_a_checkpoint_is_read_with_its_configuration(config, tmp_path):
  model = kinds.model(config)
  path = saved(model.network, tmp_path, model.params)
  loaded = api.load_model(path, config=config)
  chex.assert_trees_all_equal(flax.core.unfreeze(loaded.params), model.params)


def test_invalid_gemma_settings_are_refused(tmp_path):
  bad = [
    ({"layer_types": ("sliding", "chunked")}, "layer_types must be names among"),
    ({"num_kv_heads": 3}, "num_heads must be divisible by num_kv_heads"),
    ({"encoder": GEMMA_1.encoder}, "have equal widths, got emb_dim=24 and 16"),
  ]
  for settings, message in bad:
    with pytest.raises(ValueError, match=message):
      dataclasses.replace(GEMMA_2, **settings)
  with pytest.raises(ValueError, match="needs a T5 as target, got a T5Gemma"):
    HeadsConfig.of(GEMMA_2, 2)
  hf_folder.write(str(tmp_path), GEMMA_2, kinds.model(GEMMA_2).params)
  with pytest.raises(ValueError, match="encoder needs a T5 as target"):
    new_heads(str(tmp_path), "shared_encoder", 2, 1)
  with pytest.raises(ValueError, match="shapes do not determine"):
    config_from_shapes({"decoder/layers_0/post_mlp_layer_norm/scale": (8,)})


@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("value", [[1], "linear", 3])
def test_invalid_rotary_settings_are_refused(name, value, tmp_path):
  hf_folder.write(str(tmp_path), GEMMA_2, kinds.model(GEMMA_2).params)
  path = tmp_path / "config.json"
  config = json.loads(path.read_text())
  config["decoder"][name] = value
  path.write_text(json.dumps(config))
  with pytest.raises(ValueError, match=f"{name} must be an object, got "):
    Checkpoint.open(str(tmp_path)).settings()
