"""What a user writes for each model of the zoo: a model, samples, a loss; and the same loss in a plain loop.

Three clients with five, three and four samples. Packages are imported where a row needs them: those it lacks are named.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import small_transformers
import turnout
import zoo_models

COUNTS = (5, 3, 4)
N = sum(COUNTS)
Plain = Callable[[Any, Any, Any], Tensor]  # (module, inputs, targets) -> the loss of a batch


@dataclass(frozen=True)
class Row:
    """A model with its samples, and the loss of a batch as a plain loop has it."""

    model: nn.Module
    inputs: Any
    targets: Any
    plain: Plain
    loss: Any = "cross_entropy"
    lr: float = 0.05
    task: dict[str, Any] = field(default_factory=dict)  # options of the task
    private: str = ""  # a layer that clients keep
    rough: str = ""  # why float32 differs by more than rounding


ROWS: dict[str, Callable[[], Row]] = {}
BENDS = "rounding decides where ReLU bends; with softplus in its place the difference is 2e-7, with BatchNorm 3e-7"
FEW = "values are divided by their deviation over one or two samples, which rounding changes where it is small"


def row(name: str) -> Callable[[Callable[[], Row]], Callable[[], Row]]:
    """Register what a user writes under a name."""

    def register(function: Callable[[], Row]) -> Callable[[], Row]:
        ROWS[name] = function
        return function

    return register


def entropy(module: Any, x: Any, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x), y)


def pictures(model: nn.Module, channels: int = 3, side: int = 32, **more: Any) -> Row:
    """Ten classes of random pictures."""
    return Row(model, torch.randn(N, channels, side, side), torch.arange(N) % 10, entropy, **more)


@row("ResNet-18, GroupNorm")
def resnet_groups() -> Row:
    return pictures(turnout.models.batchnorm_to_groupnorm(zoo_models.ResNet18()), rough=BENDS)


@row("ResNet-18, BatchNorm frozen")
def resnet_frozen() -> Row:
    return pictures(zoo_models.ResNet18(), task={"batchnorm": "frozen"})


@row("ResNet-18, BatchNorm averaged")
def resnet_averaged() -> Row:
    return pictures(zoo_models.ResNet18(), task={"batchnorm": "averaged"}, rough=BENDS)


@row("ResNet-18, BatchNorm local_statistics")
def resnet_local_statistics() -> Row:
    return pictures(zoo_models.ResNet18(), task={"batchnorm": "local_statistics"}, rough=BENDS)


@row("ResNet-18, BatchNorm local")
def resnet_local() -> Row:
    return pictures(zoo_models.ResNet18(), task={"batchnorm": "local"}, rough=BENDS)


@row("ResNet-18, BatchNorm batch")
def resnet_batch() -> Row:
    return pictures(zoo_models.ResNet18(), task={"batchnorm": "batch"}, rough=BENDS)


@row("ResNet-18, BatchNorm fixed")
def resnet_fixed() -> Row:
    return pictures(zoo_models.ResNet18(), task={"batchnorm": turnout.tasks.Fixed(after=1)}, rough=BENDS)


@row("MobileNet-v3, GroupNorm")
def mobilenet_groups() -> Row:
    return pictures(turnout.models.batchnorm_to_groupnorm(zoo_models.mobilenet_v3()), side=64)


@row("EfficientNet-B0, GroupNorm")
def efficientnet_groups() -> Row:
    return pictures(turnout.models.batchnorm_to_groupnorm(zoo_models.efficientnet_b0()))


@row("MobileNet-v3, BatchNorm averaged")
def mobilenet() -> Row:
    return pictures(zoo_models.mobilenet_v3(), side=64, task={"batchnorm": "averaged"}, rough=FEW)


@row("EfficientNet-B0, BatchNorm averaged")
def efficientnet() -> Row:
    # With lr 0.05 a change of 1e-15 in the samples changes the model of a plain loop in float64 by 1e-4, too.
    return pictures(zoo_models.efficientnet_b0(), side=64, lr=1e-4, task={"batchnorm": "averaged"}, rough=FEW)


@row("U-Net, Dice")
def unet() -> Row:
    x = torch.randn(N, 1, 16, 16)
    plain: Plain = lambda m, x, y: zoo_models.dice(m(x), y).mean()  # noqa: E731
    return Row(zoo_models.UNet(), x, (x > 0.5).float(), plain, loss=zoo_models.dice)


@row("segmentation, classes first")
def segmentation() -> Row:
    x = torch.randn(N, 1, 8, 8)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
    return Row(model, x, (x[:, 0] > 0).long() + (x[:, 0] > 1).long(), entropy, loss=nn.CrossEntropyLoss())


@row("ViT")
def vit() -> Row:
    return pictures(small_transformers.ViT(), 1, 28)


class Translator(nn.Module):
    """`nn.Transformer` from one sequence to the next symbols of another."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 16), nn.Linear(16, 20)
        self.transformer = nn.Transformer(16, 2, 1, 1, 32, dropout=0.1, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(
            target.shape[1], device=target.device, dtype=self.out.weight.dtype
        )
        return self.out(self.transformer(self.embed(source), self.embed(target), tgt_mask=mask))


@row("nn.Transformer")
def transformer() -> Row:
    x = torch.randint(0, 20, (N, 2, 7))
    plain: Plain = lambda m, x, y: F.cross_entropy(m(*x).transpose(1, 2), y)  # noqa: E731
    return Row(Translator(), (x[:, 0], x[:, 1, :-1]), x[:, 1, 1:], plain)


@row("GPT")
def gpt() -> Row:
    symbols = torch.randint(0, small_transformers.SYMBOLS, (N, small_transformers.CONTEXT + 1))
    plain: Plain = lambda m, x, y: F.cross_entropy(m(x).transpose(1, 2), y)  # noqa: E731
    return Row(small_transformers.GPT(), symbols[:, :-1], symbols[:, 1:], plain)


# -- Hugging Face, as its models come ---------------------------------------------------------------------------


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 3}
    return BertForSequenceClassification(BertConfig(vocab_size=50, intermediate_size=64, **sizes))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2))


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, num_key_value_heads=2, intermediate_size=64, **sizes))


def sentences(length: int = 8) -> dict[str, Tensor]:
    """Symbols, of which some at the end do not count."""
    mask = (torch.arange(length) < torch.randint(3, length + 1, (N, 1))).long()
    return {"input_ids": torch.randint(0, 50, (N, length)), "attention_mask": mask}


def classified(model: nn.Module) -> Row:
    plain: Plain = lambda m, x, y: F.cross_entropy(m(**x).logits, y)  # noqa: E731
    return Row(model, sentences(), torch.arange(N) % 3, plain)


def next_symbols(model: nn.Module) -> Row:
    """Causal language models: every symbol from those before it."""
    symbols = torch.randint(0, 50, (N, 9))
    plain: Plain = lambda m, x, y: F.cross_entropy(m(**x).logits.transpose(1, 2), y)  # noqa: E731
    return Row(model, {"input_ids": symbols[:, :-1]}, symbols[:, 1:], plain)


def adapted(model: nn.Module, layers: list[str], dora: bool) -> Any:
    """Add adapters by PEFT to a model that is frozen otherwise."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=4, target_modules=layers, lora_dropout=0.1, use_dora=dora))


@row("BERT")
def bert_row() -> Row:
    return classified(bert())


@row("GPT-2")
def gpt2_row() -> Row:
    return next_symbols(gpt2())


@row("GPT-2, its own loss")
def gpt2_own_loss() -> Row:
    symbols = torch.randint(0, 50, (N, 9))
    plain: Plain = lambda m, x, _: m(**x).loss  # noqa: E731
    return Row(gpt2(), {"input_ids": symbols, "labels": symbols}, symbols, plain, loss="model")


@row("Llama, GQA")
def llama_row() -> Row:
    return next_symbols(llama())


@row("LoRA, BERT")
def lora_bert() -> Row:
    return classified(adapted(bert(), ["query", "value"], False))


@row("LoRA, GPT-2")
def lora_gpt2() -> Row:
    return next_symbols(adapted(gpt2(), ["c_attn"], False))


@row("LoRA, Llama")
def lora_llama() -> Row:
    return next_symbols(adapted(llama(), ["q_proj", "v_proj"], False))


@row("DoRA, BERT")
def dora_bert() -> Row:
    return classified(adapted(bert(), ["query", "value"], True))


@row("DoRA, GPT-2")
def dora_gpt2() -> Row:
    return next_symbols(adapted(gpt2(), ["c_attn"], True))


@row("DoRA, Llama")
def dora_llama() -> Row:
    return next_symbols(adapted(llama(), ["q_proj", "v_proj"], True))


@row("LoRA by hand")
def lora_by_hand() -> Row:
    symbols = torch.randint(0, small_transformers.SYMBOLS, (N, small_transformers.CONTEXT + 1))
    plain: Plain = lambda m, x, y: F.cross_entropy(m(x).transpose(1, 2), y)  # noqa: E731
    return Row(small_transformers.lora(), symbols[:, :-1], symbols[:, 1:], plain)


@row("bf16 base")
def bf16_base() -> Row:
    base = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16)).to(torch.bfloat16).requires_grad_(False)

    class OnBase(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.head = base, nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.base(x.bfloat16()).to(self.head.weight.dtype))

    rough = "where clients are mapped, values of 8 bits are rounded in another order"
    return Row(OnBase(), torch.randn(N, 6), torch.arange(N) % 3, entropy, rough=rough)


# -- recurrent, sparse, graphs, and what is odd -----------------------------------------------------------------


def recurrent(kind: Any, packed: bool) -> Row:
    lengths = torch.randint(2, 8, (N,))
    plain: Plain = lambda m, x, y: F.cross_entropy(m(*x), y)  # noqa: E731
    return Row(zoo_models.Recurrent(kind, packed), (torch.randint(0, 20, (N, 7)), lengths), torch.arange(N) % 3, plain)


@row("LSTM, fused")
def lstm() -> Row:
    return recurrent(nn.LSTM, False)


@row("GRU, packed")
def gru() -> Row:
    return recurrent(nn.GRU, True)


@row("EmbeddingBag, private user vectors")
def recommender() -> Row:
    inputs = torch.randint(0, 30, (N, 5)), torch.randint(0, 30, (N,))
    plain: Plain = lambda m, x, y: F.binary_cross_entropy_with_logits(m(*x), y)  # noqa: E731
    loss = nn.BCEWithLogitsLoss()
    return Row(zoo_models.Recommender(), inputs, (torch.arange(N) % 2).float(), plain, loss, private="user")


@row("GNN, edge lists")
def graphs() -> Row:
    inputs = torch.randn(N, 6, 4), torch.randint(0, 6, (N, 9, 2))
    plain: Plain = lambda m, x, y: F.cross_entropy(m(*x), y)  # noqa: E731
    return Row(zoo_models.Graphs(), inputs, torch.arange(N) % 3, plain)


def numbers(model: nn.Module, **more: Any) -> Row:
    return Row(model, torch.randn(N, 5), torch.arange(N) % 3, entropy, **more)


@row("weight_norm")
def weight_norm() -> Row:
    return numbers(nn.Sequential(parametrizations.weight_norm(nn.Linear(5, 8)), nn.Tanh(), nn.Linear(8, 3)))


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(5, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(F.dropout(F.relu(self.one(x)), 0.3, self.training))


@row("spectral_norm, averaged")
def spectral_norm() -> Row:
    layer = parametrizations.spectral_norm(nn.Linear(5, 8))
    return numbers(nn.Sequential(layer, nn.Tanh(), nn.Linear(8, 3)), task={"buffers": "averaged"})


@row("spectral_norm, kept")
def spectral_norm_kept() -> Row:
    layer = parametrizations.spectral_norm(nn.Linear(5, 8))
    return numbers(nn.Sequential(layer, nn.Tanh(), nn.Linear(8, 3)), task={"buffers": "kept"})


@row("F.dropout")
def f_dropout() -> Row:
    return numbers(Dropped())


@row("if tensor")
def branching() -> Row:
    return numbers(zoo_models.Branching())


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Dropout(0.2)) for _ in range(3))
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.out(x)


@row("gradient checkpointing")
def checkpointed() -> Row:
    return numbers(Checkpointed())


class OfDictionary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.picture, self.numbers, self.out = nn.Linear(16, 8), nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        mixed = torch.tanh(self.picture(batch["picture"].flatten(1)) + self.numbers(batch["numbers"]))
        return {"logits": self.out(mixed), "mixed": mixed}


@row("dict batch")
def dictionary() -> Row:
    inputs = {"picture": torch.randn(N, 4, 4), "numbers": torch.randn(N, 5)}
    plain: Plain = lambda m, x, y: F.cross_entropy(m(x)["logits"], y)  # noqa: E731
    return Row(OfDictionary(), inputs, torch.arange(N) % 3, plain)


@row("multi-label")
def multi_label() -> Row:
    weights = torch.tensor([1.0, 3.0, 2.0, 0.5])
    loss = nn.BCEWithLogitsLoss(pos_weight=weights)
    plain: Plain = lambda m, x, y: copy.deepcopy(loss).to(x)(m(x), y)  # noqa: E731
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4))
    return Row(model, torch.randn(N, 5), (torch.rand(N, 4) < 0.4).float(), plain, loss)
