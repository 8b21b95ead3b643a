from __future__ import annotations

from handmade import Asked

from clbench.evaluation.ray_turns import TRIES, Turns


def cells(*names: str) -> list[Asked]:
    return [Asked(name) for name in names]


def group(cell: Asked) -> str | None:
    """``a1`` and ``a2`` share the stage ``a``; names with a dash share nothing."""
    return None if "-" in cell.key else cell.key[0]


def test_cells_that_share_a_stage_wait_for_one_of_them_and_others_go_ahead() -> None:
    turns = Turns(cells("a1", "a2", "b1", "own-1", "a3"), group)
    first, second, third = turns.take(), turns.take(), turns.take()
    assert [cell.key for cell in (first, second, third)] == ["a1", "b1", "own-1"]
    assert turns.take() is None
    assert turns.leads(first)
    assert not turns.leads(second)  # nobody waits for it
    turns.finished(first, well=True)
    assert [turns.take().key, turns.take().key] == ["a2", "a3"]
    assert len(turns) == 0


def test_when_the_first_fails_the_next_trains_the_shared_stage() -> None:
    turns = Turns(cells("a1", "a2", "a3"), group)
    first = turns.take()
    turns.finished(first, well=False)
    second = turns.take()
    assert second.key == "a2"
    assert turns.take() is None
    assert turns.leads(second)
    turns.finished(second, well=True)
    assert turns.take().key == "a3"


def test_a_cell_whose_worker_died_is_next_until_it_was_tried_three_times() -> None:
    turns = Turns(cells("a1", "own-1"), group)
    for left in range(TRIES - 1, 0, -1):
        cell = turns.take()
        assert cell.key == "a1"
        assert turns.died(cell) == left
    cell = turns.take()
    assert cell.key == "a1"
    assert turns.died(cell) == 0
    assert turns.take().key == "own-1"
    assert len(turns) == 0


def test_a_lost_stage_is_trained_again_by_one_cell() -> None:
    turns = Turns(cells("a1", "a2", "a3"), group)
    turns.finished(turns.take(), well=True)
    turns.lost("a")
    assert turns.take().key == "a2"
    assert turns.take() is None
    assert turns.awaited("a")
