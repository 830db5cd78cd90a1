"""Makes a tiny model of the Qwen3.5/3.6 hybrid architecture, with MTP head and random weights.

Runs in SGLang's environment: `python models.py DIRECTORY`. Four layers, three of them linear attention (GDN), a
vision tower of one block, two shards; half a megabyte. The names of the tensors are those of the real checkpoint.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HIDDEN, INTERMEDIATE, LAYERS, VOCABULARY = 64, 128, 4, 512
HEADS, KV_HEADS, HEAD = 4, 2, 32
KEY_HEADS, VALUE_HEADS, KEY_HEAD, VALUE_HEAD, KERNEL = 2, 4, 16, 16, 4
VISION = 32
KINDS = ["linear_attention"] * 3 + ["full_attention"]

TEXT = {
    "model_type": "qwen3_5_text",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "layer_types": KINDS,
    "linear_conv_kernel_dim": KERNEL,
    "linear_key_head_dim": KEY_HEAD,
    "linear_value_head_dim": VALUE_HEAD,
    "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": VALUE_HEADS,
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "partial_rotary_factor": 0.25,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [1, 1, 2],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "eos_token_id": 2,
}
CONFIG = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": TEXT,
    "vision_config": {
        "model_type": "qwen3_5",
        "depth": 1,
        "hidden_size": VISION,
        "hidden_act": "gelu_pytorch_tanh",
        "intermediate_size": 64,
        "num_heads": 2,
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [],
    },
    "image_token_id": 300,
    "video_token_id": 301,
    "vision_start_token_id": 302,
    "vision_end_token_id": 303,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
CHAT = (
    "{% for m in messages %}<|im_start|>{{m['role']}}\n{{m['content']}}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _processor(kind: str, longest: int, shortest: int) -> dict[str, object]:
    return {
        **({"image_processor_type": kind} if "Image" in kind else {"video_processor_type": kind}),
        "size": {"longest_edge": longest, "shortest_edge": shortest},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "processor_class": "Qwen3VLProcessor",
    }


def _random(*shape: int) -> torch.Tensor:
    return (torch.randn(*shape) * 0.02).to(torch.bfloat16)


def _fusion() -> torch.Tensor:
    """Let the MTP head start from the token's embedding as the model itself does, so that some drafts are right."""
    return torch.cat((torch.eye(HIDDEN).to(torch.bfloat16), _random(HIDDEN, HIDDEN)), dim=1)


def _zeros(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.bfloat16)


def _mlp(prefix: str) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}.input_layernorm.weight": _zeros(HIDDEN),
        f"{prefix}.post_attention_layernorm.weight": _zeros(HIDDEN),
        f"{prefix}.mlp.gate_proj.weight": _random(INTERMEDIATE, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": _random(INTERMEDIATE, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": _random(HIDDEN, INTERMEDIATE),
    }


def _full_attention(prefix: str) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}.self_attn.q_proj.weight": _random(2 * HEADS * HEAD, HIDDEN),  # with the output gate
        f"{prefix}.self_attn.k_proj.weight": _random(KV_HEADS * HEAD, HIDDEN),
        f"{prefix}.self_attn.v_proj.weight": _random(KV_HEADS * HEAD, HIDDEN),
        f"{prefix}.self_attn.o_proj.weight": _random(HIDDEN, HEADS * HEAD),
        f"{prefix}.self_attn.q_norm.weight": _zeros(HEAD),
        f"{prefix}.self_attn.k_norm.weight": _zeros(HEAD),
    }


def _linear_attention(prefix: str) -> dict[str, torch.Tensor]:
    keys, values = KEY_HEADS * KEY_HEAD, VALUE_HEADS * VALUE_HEAD
    return {
        f"{prefix}.linear_attn.in_proj_qkv.weight": _random(2 * keys + values, HIDDEN),
        f"{prefix}.linear_attn.in_proj_z.weight": _random(values, HIDDEN),
        f"{prefix}.linear_attn.in_proj_b.weight": _random(VALUE_HEADS, HIDDEN),
        f"{prefix}.linear_attn.in_proj_a.weight": _random(VALUE_HEADS, HIDDEN),
        f"{prefix}.linear_attn.conv1d.weight": _random(2 * keys + values, 1, KERNEL),
        f"{prefix}.linear_attn.dt_bias": torch.ones(VALUE_HEADS, dtype=torch.bfloat16),
        f"{prefix}.linear_attn.A_log": torch.zeros(VALUE_HEADS),
        f"{prefix}.linear_attn.norm.weight": torch.ones(VALUE_HEAD),
        f"{prefix}.linear_attn.out_proj.weight": _random(HIDDEN, values),
    }


def _vision(prefix: str) -> dict[str, torch.Tensor]:
    tensors = {
        f"{prefix}.patch_embed.proj.weight": _random(VISION, 3, 2, 16, 16),
        f"{prefix}.patch_embed.proj.bias": _random(VISION),
        f"{prefix}.pos_embed.weight": _random(64, VISION),
        f"{prefix}.merger.norm.weight": torch.ones(VISION, dtype=torch.bfloat16),
        f"{prefix}.merger.norm.bias": _zeros(VISION),
    }
    for name, rows, columns in (
        ("blocks.0.attn.qkv", 3 * VISION, VISION),
        ("blocks.0.attn.proj", VISION, VISION),
        ("blocks.0.mlp.linear_fc1", 64, VISION),
        ("blocks.0.mlp.linear_fc2", VISION, 64),
        ("merger.linear_fc1", 4 * VISION, 4 * VISION),
        ("merger.linear_fc2", HIDDEN, 4 * VISION),
    ):
        tensors[f"{prefix}.{name}.weight"] = _random(rows, columns)
        tensors[f"{prefix}.{name}.bias"] = _random(rows)
    for name in ("norm1", "norm2"):
        tensors[f"{prefix}.blocks.0.{name}.weight"] = torch.ones(VISION, dtype=torch.bfloat16)
        tensors[f"{prefix}.blocks.0.{name}.bias"] = _zeros(VISION)
    return tensors


def weights() -> dict[str, torch.Tensor]:
    """Make all tensors of the checkpoint."""
    language = "model.language_model"
    tensors = {
        f"{language}.embed_tokens.weight": _random(VOCABULARY, HIDDEN) * 5,
        f"{language}.norm.weight": _zeros(HIDDEN),
        "lm_head.weight": _random(VOCABULARY, HIDDEN),
        "mtp.fc.weight": _fusion(),
        "mtp.norm.weight": _zeros(HIDDEN),
        "mtp.pre_fc_norm_embedding.weight": _zeros(HIDDEN),
        "mtp.pre_fc_norm_hidden.weight": _zeros(HIDDEN),
        **_mlp("mtp.layers.0"),
        **_full_attention("mtp.layers.0"),
        **_vision("model.visual"),
    }
    for number, kind in enumerate(KINDS):
        prefix = f"{language}.layers.{number}"
        tensors.update(_mlp(prefix))
        tensors.update(_full_attention(prefix) if kind == "full_attention" else _linear_attention(prefix))
    return tensors


def _tokenizer(directory: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(["a tiny tokenizer for a tiny model", "one token after the other"], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))


def make(directory: Path) -> None:
    """Write the model."""
    torch.manual_seed(0)
    directory.mkdir(parents=True, exist_ok=True)
    _tokenizer(directory)
    files = {
        "config.json": CONFIG,
        "generation_config.json": {"eos_token_id": 2, "pad_token_id": 0},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": 4096,
            "chat_template": CHAT,
        },
        "preprocessor_config.json": _processor("Qwen2VLImageProcessorFast", 16777216, 65536),
        "video_preprocessor_config.json": _processor("Qwen3VLVideoProcessor", 25165824, 4096),
    }
    tensors = weights()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    files["model.safetensors.index.json"] = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": {name: shard for shard, members in shards.items() for name in members},
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1))
    for shard, members in shards.items():
        save_file({name: tensors[name] for name in members}, directory / shard, metadata={"format": "pt"})


if __name__ == "__main__":
    make(Path(sys.argv[1]))
