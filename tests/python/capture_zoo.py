"""Small models of PyTorch's libraries by name, with functions that make them."""

import importlib
import importlib.util
import re
import sys

import torch
from torch import nn

# Names of sizes in Transformers' configs.
SMALL = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32, "hidden_dim": 32, "emb_dim": 32,
    "intermediate_size": 48, "d_ff": 48, "ffn_dim": 48, "n_inner": 48, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "num_encoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "d_kv": 8, "head_dim": 8,
    "vocab_size": 120, "max_position_embeddings": 40, "n_positions": 40, "max_source_positions": 24,
    "max_target_positions": 24, "image_size": 32, "patch_size": 8, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}


def shrink(config):
    """Makes a Transformers config and its nested configs small."""
    for name, value in SMALL.items():
        try:
            if isinstance(getattr(config, name, None), int):
                setattr(config, name, value)
        except (AttributeError, NotImplementedError):
            pass  # This property is computed from others.
    for name in ("text_config", "vision_config", "encoder", "decoder", "audio_config"):
        if getattr(config, name, None) is not None and hasattr(getattr(config, name), "to_dict"):
            shrink(getattr(config, name))
    return config


def transformer(name, **values):
    """Returns a function that makes a Transformers class with a small config."""

    def make():
        cls = getattr(importlib.import_module("transformers"), name)
        config = shrink(cls.config_class())
        for key, value in values.items():
            setattr(config, key, value)
        return cls(config)

    return make


def call(library, name, *args, **kwargs):
    """Returns a function that calls a function or class of a library."""

    def make():
        found = importlib.import_module(library)
        for part in name.split("."):
            found = getattr(found, part)
        return found(*args, **kwargs)

    return make


TRANSFORMERS = {name: transformer(name) for name in """
LlamaForCausalLM MistralForCausalLM MixtralForCausalLM Qwen2ForCausalLM Gemma2ForCausalLM GPTNeoXForCausalLM
GPT2LMHeadModel T5ForConditionalGeneration BertForPreTraining MambaForCausalLM
GemmaForCausalLM Gemma3ForCausalLM Qwen3ForCausalLM Qwen3MoeForCausalLM Phi3ForCausalLM PhiForCausalLM OlmoForCausalLM Olmo2ForCausalLM
GraniteForCausalLM CohereForCausalLM StableLmForCausalLM Starcoder2ForCausalLM FalconForCausalLM BloomForCausalLM
OPTForCausalLM GPTJForCausalLM GPTNeoForCausalLM CodeGenForCausalLM CTRLLMHeadModel OpenAIGPTLMHeadModel
RobertaForMaskedLM DistilBertForMaskedLM AlbertForMaskedLM ElectraForPreTraining DebertaV2Model MPNetModel XLNetLMHeadModel
ModernBertForMaskedLM ConvBertModel LongformerModel BigBirdModel NystromformerModel RoFormerModel
BartForConditionalGeneration MBartForConditionalGeneration PegasusForConditionalGeneration M2M100ForConditionalGeneration
MarianMTModel BlenderbotForConditionalGeneration MT5EncoderModel
ViTForImageClassification DeiTModel BeitModel SwinModel Dinov2Model ConvNextModel ResNetModel SegformerModel ViTMAEForPreTraining
CLIPModel SiglipModel WhisperForConditionalGeneration Wav2Vec2Model HubertModel ASTModel EncodecModel
FalconMambaForCausalLM JetMoeForCausalLM OlmoeForCausalLM
""".split()}
TRANSFORMERS |= {
    "DeepseekV3ForCausalLM": transformer(
        "DeepseekV3ForCausalLM", num_hidden_layers=5, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8, n_group=2, topk_group=1, num_experts_per_tok=2, num_key_value_heads=4, first_k_dense_replace=2),
    # Functions magnify some numbers of these models; they also have square orthogonal matrices.
    "RecurrentGemmaForCausalLM": transformer("RecurrentGemmaForCausalLM", num_hidden_layers=3, lru_width=32,
                                             num_key_value_heads=1),
    "RwkvForCausalLM": transformer("RwkvForCausalLM", attention_hidden_size=32, num_hidden_layers=3),
    "Mamba2ForCausalLM": transformer("Mamba2ForCausalLM", num_heads=8, head_dim=8, state_size=16, n_groups=2),
}

NN = {
    "nn.RNN": lambda: nn.RNN(20, 30, 2, bidirectional=True),
    "weight_norm": lambda: nn.Sequential(*(
        norm(layer, dim=dim) for norm in (nn.utils.parametrizations.weight_norm, nn.utils.weight_norm)
        for layer, dim in ((nn.Conv1d(40, 60, 3), 2), (nn.Linear(400, 30), 0), (nn.Linear(40, 30), None),
                           (nn.Conv2d(9, 8, 5), 1)))),
    "nn.LSTM": lambda: nn.LSTM(20, 30, 2, proj_size=7),
    "nn.GRU": lambda: nn.GRU(20, 30),
    "nn.LSTMCell": lambda: nn.LSTMCell(3, 5),
    "nn.MultiheadAttention": lambda: nn.MultiheadAttention(48, 4, kdim=32, vdim=40, add_bias_kv=True),
    "nn.Transformer": lambda: nn.Transformer(32, 2, 2, 2, 64, batch_first=True),
    "nn.TransformerEncoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 64), 3),
    "nn.Embedding": lambda: nn.Embedding(50, 41, padding_idx=3),
    "nn.EmbeddingBag": lambda: nn.EmbeddingBag(7, 3),
    "nn.Bilinear": lambda: nn.Bilinear(5, 6, 7),
    "nn.BatchNorm": lambda: nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Conv3d(5, 3, 2),
                                          nn.InstanceNorm2d(3, affine=True)),
    "nn.ConvTranspose": lambda: nn.Sequential(nn.ConvTranspose1d(3, 5, 3), nn.ConvTranspose2d(4, 6, 3, groups=2),
                                              nn.ConvTranspose3d(3, 2, 2)),
    "nn.Conv": lambda: nn.Sequential(nn.Conv1d(6, 5, 3, groups=1), nn.Conv2d(8, 8, 3, groups=8), nn.Conv1d(2, 1, 1)),
    "nn.Linear, small": lambda: nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 5), nn.Linear(2, 2), nn.PReLU(3)),
    "nn.AdaptiveLogSoftmax": lambda: nn.AdaptiveLogSoftmaxWithLoss(16, 100, [10, 30]),
}


def _DefineOperators():
    """Makes torchvision importable without its compiled operators, which constructors do not
    call."""
    while importlib.util.find_spec("torchvision") is not None:
        try:
            importlib.import_module("torchvision")
            return
        except RuntimeError as error:
            missing = re.fullmatch(r"operator (torchvision::\w+) does not exist", str(error))
            if missing is None:
                raise
            torch.library.define(missing[1], "(Tensor x) -> Tensor")
            for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]


_DefineOperators()
TORCHVISION = {f"torchvision {name}": call("torchvision.models", name, **values) for name, values in {
    "resnet18": {}, "resnext50_32x4d": {}, "squeezenet1_1": {}, "mobilenet_v2": {},
    "mobilenet_v3_small": {}, "shufflenet_v2_x0_5": {}, "mnasnet0_5": {}, "googlenet": {"init_weights": False},
    "densenet121": {}, "efficientnet_b0": {}, "regnet_y_400mf": {}, "convnext_tiny": {}, "swin_t": {}, "maxvit_t": {},
    "vit_b_32": {}, "inception_v3": {"init_weights": False}, "alexnet": {},
}.items()}
TIMM = {f"timm {name}": call("timm", "create_model", name) for name in """
resnet18 vit_tiny_patch16_224 deit_tiny_patch16_224 swin_tiny_patch4_window7_224 convnext_atto mixer_s32_224 efficientnet_b0
mobilenetv3_small_050 regnetx_002 levit_128s poolformer_s12 coatnet_nano_rw_224 mobilevit_xxs tinynet_e ghostnet_050 edgenext_xx_small
""".split()}
SAMPLE = {"block_out_channels": (16, 32), "norm_num_groups": 8}
DIFFUSERS = {f"diffusers {name}": call("diffusers", name, **values) for name, values in {
    "UNet2DModel": {**SAMPLE, "sample_size": 16, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
                    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"), "attention_head_dim": 8},
    "UNet2DConditionModel": {**SAMPLE, "sample_size": 16, "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
                             "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"), "cross_attention_dim": 24,
                             "attention_head_dim": 8},
    "AutoencoderKL": {**SAMPLE, "down_block_types": ("DownEncoderBlock2D",) * 2,
                      "up_block_types": ("UpDecoderBlock2D",) * 2},
    "VQModel": {**SAMPLE, "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
    "DiTTransformer2DModel": {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "sample_size": 8,
                              "norm_num_groups": 4},
    "PriorTransformer": {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "embedding_dim": 16,
                         "num_embeddings": 5},
    "Transformer2DModel": {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 8, "norm_num_groups": 4},
}.items()}
ALL = {**TRANSFORMERS, **NN, **TORCHVISION, **TIMM, **DIFFUSERS}
