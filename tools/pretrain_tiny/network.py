"""The student network, its losses, and its export to an ordinary checkpoint folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from clbench.models.folder import check_folder
from tools.pretrain_tiny.encode import PAD, SPECIAL, UNK


@dataclass(frozen=True)
class Shape:
    """Sizes of the student; the defaults stay below 8 MB at two bytes a parameter."""

    layers: int = 4
    hidden: int = 192
    heads: int = 3
    positions: int = 256
    vocab: int = 6144


@dataclass
class Batch:
    """One padded batch; the last four fields are set only with a teacher."""

    ids: Tensor
    types: Tensor
    mask: Tensor
    labels: Tensor
    """True tokens; -1 where nothing is predicted."""
    words: Any = None
    word_at: Any = None
    sentence: Any = None
    """Shape (batch, 2, teacher width); the second vector repeats the first for a single."""
    pair: Any = None


class Student(nn.Module):
    """A BERT with masked-LM head and, during training, heads that imitate a teacher."""

    weights = {"mlm": 1.0, "middle": 2.0, "last": 3.0, "sentence": 2.0, "mean": 1.0, "cosine": 5.0}

    def __init__(self, shape: Shape, word_width: int = 0, sentence_width: int = 0) -> None:
        super().__init__()
        from transformers import BertConfig, BertForPreTraining

        config = BertConfig(
            vocab_size=shape.vocab,
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=4 * shape.hidden,
            max_position_embeddings=shape.positions,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            pad_token_id=PAD,
            attn_implementation="eager",  # faster than the fused kernel backwards in bf16 on CPUs
        )
        self.net: Any = BertForPreTraining(config)
        for parameter in self.net.cls.seq_relationship.parameters():
            parameter.requires_grad_(False)
        self.middle = shape.layers // 2
        self.distils = word_width > 0
        if self.distils:
            self.to_middle = nn.Linear(shape.hidden, word_width)
            self.to_last = nn.Linear(shape.hidden, word_width)
            self.to_sentences = nn.Linear(shape.hidden, 2 * sentence_width)
            self.to_mean = nn.Linear(shape.hidden, sentence_width)
            self.to_cosine = nn.Linear(shape.hidden, 1)

    def fill(self, batch: Batch, hidden: bool = False) -> tuple[Any, Tensor, Tensor]:
        """Return the encoder's output, and logits and true tokens of the chosen positions."""
        out = self.net.bert(
            input_ids=batch.ids,
            token_type_ids=batch.types,
            attention_mask=batch.mask,
            output_hidden_states=hidden,
        )
        chosen = batch.labels >= 0
        logits = self.net.cls.predictions(out.last_hidden_state[chosen]).float()
        return out, logits, batch.labels[chosen]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the masked-LM cross-entropy and the distances to the teacher."""
        out, logits, target = self.fill(batch, self.distils)
        last = out.last_hidden_state
        right = (logits.detach().argmax(-1) == target).float()
        losses = {"mlm": functional.cross_entropy(logits, target), "accuracy": right.mean()}
        if not self.distils:
            return losses
        at = batch.word_at
        width = batch.words.shape[-1] // 2
        middle = self.to_middle(out.hidden_states[self.middle][at]).float()
        losses["middle"] = functional.mse_loss(middle, batch.words[:, :width])
        losses["last"] = functional.mse_loss(self.to_last(last[at]).float(), batch.words[:, width:])
        guess = self.to_sentences(out.pooler_output).float().view_as(batch.sentence)
        losses["sentence"] = 1 - functional.cosine_similarity(guess, batch.sentence, dim=-1).mean()
        first = (batch.mask * (1 - batch.types))[..., None].to(last.dtype)
        mean = self.to_mean((last * first).sum(1) / first.sum(1)).float()
        losses["mean"] = 1 - functional.cosine_similarity(mean, batch.sentence[:, 0], dim=-1).mean()
        cosine = self.to_cosine(out.pooler_output).float().squeeze(-1)
        truth = (batch.sentence[:, 0] * batch.sentence[:, 1]).sum(-1)
        pair = batch.pair.float()
        losses["cosine"] = ((cosine - truth).square() * pair).sum() / pair.sum().clamp(min=1)
        return losses


@torch.no_grad()
def project_embeddings(student: Student, tokenizer: Tokenizer, teacher: Any) -> None:
    """Initialise token embeddings with the principal components of the teacher's.

    A token that the teacher lacks gets the mean of the teacher's pieces of it.
    """
    table = teacher.model.get_input_embeddings().weight.float()
    target = student.net.bert.embeddings.word_embeddings.weight
    rows = torch.empty(target.shape[0], table.shape[1])
    for index in range(target.shape[0]):
        token = str(tokenizer.id_to_token(index))
        same = teacher.tokenizer.convert_tokens_to_ids(token)
        if same == teacher.tokenizer.unk_token_id and token not in SPECIAL:
            pieces = teacher.tokenizer(token.removeprefix("##"), add_special_tokens=False)
            rows[index] = table[pieces["input_ids"] or [same]].mean(0)
        else:
            rows[index] = table[same]
    rows -= rows.mean(0)
    _, _, basis = torch.linalg.svd(rows, full_matrices=False)
    projected = rows @ basis[: target.shape[1]].T
    target.copy_(projected * (0.04 / projected.std()))
    target[PAD] = 0


def spread(layers: int, depth: int) -> list[int]:
    """Return which ``layers`` of ``depth`` to keep: evenly spread from first to last."""
    return [round(at) for at in np.linspace(0, depth - 1, layers)]


@torch.no_grad()
def start_from(student: Student, tokenizer: Tokenizer, folder: Path) -> None:
    """Copy the weights of an earlier model; a new token gets the mean of its old pieces.

    From a deeper model, evenly spaced layers are kept, including the first and the last.

    Raises
    ------
    ModelError, ValueError
        If the earlier model cannot be read or does not fit.
    """
    config = check_folder(folder, str(folder))
    old_tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    old = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
    shape = student.net.config
    depth, heads = config["num_hidden_layers"], config["num_attention_heads"]
    if depth < shape.num_hidden_layers or heads != shape.num_attention_heads:
        raise ValueError(f"--start {folder} needs --layers {depth} or fewer and --heads {heads}")
    weights = {name: value for name, value in old.items() if ".layer." not in name}
    for layer, source in enumerate(spread(shape.num_hidden_layers, depth)):
        there = f".layer.{source}."
        weights |= {n.replace(there, f".layer.{layer}."): v for n, v in old.items() if there in n}
    rows = []
    for index in range(tokenizer.get_vocab_size()):
        token = str(tokenizer.id_to_token(index))
        pieces = [old_tokenizer.token_to_id(token)]
        if pieces[0] is None:
            word = token.removeprefix("##")
            pieces = old_tokenizer.encode(word, add_special_tokens=False).ids or [UNK]
        rows.append(pieces)
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        if name in weights:
            weights[name] = torch.stack([weights[name][row].mean(0) for row in rows])
    for name, value in student.net.state_dict().items():
        if name.startswith(("cls.predictions.decoder.", "cls.seq_relationship.")):
            continue
        if name not in weights or weights[name].shape != value.shape:
            raise ValueError(f"--start {folder}: {name} is missing or has another shape")
        value.copy_(weights[name])


def learning_rate(progress: float, peak: float, warmup: float = 0.02) -> float:
    """Return the rate: linear warm-up over the share ``warmup``, then a cosine to zero."""
    if progress < warmup:
        return peak * (0.02 + 0.98 * progress / warmup)
    decay = min(1.0, (progress - warmup) / (1 - warmup))
    return peak * 0.5 * (1 + math.cos(math.pi * decay))


def export(student: Student, folder: Path) -> None:
    """Write ``config.json`` and half-precision weights that ``transformers`` loads as they are.

    The folder holds the encoder, its pooler and the masked-LM head. The configuration names
    float32, so ``from_pretrained`` restores full precision, and BERT's usual dropout.
    """
    from transformers import BertConfig

    settings = student.net.config.to_dict()
    settings.update(
        architectures=["BertForMaskedLM"],
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        dtype="float32",
    )
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    weights = {
        name: value
        for name, value in student.net.state_dict().items()
        if name not in tied and "seq_relationship" not in name and value.is_floating_point()
    }
    write_checkpoint(BertConfig.from_dict(settings), weights, folder)


def write_checkpoint(config: Any, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write a configuration, and weights in half precision."""
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    half = {name: value.detach().half().contiguous() for name, value in weights.items()}
    part = folder / "model.safetensors.part"
    save_file(half, part, metadata={"format": "pt"})
    part.chmod(0o644)  # safetensors makes it readable for its owner only
    part.replace(folder / "model.safetensors")


def parameters(net: nn.Module) -> int:
    """Return the number of exported parameters."""
    return int(sum(p.numel() for n, p in net.named_parameters() if "seq_rel" not in n))
