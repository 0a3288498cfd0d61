"""A checkpoint's tensors -> a GGUF file, as a converter makes it."""

from pathlib import Path

import gguf
import numpy as np

from components.model.architecture import Architecture

NAMES = {
    "embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}
POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
PLAIN_NORMS = {"post_attention_layernorm": "ffn_norm"}


def write_gguf(path: Path, family: str, architecture: Architecture, tensors: dict[str, np.ndarray]) -> Path:
    """What a converter to GGUF makes of a checkpoint, in float32."""
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(architecture.n_layers)
    writer.add_context_length(architecture.max_positions)
    writer.add_embedding_length(architecture.d_model)
    writer.add_feed_forward_length(architecture.d_ff)
    writer.add_head_count(architecture.n_heads)
    writer.add_head_count_kv(architecture.n_kv_heads)
    writer.add_key_length(architecture.head_dim)
    writer.add_layer_norm_rms_eps(architecture.norm_eps)
    writer.add_rope_freq_base(architecture.rope.theta)
    writer.add_eos_token_id(2)
    for name, tensor in tensors.items():
        writer.add_tensor(gguf_name(name, family), gguf_tensor(name, tensor, family, architecture))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str, family: str) -> str:
    if name == "rope_freqs.weight":
        return name
    stem, kind = name.rsplit(".", 1)
    names = {**NAMES, **(POST_NORMS if family.startswith("gemma") else PLAIN_NORMS)}
    part = next(theirs for ours, theirs in names.items() if stem.endswith(ours))
    return f"blk.{stem.split('.')[2]}.{part}.{kind}" if ".layers." in stem else f"{part}.{kind}"


def gguf_tensor(name: str, tensor: np.ndarray, family: str, architecture: Architecture) -> np.ndarray:
    if family.startswith("gemma") and name.endswith("norm.weight"):
        return tensor + 1
    if family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        # Plane i of a head turns rows i and i + half; in GGUF they are neighbours, 2 i and 2 i + 1.
        half = architecture.head_dim // 2
        heads = tensor.reshape(-1, architecture.head_dim, tensor.shape[1])
        return np.stack([heads[:, :half], heads[:, half:]], axis=2).reshape(tensor.shape)
    return tensor
