"""A GPT, a vision transformer, and a GPT of which only low-rank adapters are trained, small enough for a check."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SYMBOLS, CONTEXT, WIDTH, HEADS = 32, 16, 32, 4


class Attention(nn.Module):
    def __init__(self, causal: bool, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.causal, self.heads = causal, heads

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, time, width]`"""
        batch, time, width = x.shape
        q, k, v = self.into(x).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return out


class Block(nn.Module):
    def __init__(
        self, causal: bool, width: int = WIDTH, heads: int = HEADS, inner: int = 2 * WIDTH, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(causal, width, heads), nn.Dropout(dropout))
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        out: Tensor = x + self.mlp(x)
        return out


def transformer(layers: int, causal: bool, width: int, heads: int) -> nn.Module:
    """`[batch, time, width]` to as many, without dropout."""
    blocks = (Block(causal, width, heads, 4 * width, 0.0) for _ in range(layers))
    return nn.Sequential(*blocks, nn.LayerNorm(width))


class GPT(nn.Module):
    """`[batch, CONTEXT]` symbols to `[batch, CONTEXT, SYMBOLS]` logits of the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Parameter(torch.randn(CONTEXT, WIDTH) / 50)
        self.blocks = nn.Sequential(Block(True), Block(True), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, SYMBOLS, bias=False)

    def forward(self, symbols: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.symbols(symbols) + self.places))
        return logits


class ViT(nn.Module):
    """Images 1x28x28 in patches of 7x7 to ten logits."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Linear(49, WIDTH), nn.Parameter(torch.randn(16, WIDTH) / 50)
        self.blocks = nn.Sequential(Block(False), Block(False), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        patches = images.view(-1, 4, 7, 4, 7).transpose(2, 3).reshape(-1, 16, 49)
        logits: Tensor = self.head(self.blocks(self.patches(patches) + self.places).mean(1))
        return logits


class Adapted(nn.Module):
    """`W x + B A x`, of which W is frozen and B starts at zero (Hu et al., LoRA, ICLR 2022)."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + x @ self.down.T @ self.up.T
        return out


def lora() -> nn.Module:
    """The GPT, frozen but for adapters of its attention."""
    model = GPT().requires_grad_(False)
    for layer in [part for part in model.modules() if isinstance(part, Attention)]:
        layer.into, layer.out = Adapted(layer.into), Adapted(layer.out)  # type: ignore[assignment]
    return model
