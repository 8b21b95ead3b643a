"""The page of findings on sequences marks the ends of what was tried, and what was chosen."""

from __future__ import annotations

from helpers.sequences_page import text

from tools import findings_sequences as page
from tools import findings_trials as trials


def stars() -> set[tuple[str, str, str]]:
    """Return the settings at an end, by study and baseline."""
    return {
        (study.name, baseline, key)
        for study, cells in page.tuned().items()
        for baseline, settings in trials.tuned_settings(study, cells).items()
        for key, (_, at_end) in settings.items()
        if at_end
    }


def test_an_end_is_a_number_with_nothing_tried_beyond_it() -> None:
    assert [trials.is_end(x, [1.0, 2.0, 5.0]) for x in (0.5, 1, 2.0, 5.0, 10.0)] == [
        True, True, False, True, True,
    ]  # fmt: skip
    assert not trials.is_end("cosine", ["cosine", "linear"])
    assert not trials.is_end(None, [None])


def test_stars_are_at_the_ends_that_the_page_names() -> None:
    assert stars() == {
        ("clinc150", "ewc", "lr_multiple"),
        ("clinc150", "replay", "lr_multiple"),
        ("clinc150", "frozen", "lr_multiple"),
        ("clinc150-stage", "ewc-lora-head", "importance"),
        ("clinc150-stage", "ewc-lora-head", "lr_multiple"),
        ("clinc150-stage", "ties", "scale"),
        ("four-tasks", "wise-ft", "lr_multiple"),
        ("four-tasks", "o-lora", "weight"),
        ("four-tasks-written", "o-lora-low", "lr_multiple"),
        ("four-tasks-written", "o-lora-strong", "weight"),
    }
    assert (
        "EWC, replay and the head on frozen features with all classes; EWC-LoRA's head alone and"
        " TIES with the stage's; WiSE-FT and, at a lower weight, O-LoRA on the four"
        " tasks, whose settings the fifteen have, too; with written answers `o-lora-low`, and"
        " `o-lora-strong` at a higher weight."
    ) in text()
    settings = page.FIFTEEN.read()[0], page.FOUR.read()[0]
    fifteen, four = map(trials.settings_by_baseline, settings)
    assert all(four[name] == own for name, own in fifteen.items())  # "the fifteen have, too"


def test_ends_are_those_of_the_trials() -> None:
    cells = page.tuned()[page.FOUR]
    tried = [c.settings["method"] for c in trials.trials(page.FOUR) if c.method == "ewc-lora"]
    assert max(own["lr_multiple"] for own in tried) == 20.0  # the sweep of the first ones lists 10
    settings = trials.tuned_settings(page.FOUR, cells)
    assert settings["ewc-lora"]["lr_multiple"] == (5.0, False)
    assert settings["ewc-lora-fast"]["lr_multiple"] == (10.0, False)
    assert settings["wise-ft"]["lr_multiple"] == (1.0, True)
    assert "prototypes" not in trials.settings_table(page.tuned())


def test_the_chosen_settings_are_those_of_the_cells() -> None:
    cells = page.tuned()[page.ALL]
    used = trials.settings_by_baseline(cells)
    assert trials.chosen(page.ALL, cells, "o-lora") == used["o-lora"]
    assert trials.chosen(page.ALL, cells, "ewc-lora-head-high") == used["ewc-lora-head"]
    assert trials.chosen(page.ALL, cells, "ewc-lora-delta-high")["lr_multiple"] == 10.0
    rows = trials.trials_table(page.tuned(), page.SCORE).splitlines()
    bold = [[part.strip() for part in row.split("|")[1:3]] for row in rows if "**" in row]
    assert [(study, name) for study, name in bold] == [
        ("all classes so far", "`ewc-lora-delta-high`"),
        ("all classes so far", "`ewc-lora-head-high`"),
        ("all classes so far", "`frozen`"),
        ("all classes so far", "`o-lora`"),
        ("all classes so far", "`seq-star-low`"),
        ("all classes so far", "`ties-retuned`"),
        ("the stage's", "`o-lora`"),
        ("the stage's", "`seq-star-low`"),
        ("four tasks", "`ewc-lora-fast`"),
        ("four tasks", "`o-lora-strong`"),
    ]
