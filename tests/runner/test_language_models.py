"""Runs in which a language model answers every task in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.checkpoints import save_generator
from helpers.language_models import cell, run

from clbench.cli import main
from clbench.core.errors import ClbenchError
from clbench.results.cell import correct_after
from clbench.runner.run_state import Listener


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    return cell(run(folder, "plain"))


def test_tasks_are_learned_and_scored_by_likelihood(plain: Any) -> None:
    assert plain.R[0][0] > 0.9
    assert plain.R[1][1] > 0.9
    bits = correct_after(plain, 1)
    assert bits is not None
    assert bits.mean() == pytest.approx(plain.R[1][1])


def test_what_is_written_agrees_once_a_task_is_learned(folder: Path, plain: Any) -> None:
    changes = {'head = "language-model"': 'head = "language-model"\nanswer_by = "generation"'}
    changes["answer_length = 8"] = "answer_length = 1"  # which is for targets, not for answers
    written = cell(run(folder, "written", changes=changes))
    assert written.R[1][1] == pytest.approx(plain.R[1][1], abs=0.05)
    # The first task's answers are no longer written, though they may still be more likely.
    assert written.R[1][0] <= plain.R[1][0]


def test_listed_answers_train_as_if_the_prompts_had_them(folder: Path) -> None:
    short = {"epochs = 10": "epochs = 1"}
    listed = cell(run(folder, "listed", changes={"epochs = 10": "epochs = 1\nlist_answers = true"}))
    typed = {
        '"{text} is"': '"Options: bad, good new\\n{text} is"',
        '"{text} of"': '"Options: film, long story\\n{text} of"',
    }
    typed_in, without = (
        cell(run(folder, name, changes=changes))
        for name, changes in (("typed", {**short, **typed}), ("unlisted", short))
    )
    losses = [[stage.curves["loss"] for stage in c.stages] for c in (listed, typed_in, without)]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.slow
def test_free_texts_are_written_and_compared(folder: Path) -> None:
    metric = {"[task.mood]": '[protocol.task_metric]\nwrite = "token-f1"\n\n[task.mood]'}
    result = cell(run(folder, "free", scenarios=["write"], changes=metric))
    assert result.R[1][1] > 0.9
    assert list(result.metrics[1][1] or ()) == ["token-f1", "exact"]
    assert result.floors[1] is None
    changes = {'head = "language-model"\n': "", "answer_length = 8\n": ""}
    with pytest.raises(ClbenchError, match=r"has texts to write, not classes\. Set head"):
        run(folder, "no-head", changes=changes, scenarios=["write"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "same"),
    [
        ("packing = true", False),
        ("accumulation = 2", False),
        ("gradient_checkpointing = true", True),
    ],
)
def test_savings_change_only_the_last_digits(
    folder: Path, plain: Any, setting: str, same: bool
) -> None:
    changes = {"epochs = 10": f"epochs = 10\n{setting}"}
    other = cell(run(folder, setting.partition(" ")[0], changes=changes))
    losses = [np.array(c.stages[0].curves["loss"]) for c in (plain, other)]
    np.testing.assert_allclose(*losses, rtol=0 if same else 1e-3)


def test_classes_may_arrive_in_steps(folder: Path) -> None:
    scenario = (
        '[[scenario]]\nname = "steps"\nshift = "class-incremental"\ntasks = ["mood", "thing"]\n'
        'steps = 2\norder_seed = 0\n\n[[scenario]]\nname = "write"'
    )
    changes = {'[[scenario]]\nname = "write"': scenario}
    result = cell(run(folder, "steps", changes=changes, scenarios=["steps"]))
    assert result.metrics[0][0]["accuracy"] > 0.8
    assert {"told", "elsewhere"} <= result.metrics[1][0].keys()


def test_notes_say_what_was_cut(folder: Path) -> None:
    told: list[str] = []
    listener = Listener()
    listener.note = told.append  # type: ignore[method-assign]
    changes = {"max_length = 24": "max_length = 6"}
    result = cell(run(folder, "cut", changes=changes, listener=listener))
    (note, *_) = (n for n in result.notes if "cut to 4 tokens by dropping the beginning" in n)
    assert f"two: {note}" in told


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({'head = "language-model"\n': ""}, "answer_length needs head = 'language-model'"),
        ({'head = "language-model"': 'head = "language-model"\nchat = true'}, "no chat template"),
        ({'model = "model"': 'model = "tiny"'}, "no language-model head that writes text"),
        ({'methods = ["vanilla"]': 'methods = ["icarl"]'}, "it needs head = 'classification'"),
        ({'down = "bad"': 'down = "good new"'}, "several classes have the answer 'good new'"),
        (
            {"[task.mood]": '[protocol.task_metric]\nwrite = "mcc"\n\n[task.mood]'},
            "the task has no metric 'mcc'. Use",
        ),
        (
            {"answer_length = 8": 'capability_tasks = ["mood"]'},
            "capability_tasks needs capability_rows",
        ),
        (
            {"answer_length = 8": 'capability_rows = 8\ncapability_tasks = ["mmul"]'},
            "Unknown task 'mmul'. Did you mean 'mmlu'",
        ),
        ({"max_length = 24": "max_length = 4"}, "leave no room for a text in max_length = 4"),
        ({"epochs = 10": "epochs = 10\nprobe_rows = 1"}, "probe_rows = 1 is less than the 2"),
    ],
)
def test_bad_input_is_refused_before_training(
    folder: Path, changes: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ClbenchError, match=message):
        run(folder, "bad", changes=changes)
    suite = str(folder / "bad.toml")
    assert main(["run", suite, "--scenarios", "two", "--out", f"{folder}/bad", "--dry-run"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({'methods = ["vanilla"]': 'methods = ["kl-anchor"]'}, "it needs a decoder, and model"),
        ({'methods = ["vanilla"]': 'methods = ["ewc-mlm"]'}, "it needs a decoder, and model"),
        ({"epochs = 10": "epochs = 10\npacking = true"}, "packing is for decoders"),
    ],
)
def test_what_encoder_decoders_cannot_do_is_refused_before_training(
    folder: Path, change: dict[str, str], message: str
) -> None:
    if not (folder / "t5-refused").exists():
        save_generator("t5", folder / "t5-refused", appends_end=True)
    with pytest.raises(ClbenchError, match=message):
        run(folder, "t5-bad", changes={'model = "model"': 'model = "t5-refused"', **change})


def test_packing_is_refused_beyond_an_attention_window(folder: Path) -> None:
    save_generator("mistral", folder / "mistral")
    changes = {'model = "model"': 'model = "mistral"', "epochs = 10": "packing = true"}
    with pytest.raises(
        ClbenchError, match="its attention window of 16 tokens, and max_length = 24"
    ):
        run(folder, "window", changes=changes)


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("bloom", "packing = true", "takes no positions. Set packing = false"),
        ("gpt2", 'capability_rows = 8\ncorpus = "long.txt"', "exceed the model's 128 positions"),
    ],
)
def test_what_a_model_cannot_do_is_refused_before_training(
    folder: Path, name: str, setting: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_generator(name, folder / name)
    lines = [" ".join(f"word{i * j}" for j in range(60)) for i in range(400)]
    (folder / "long.txt").write_text("\n".join(lines))
    changes = {'model = "model"': f'model = "{name}"', "epochs = 10": setting}
    with pytest.raises(ClbenchError, match=message):
        run(folder, "cannot", changes=changes)
    suite = str(folder / "cannot.toml")
    assert main(["run", suite, "--scenarios", "two", "--out", f"{folder}/no", "--dry-run"]) == 2
    assert message in capsys.readouterr().err


def test_an_option_that_does_not_fit_the_suite_says_so(folder: Path) -> None:
    with pytest.raises(ClbenchError, match=r"^\[protocol\], with the options given: answer_length"):
        run(folder, "other-head", head="classification")


def test_an_encoder_decoder_trains_in_a_sequence(folder: Path) -> None:
    save_generator("t5", folder / "t5", appends_end=True)
    changes = {'model = "model"': 'model = "t5"', "epochs = 10": "epochs = 1"}
    result = cell(run(folder, "t5-run", changes={**changes, "max_length = 24": "max_length = 80"}))
    assert len(result.R) == 2
