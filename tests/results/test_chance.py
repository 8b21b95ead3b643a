"""Methods that end no better than a constant answer."""

from __future__ import annotations

from helpers.handmade import failed, pair, reference

from clbench.report.files import head_notes
from clbench.results.chance import at_chance


def test_methods_at_chance_are_named_by_task() -> None:
    floors = [0.5, 0.6]
    cells = [
        pair("vanilla", 0, floors=floors),
        pair("adapter", 0, R=[[0.9, None], [0.7, 0.61]], floors=floors),
        pair("adapter", 1, R=[[0.9, None], [0.7, 0.65]], floors=floors),  # mean .03 of .4
        pair("early", 0, R=[[0.9, None], [0.54, 0.65]], floors=floors),  # .04 of .5, .05 of .4
        failed("broken", 0, "no memory"),
        reference(1, 0.6),
    ]
    assert at_chance(cells) == [
        "sst2-mrpc: at chance or below on glue/sst2 in the end: early",
        "sst2-mrpc: at chance or below on glue/mrpc in the end: adapter",
    ]
    assert at_chance([pair("adapter", R=[[0.5, None], [0.1, 0.1]])]) == []  # no floors


def test_the_treatment_of_shared_heads_is_told() -> None:
    metrics = [[{"accuracy": 0.5, "told": 0.7}, None], [{"accuracy": 0.5, "told": 0.7}] * 2]
    plain = pair("vanilla", metrics=metrics, settings={"protocol": {}, "holds_head": False})
    held = pair(
        "ewc", metrics=metrics, settings={"protocol": {"head_loss": "stage"}, "holds_head": True}
    )
    assert head_notes([pair()]) == []
    assert head_notes([plain]) == ["Heads that tasks share: head_loss = all."]
    assert head_notes([plain, held]) == [
        "Heads that tasks share: head_loss = all and stage; held or computed by the method itself: "
        "ewc."
    ]
