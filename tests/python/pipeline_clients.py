"""Asks functions of Megatron-core and torchtitan which layers each rank has, for the pipeline tests.

An answer lists the layers of each rank, with `first` and `last` for the ends of the model. It is None if the trainer
refuses the setting or would not build each layer exactly once."""

import contextlib
import io
import unittest.mock
import warnings

from clients import client_of

client_of("megatron")
client_of("torchtitan")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # They warn without a GPU.
    import torch
    from megatron.core import parallel_state
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
    from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping
    from torchtitan.distributed import pipeline_parallel


def answer(held, layers):
    numbers = sorted(layer for of_rank in held for layer in of_rank if isinstance(layer, int))
    return [set(of_rank) for of_rank in held] if numbers == list(range(layers)) else None


def megatron(layers, pipe, virtual=1, *, first=None, last=None, embedding=False, loss=False, layout=None):
    """Returns Megatron-core's answer.

    The arguments are TransformerConfig's num_layers_in_first_ and _last_pipeline_stage, account_for_embedding_ and
    _loss_in_pipeline_split, and pipeline_model_parallel_layout."""
    assert pipe > 1 or virtual == 1, "parallel_state.initialize_model_parallel refuses it"
    chunks = virtual if virtual > 1 else None  # Megatron uses None for one stage.
    held = [[] for _ in range(pipe)]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.ExitStack() as patches:
        warnings.simplefilter("ignore")
        state = {"rank": 0, "world_size": pipe}
        for name in state:
            patches.enter_context(unittest.mock.patch.object(
                parallel_state, f"get_pipeline_model_parallel_{name}", lambda name=name: state[name]))
        patches.enter_context(unittest.mock.patch.object(
            parallel_state, "get_virtual_pipeline_model_parallel_world_size", lambda: chunks))
        try:
            config = TransformerConfig(
                num_layers=layers, hidden_size=8, num_attention_heads=1, pipeline_dtype=torch.float32,
                pipeline_model_parallel_size=pipe, virtual_pipeline_model_parallel_size=chunks,
                num_layers_in_first_pipeline_stage=first, num_layers_in_last_pipeline_stage=last,
                account_for_embedding_in_pipeline_split=embedding, account_for_loss_in_pipeline_split=loss,
                pipeline_model_parallel_layout=layout)
            for rank in range(pipe):
                state["rank"] = rank
                for chunk in range(virtual):
                    stage = chunk if chunks else None
                    begin = get_transformer_layer_offset(config, stage, rank)
                    held[rank] += range(begin, begin + get_num_layers_to_build(config, stage, rank))
                    if parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage):
                        held[rank].append("first")
                    if parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage):
                        held[rank].append("last")
        except (AssertionError, ValueError, ZeroDivisionError):
            return None
    return answer(held, layers)


def torchtitan(layers, pipe, virtual=1, *, before=1, behind=1, style="loop"):
    """Returns torchtitan's answer, with `virtual` stages for each rank.

    `before` and `behind` are pipeline_parallel_first_stage_less_layers and _last_stage_less_layers. PyTorch assigns
    stages to ranks, also in a V of more than two rounds."""
    try:
        stages = pipeline_parallel._generate_llm_fqn_per_model_part(pipe * virtual, layers, before, behind)
    except ValueError:
        return None
    ranks = generate_stage_to_rank_mapping(pipe, pipe * virtual, style)
    held = [[] for _ in range(pipe)]
    ends = {"tok_embeddings": "first", "norm": "last"}
    for stage, names in enumerate(stages):
        held[ranks[stage]] += [ends.get(name) or int(name.removeprefix("layers."))
                               for name in names if name != "lm_head"]
    return answer(held, layers)
