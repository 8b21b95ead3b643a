"""Distillation targets: hidden states of a larger encoder, computed once."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from tools.pretrain_tiny.encode import EncodedRows, cut_batches, encode

log = logging.getLogger(__name__)
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Targets:
    """Outputs of the teacher."""

    words: npt.NDArray[np.float16]
    """Shape (words, 2 * width): principal components of the middle and the last hidden layer,
    mean over a word's pieces, divided by their common standard deviation."""
    sentences: npt.NDArray[np.float16]
    """Shape (segments, teacher width): mean of the last hidden states, unit length."""


class Teacher:
    """A pretrained encoder and its tokenizer, read from a folder or the hub."""

    longest = 256

    def __init__(self, name: str, threads: int = 1) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(name)
        self.model: Any = AutoModel.from_pretrained(name, dtype=torch.float32).eval()
        self.threads = threads
        self.layers = int(self.model.config.num_hidden_layers)

    def states(
        self, encoded: EncodedRows, rows: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], list[Floats], Floats]:
        """Return `rows`, word states of the middle and the last layer, and sentence vectors."""
        cls, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        lengths = np.minimum(encoded.lengths[rows], self.longest - 2)
        shape = (len(rows), int(lengths.max()) + 2)
        ids, mask = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        word = np.full(shape, -1, dtype=np.int64)
        base = 0
        for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
            lo = encoded.token_start[row]
            ids[i, 0], ids[i, 1 : n + 1], ids[i, n + 1] = cls, encoded.ids[lo : lo + n], sep
            mask[i, : n + 2] = 1
            word[i, 1 : n + 1] = base + np.cumsum(encoded.word[lo : lo + n] >= 0) - 1
            base += int(encoded.word_start[row + 1] - encoded.word_start[row])
        attention = torch.from_numpy(mask)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            out = self.model(
                input_ids=torch.from_numpy(ids),
                attention_mask=attention,
                output_hidden_states=True,
            )
        hidden = [out.hidden_states[self.layers // 2].float(), out.last_hidden_state.float()]
        real = torch.from_numpy(word >= 0)
        index = torch.from_numpy(word)[real]
        count = torch.zeros(base).index_add_(0, index, torch.ones(len(index)))
        states = [
            torch.zeros(base, h.shape[-1]).index_add_(0, index, h[real])
            / count.clamp(min=1)[:, None]
            for h in hidden
        ]
        weight = attention[..., None].float()
        sentence = (hidden[-1] * weight).sum(1) / weight.sum(1)
        sentence = torch.nn.functional.normalize(sentence, dim=-1)
        return rows, [s.numpy() for s in states], sentence.numpy()

    def batches(
        self, encoded: EncodedRows, order: npt.NDArray[np.int64], budget: int = 2048
    ) -> Iterator[tuple[npt.NDArray[np.int64], list[Floats], Floats]]:
        """Yield `states` of ``order`` in batches; each thread works on a batch of its own."""
        lengths = np.minimum(encoded.lengths, self.longest - 2) + 2
        parts = cut_batches(order, lengths, budget)
        with ThreadPoolExecutor(
            self.threads, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            for block in range(0, len(parts), 64):
                yield from pool.map(lambda p: self.states(encoded, p), parts[block : block + 64])


def _components(states: Floats, width: int) -> tuple[Floats, Floats]:
    mean = states.mean(0)
    _, vectors = np.linalg.eigh(np.cov((states - mean).T))
    basis = vectors[:, ::-1][:, :width].astype(np.float32)
    return mean, basis / float(((states - mean) @ basis).std())


def fingerprint(teacher: Teacher, student: EncodedRows, segments: Sequence[str]) -> str:
    """Return a digest of what the targets depend on: teacher, text and word boundaries."""
    digest = hashlib.sha256()
    for value in teacher.model.state_dict().values():
        digest.update(value.contiguous().numpy().tobytes())
    for segment in segments:
        digest.update(segment.encode() + b"\n")
    digest.update(np.asarray(student.word_start, dtype=np.int64).tobytes())
    return digest.hexdigest()[:16]


def precompute(
    teacher: Teacher, student: EncodedRows, segments: Sequence[str], folder: Path, width: int
) -> Targets:
    """Return the targets of every segment; compute them unless ``folder`` holds them.

    Raises
    ------
    ValueError
        If ``folder`` holds the targets of another text or teacher.
    """
    recipe_file = folder / "targets.json"
    words_file, sentence_file = folder / "words.npy", folder / "sentences.npy"
    recipe = {"width": width, "of": fingerprint(teacher, student, segments)}
    if recipe_file.exists() and json.loads(recipe_file.read_text()) != recipe:
        raise ValueError(
            f"{folder} holds targets for another text or from another teacher. Delete it, or "
            "choose another --work."
        )
    if not recipe_file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        backend: Tokenizer = teacher.tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        encoded = encode(backend, segments)
        same = np.diff(encoded.word_start) == np.diff(student.word_start)
        log.info(
            "teacher: %d segments, %.3f%% with other word boundaries",
            len(same),
            100 * (1 - same.mean()),
        )
        order = np.argsort(encoded.lengths, kind="stable")
        sample = np.sort(np.random.default_rng(0).choice(len(order), min(4000, len(order))))
        parts = list(teacher.batches(encoded, order[sample]))
        bases = [_components(np.concatenate([p[1][k] for p in parts]), width) for k in (0, 1)]
        hidden = parts[0][2].shape[1]
        shape = (int(student.word_start[-1]), 2 * width)
        words = np.lib.format.open_memmap(words_file, "w+", np.float16, shape)
        sentences = np.lib.format.open_memmap(
            sentence_file, "w+", np.float16, (len(segments), hidden)
        )
        count = 0
        for step, (rows, states, sentence) in enumerate(teacher.batches(encoded, order)):
            projected = np.concatenate(
                [(s - mean) @ basis for s, (mean, basis) in zip(states, bases, strict=True)], 1
            ).astype(np.float16)
            sentences[rows] = sentence.astype(np.float16)
            base = 0
            for row in rows:
                n = int(encoded.word_start[row + 1] - encoded.word_start[row])
                if same[row]:
                    lo = student.word_start[row]
                    words[lo : lo + n] = projected[base : base + n]
                base += n
            count += len(rows)
            if step % 200 == 0:
                log.info("teacher: %d of %d segments", count, len(segments))
        words.flush()
        sentences.flush()
        recipe_file.write_text(json.dumps(recipe))
    return Targets(np.load(words_file, mmap_mode="r"), np.load(sentence_file, mmap_mode="r"))
