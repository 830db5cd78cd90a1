"""The one operation of vLLM that SGLang's path without CUDA asks for, in plain torch."""

import torch


def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox):
    """Rotate query and key in place by the cached cosines and sines of their positions."""
    table = cos_sin_cache[positions.flatten()]
    width = table.shape[-1]
    cos, sin = (half.unsqueeze(1) for half in table.chunk(2, dim=-1))
    for tensor in (query, key):
        if tensor is None:
            continue
        heads = tensor.view(positions.numel(), -1, head_size)
        part = heads[..., :width]
        first, second = part.chunk(2, dim=-1) if is_neox else (part[..., 0::2], part[..., 1::2])
        turned = (first * cos - second * sin, second * cos + first * sin)
        if is_neox:
            part.copy_(torch.cat(turned, dim=-1))
        else:
            part.copy_(torch.stack(turned, dim=-1).flatten(-2))
