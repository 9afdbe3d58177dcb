"""JAX trainers load exports with their own functions into their own models, and compute the logits of Transformers'
model."""

import os
import subprocess
import sys

import pytest
from support import ROOT, run_ok

SIZES = {"d": 64, "ff": 96, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 128}

BEGIN = """
import os, sys
os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2", HF_HUB_OFFLINE="1")
import jax, numpy, torch, transformers
from mocked import Mocked
DIR, hub, config, sizes = sys.argv[1:4] + [eval(sys.argv[4])]
ids = numpy.random.default_rng(0).integers(0, sizes["vocab"], (2, 32), "int32")
"""

END = """
model = transformers.AutoModelForCausalLM.from_pretrained(hub, **parameters)
theirs = model(torch.from_numpy(ids).long()).logits.detach().numpy()
assert ours.shape == theirs.shape and numpy.abs(theirs).max() > 0.1
assert numpy.allclose(ours, theirs, atol=1e-5 * numpy.abs(theirs).max()), numpy.abs(ours - theirs).max()
"""

MAXTEXT = """
# For TPUs, quantization, data, images, and states of more than parameters.
Mocked("grain", "maxtext.common.emergency_checkpointing", "maxtext.common.grain_utility", "maxtext.input_pipeline",
       "maxtext.kernels.mhc", "maxtext.multimodal", "maxtext.trainers", "pathwaysutils", "qwix", "tokamax")
import maxtext, qwix.pallas
from flax import linen, nnx
qwix.pallas.get_current_rule.return_value = None  # No quantization.
from maxtext.common import checkpointing, common_types
from maxtext.configs import pyconfig
from maxtext.models import models
from maxtext.utils import maxtext_utils

options = dict(
    model_name=config, override_model_config=True,
    base_emb_dim=sizes["d"], base_num_query_heads=sizes["heads"], base_num_kv_heads=sizes["kv_heads"],
    head_dim=sizes["head_dim"], base_mlp_dim=sizes["ff"], base_moe_mlp_dim=sizes["ff"],
    base_num_decoder_layers=sizes["layers"], vocab_size=sizes["vocab"], num_experts=sizes.get("experts", 1),
    num_experts_per_tok=sizes.get("experts_per_token", 1), sparse_matmul=False, capacity_factor=-1.0,
    max_target_length=32, per_device_batch_size=1, ici_fsdp_parallelism=2, dtype="float32", weight_dtype="float32",
    matmul_precision="highest", float32_logits=True, attention="dot_product", enable_checkpointing=True,
    base_output_directory="", run_name="", skip_jax_distributed_system=True, hardware="cpu", load_parameters_path=DIR,
    checkpoint_storage_use_ocdbt=False, checkpoint_storage_use_zarr3=False)
base = ["", maxtext.__path__[0] + "/configs/base.yml"]
config = pyconfig.initialize(base, **options, enable_nnx=False, pure_nnx=False, pure_nnx_decoder=False)
mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)
model = models.transformer_as_linen(config, mesh, quant=None, model_mode=common_types.MODEL_MODE_TRAIN)
places = numpy.broadcast_to(numpy.arange(32, dtype="int32"), ids.shape)
key = jax.random.key(0)
boxed = jax.eval_shape(lambda: model.init({"params": key, "dropout": key, "aqt": key}, ids, places))
abstract = jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), linen.unbox(boxed),
    linen.logical_to_mesh_sharding(linen.get_partition_spec(boxed), mesh, config.logical_axis_rules))
def load(abstract):
    return checkpointing.load_params_from_path(
        config.load_parameters_path, abstract, config.checkpoint_storage_concurrent_gb,
        config.checkpoint_storage_use_ocdbt, config.checkpoint_storage_use_zarr3)
params = load({"params": abstract["params"]})
assert not params["params"]["decoder"]["logits_dense"]["kernel"].sharding.is_fully_replicated
# The same model of NNX, which is MaxText's default.
with linen.logical_axis_rules(config.logical_axis_rules), mesh:
    own = nnx.eval_shape(lambda: models.Transformer(
        pyconfig.initialize(base, **options), mesh, quant=None, rngs=nnx.Rngs(params=0, dropout=1),
        model_mode=common_types.MODEL_MODE_TRAIN))
one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
own = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=one), nnx.state(own, nnx.Param))
same = jax.tree.map(lambda a, b: bool((numpy.asarray(a) == b).all()), load(own).to_pure_dict(), params["params"])
assert all(jax.tree.leaves(same))
# MaxText's attention does not divide by the root of head_dim, which is 4 here: the query's matrix has to.
query = params["params"]["decoder"]["layers"]["self_attention"]["query"]
query["kernel"] = query["kernel"] / sizes["head_dim"] ** 0.5
with mesh, linen.logical_axis_rules(config.logical_axis_rules):
    ours = numpy.asarray(jax.jit(lambda params: model.apply(params, ids, places, enable_dropout=False))(params))
parameters = {}
"""

LEVANTER = """
# For other data, clusters, clouds and what is printed.
Mocked("async_lru", "braceexpand", "datasets", "git", "humanfriendly", "levanter.data", "multiprocess", "pandas",
       "pyarrow", "pytimeparse", "ray", "requests", "tblib", "tqdm_loggable")
import haliax
from levanter.compat.hf_checkpoints import HFCheckpointConverter
from levanter.layers.attention import AttentionBackend, AttentionMask
from levanter.layers.rotary import DefaultRotaryEmbeddingsConfig
from levanter.models.llama import LlamaConfig, LlamaLMHeadModel
import tokenizers

words = tokenizers.models.WordLevel({str(i): i for i in range(sizes["vocab"])}, "0")
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words))
config = LlamaConfig(
    seq_len=32, hidden_dim=sizes["d"], intermediate_dim=sizes["ff"], num_layers=sizes["layers"],
    num_heads=sizes["heads"], num_kv_heads=sizes["kv_heads"], attn_backend=AttentionBackend.VANILLA,
    rope=DefaultRotaryEmbeddingsConfig(theta=1e4))
converter = HFCheckpointConverter(
    LlamaConfig, reference_checkpoint=DIR, tokenizer=tokenizer, HfConfigClass=transformers.LlamaConfig)
with jax.set_mesh(jax.sharding.Mesh(jax.devices(), ("data",))):
    model = converter.load_pretrained(LlamaLMHeadModel, DIR, config=config, axis_mapping={"embed": "data"})
    assert not model.lm_head.weight.array.sharding.is_fully_replicated
    forward = haliax.named_jit(lambda model, ids: model(ids, attn_mask=AttentionMask.causal()))
    places = haliax.Axis("position", 32)
    ours = numpy.stack([forward(model, haliax.named(row, places)).array for row in ids])
parameters = {"config": transformers.AutoConfig.from_pretrained(
    hub, rope_parameters={"rope_type": "default", "rope_theta": 1e4})}
"""

KERASHUB = """
os.environ["KERAS_BACKEND"] = "jax"
import keras_hub
model = keras_hub.models.Llama3Backbone(
    vocabulary_size=sizes["vocab"], num_layers=sizes["layers"], num_query_heads=sizes["heads"], hidden_dim=sizes["d"],
    intermediate_dim=sizes["ff"], num_key_value_heads=sizes["kv_heads"], rope_max_wavelength=1e4,
    layer_norm_epsilon=1e-5, dtype="float32")
model.load_weights(DIR + "/model.weights.h5")
with jax.default_matmul_precision("highest"):
    hidden = model({"token_ids": ids, "padding_mask": numpy.ones_like(ids)})
    ours = numpy.asarray(model.token_embedding(hidden, reverse=True))
parameters = {"config": transformers.AutoConfig.from_pretrained(
    hub, rope_parameters={"rope_type": "default", "rope_theta": 1e4})}
"""


def run_trainer(code, spec, export, tmp_path, config="", sizes={}):
    sizes = {**SIZES, **sizes}
    arguments = [ROOT / f"configs/{spec}.yaml", "--set", "dtype=f32", "--mesh", "fsdp=1"]
    for name, value in sizes.items():
        arguments += ["--set", f"vars.{name}={value}"] * (name != "experts_per_token")
    run_ok("export", *arguments, "--to", "safetensors", "-o", tmp_path / "hub")
    run_ok("export", *arguments, *export, "-o", tmp_path / "params")
    here = os.path.dirname(os.path.abspath(__file__))
    result = subprocess.run(
        [sys.executable, "-c", BEGIN + code + END, str(tmp_path / "params"), str(tmp_path / "hub"), config, str(sizes)],
        capture_output=True, text=True, timeout=300, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{here}"})
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("spec, config, sizes", [
    ("llama3.1-8b", "llama3.1-8b", {}), ("mistral-7b-v0.3", "mistral-7b", {}),
    ("mixtral-8x7b", "mixtral-8x7b", {"experts": 4, "experts_per_token": 2})],
    ids=["llama", "mistral", "mixtral"])
def test_maxtext(spec, config, sizes, tmp_path):
    run_trainer(MAXTEXT, spec, ["--to", "zarr", "--layout", "maxtext"], tmp_path, config, sizes)


def test_levanter(tmp_path):
    run_trainer(LEVANTER, "llama3.1-8b", ["--to", "safetensors"], tmp_path)


def test_kerashub(tmp_path):
    run_trainer(KERASHUB, "llama3.1-8b", ["--to", "keras", "--layout", "kerashub"], tmp_path)
