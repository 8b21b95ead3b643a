from __future__ import annotations

import numpy as np
import pytest
import torch

from clbench.models.encoding import EncodedRows
from clbench.training.batches import TaskData, largest_batches, length_grouped, plan


def encoded(lengths: list[int], types: bool = True) -> EncodedRows:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.arange(1, offsets[-1] + 1, dtype=np.int32)
    segments = (ids % 2).astype(np.uint8) if types else None
    return EncodedRows(ids, segments, offsets, np.arange(len(lengths), dtype=np.int64))


def data(lengths: list[int], task: int = 0) -> TaskData:
    return TaskData(task, f"t{task}", f"t{task}", False, encoded(lengths), 0)


def test_collate_pads_and_masks() -> None:
    rows = encoded([2, 3, 1])
    inputs, labels = rows.collate([1, 0], pad_id=99)
    assert inputs["input_ids"].tolist() == [[3, 4, 5], [1, 2, 99]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert inputs["token_type_ids"].tolist() == [[1, 0, 1], [1, 0, 0]]
    assert labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("at", "width"), [([0], 8), ([1], 16), ([0, 2], 16), ([3], 21), ([0, 3], 21)]
)
def test_widths_are_multiples_of_8_up_to_the_longest_row(at: list[int], width: int) -> None:
    """A model may take no more tokens than the longest row of all has."""
    rows = encoded([3, 9, 16, 21])
    inputs, _ = rows.collate(at, pad_id=99)
    assert inputs["input_ids"].shape == (len(at), width)
    assert inputs["attention_mask"].sum(1).tolist() == [[3, 9, 16, 21][i] for i in at]
    real = inputs["attention_mask"].bool()
    assert (inputs["input_ids"][~real] == 99).all()
    assert (inputs["input_ids"][real] != 99).all()


def test_take_keeps_order_and_remap_numbers_tokens_anew() -> None:
    rows = encoded([2, 3, 1]).take([2, 0])
    assert rows.ids.tolist() == [6, 1, 2]
    assert rows.offsets.tolist() == [0, 1, 3]
    assert rows.labels.tolist() == [2, 0]
    assert rows.remap(np.array([0, 1, 2, 6])).ids.tolist() == [3, 1, 2]


def test_an_epoch_holds_every_row_once_in_batches_of_similar_length() -> None:
    lengths = np.random.default_rng(0).integers(3, 120, size=1003)
    batches = length_grouped(lengths, 16, np.random.default_rng(1))
    assert sorted(np.concatenate(batches).tolist()) == list(range(1003))
    assert sorted({len(b) for b in batches}) == [1003 % 16, 16]
    padding = sum(int(lengths[b].max()) * len(b) - int(lengths[b].sum()) for b in batches)
    order = np.random.default_rng(1).permutation(1003)
    plain = [order[i : i + 16] for i in range(0, 1003, 16)]
    unsorted = sum(int(lengths[b].max()) * len(b) - int(lengths[b].sum()) for b in plain)
    assert padding < unsorted / 5


def test_batches_are_not_in_order_of_length() -> None:
    lengths = np.arange(1, 321)
    batches = length_grouped(lengths, 16, np.random.default_rng(0))
    longest = [int(lengths[b].max()) for b in batches]
    assert longest != sorted(longest)
    assert longest != sorted(longest, reverse=True)


def test_plan_repeats_with_its_stream_and_epochs_differ() -> None:
    source = data([3] * 10)

    def rows(seed: int, steps: int) -> list[list[int]]:
        return [p.tolist() for _, p in plan([source], [4], steps, ("order", seed))]

    assert rows(0, 6) == rows(0, 6)
    assert rows(0, 6) != rows(1, 6)
    epoch = rows(0, 6)
    assert sorted(row for batch in epoch[:3] for row in batch) == list(range(10))
    assert sorted(row for batch in epoch[3:] for row in batch) == list(range(10))
    assert epoch[:3] != epoch[3:]
    assert rows(0, 4) == epoch[:4]


def test_the_largest_batch_of_a_plan_and_of_its_last_tenth() -> None:
    rng = np.random.default_rng(3)
    batches = list(plan([data(rng.integers(2, 60, 100).tolist())], [7], 40, ("s",)))
    sizes = [len(at) * source.rows.lengths[at].max() for source, at in batches]
    first, last = int(np.argmax(sizes)), 36 + int(np.argmax(sizes[36:]))
    assert largest_batches(batches) == {first, last}
    assert largest_batches(batches[:1]) == {0}
    assert largest_batches([]) == set()


def test_plan_mixes_tasks_by_batch() -> None:
    first, second = data([3] * 8, 0), data([5] * 8, 1)
    items = list(plan([first, second], [4, 2], 6, ("order", 0)))
    assert sorted(source.task for source, _ in items) == [0, 0, 1, 1, 1, 1]


def test_batch_counts_real_tokens() -> None:
    batch = data([2, 5]).batch(np.array([0, 1]), torch.device("cpu"))
    assert (len(batch), batch.tokens, batch.inputs["input_ids"].shape) == (2, 7, (2, 5))


@pytest.mark.parametrize("types", [True, False])
def test_segments_exist_only_if_the_tokenizer_gives_them(types: bool) -> None:
    inputs, _ = encoded([2], types).collate([0], 0)
    assert ("token_type_ids" in inputs) is types
