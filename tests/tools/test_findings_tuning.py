"""The page of findings says how its methods were tuned, and what they cost."""

from __future__ import annotations

import json
import math
from statistics import median

import pytest

from clbench.results.store import Store
from clbench.suite.baselines import read_baseline
from tools import findings
from tools.findings import REFERENCE, STUDIES


def text() -> str:
    """Return the first page without line breaks."""
    return " ".join(findings.PAGES[0].read_text(encoding="utf-8").split())


def test_the_page_says_where_the_tuned_pulls_lie() -> None:
    shares = {}
    for some in STUDIES:
        methods = json.loads((some.tuning / "tune.json").read_text(encoding="utf-8"))["methods"]
        for method, key in (("ewc-mlm", "importance"), ("ewc", "importance"), ("recadam", "gamma")):
            if method in methods:
                ends = methods[method]["sweep"][key]
                tuned = read_baseline(str(some.tuning / f"{method}.toml")).settings[key]
                width = math.log(ends["high"] / ends["low"])
                shares[some.name, method] = math.log(tuned / ends["low"]) / width
    middle = shares.pop(("minilm", "recadam"))
    assert len(shares) == 4
    assert max(shares.values()) < 0.1
    assert 0.4 < middle < 0.6
    assert "RecAdam's γ lie in the lowest tenth of their sweeps" in text()
    assert "With MiniLM, γ lies in the middle of its sweep" in text()


def test_the_tuned_rates_are_as_the_page_says() -> None:
    names = ("vanilla", "recadam", "low-rate-recadam", "bertcl-combined", "low-rate")
    minilm, tiny = (
        {
            name: read_baseline(str(some.tuning / f"{name}.toml")).settings["lr_multiple"]
            for name in names
        }
        for some in STUDIES
    )
    for rates in (minilm, tiny):
        assert rates["vanilla"] == 1.0
        assert rates["recadam"] == rates["low-rate-recadam"] == 0.5
    assert (minilm["bertcl-combined"], tiny["bertcl-combined"]) == (5, 10)
    assert tiny["low-rate"] > 1.0
    assert f"to {minilm['low-rate']:.2f} of that rate".replace("0.", ".") in text()


@pytest.mark.parametrize(("name", "count"), [("minilm", 2), ("tiny", 1)])
def test_methods_were_tuned_on_other_seeds(name: str, count: int) -> None:
    some = next(some for some in STUDIES if some.name == name)
    seeds = {cell.seed for cell in Store(some.tuning).read().cells}
    assert len(seeds) == count
    assert not seeds & {cell.seed for cell in some.read()[0]}


def test_the_page_says_what_methods_cost() -> None:
    minilm, tiny = (ratios(folder) for folder in ("findings-minilm-costs", "findings-costs"))
    times = {
        (cells, method): f"{median(some):.2f} [{min(some):.2f}, {max(some):.2f}]"
        for cells, numbers in (("minilm", minilm), ("tiny", tiny))
        for (method, field), some in numbers.items()
        if field == "train_seconds"
    }
    assert (
        f"RecAdam takes {times['minilm', 'recadam']} times the time with MiniLM and "
        f"{times['tiny', 'recadam']} with the built-in model, which is within the noise; replay "
        f"takes {times['minilm', 'replay']} and {times['tiny', 'replay']}."
    ) in text()
    memory = [
        f"{median(numbers[method, 'training_memory_mb']):.2f}"
        for method in ("recadam", "replay")
        for numbers in (minilm, tiny)
    ]
    shown = "In memory RecAdam takes {} and {} times, replay {} and {}.".format(*memory)
    assert shown in text()
    for numbers in (minilm, tiny):
        low, high = (f(numbers["recadam", "train_seconds"]) for f in (min, max))
        assert low < 1.0 < high
        assert median(numbers["low-rate-recadam", "train_seconds"]) < 1.0


def ratios(folder: str) -> dict[tuple[str, str], list[float]]:
    """Return time and memory of each method as multiples of vanilla's, for each seed."""
    cells = Store(REFERENCE / folder).read().cells
    by_name = {(c.baseline, c.seed): c for c in cells}
    assert len({c.seed for c in cells}) == 3
    return {
        (method, field): [
            getattr(c, field) / getattr(by_name["vanilla", c.seed], field)
            for c in cells
            if c.baseline == method
        ]
        for method in {c.baseline for c in cells}
        for field in ("train_seconds", "training_memory_mb")
    }
