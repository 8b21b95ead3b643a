"""Hand-made entries of a board."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clbench.board.manifest import files_of, sha256
from clbench.results.archive import pack
from clbench.results.store import Store
from helpers.report_runs import REPORT, cell

METHODS = {"vanilla": 0.5, "ewc": 0.7, "replay": 0.9}
"""Methods, with their p_o on the first seed."""


def make_entry(
    folder: Path,
    suite: str = "mine",
    methods: dict[str, float] | None = None,
    scenarios: tuple[str, ...] = ("pair",),
    seeds: range = range(4),
    protocol: dict[str, Any] | None = None,
    files: dict[str, Any] | None = None,
    suite_fields: dict[str, Any] | None = None,
    **fields: Any,
) -> Path:
    """A run whose methods differ by far and whose seeds differ a little, with its cells packed."""
    store, protocol = Store(folder), protocol or {"model": "tiny"}
    methods = METHODS if methods is None else methods
    with store.lock():
        store.write_suite(
            {"name": suite, "methods": [*methods], "seeds": [*seeds], "protocol": protocol,
             "description": f"Suite {suite}.", "scenario": [{"name": n} for n in scenarios],
             "commands": [["clbench", "run", suite]], **(suite_fields or {})}
        )  # fmt: skip
        for scenario in scenarios:
            for number, (name, p_o) in enumerate(methods.items()):
                for seed in seeds:
                    own = p_o + 0.01 * seed + 0.002 * ((seed * 7 + number * 3) % 5)
                    recipe = {"protocol": protocol, "model": {"files": {}}, "version": 5}
                    changes = {
                        "R": [[0.9, None], [own, 0.8]], "scenario_report": REPORT,
                        "recipe": {**recipe, "method": {"name": name}, "seed": seed},
                        "fingerprint": f"{name}{seed}{folder.name}",
                        "settings": {"protocol": protocol}, "keeps_rows": name == "replay",
                        "host": {"system": "Linux", "device_name": "a processor", "device": "cpu"},
                        "versions": {"clbench": "0.1.0", "torch": "2.6"},
                    }  # fmt: skip
                    store.write_cell(cell(scenario, name, seed, own, **{**changes, **fields}))
    pack(folder)
    for name, content in (files or {}).items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def verify_entry(folder: Path, grade: str, **fields: Any) -> Path:
    """Give a folder a manifest of its files, unless it has one, and a verification of it."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text()) if path.exists() else manifest()
    path.write_text(json.dumps(content | {"files": files_of(folder)}), encoding="utf-8")
    verified = {"grade": grade, "manifest": sha256(path), **fields}
    (folder / "verified.json").write_text(json.dumps(verified), encoding="utf-8")
    return folder


def manifest(**changes: Any) -> dict[str, Any]:
    """The content of ``manifest.json``."""
    content = {
        "name": "A title", "url": "https://example.org/more", "contact": "somebody",
        "suite": "mine", "created": "2026-11-27", "clbench": "1.0.0rc1", "models": [], "tasks": {},
        "hardware": [], "versions": [], "files": {},
    }  # fmt: skip
    return content | changes
