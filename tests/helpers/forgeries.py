"""Forgeries of a submission: what is changed after the run, and the check that finds it first.

A forger who changes one file and a forger who makes everything else follow are both tried.
"""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from collections.abc import Callable
from typing import Any

from clbench.board.manifest import files_of
from clbench.results.archive import compress, extract
from helpers.changed_records import (
    CELL,
    CELLS,
    MANIFESTS,
    PLAIN,
    SUITES,
    ZEROS,
    other_rows,
    other_weights,
)
from helpers.submissions import Forger, rename

Forgery = Callable[[Forger], None]
FORGERIES: dict[str, tuple[str, Forgery]] = {}
"""The check that finds it, and what a forger does, by its name."""


def sealed(verb: str, *what: Any) -> Forgery:
    """Return a forgery that calls a verb of the forger, and makes everything else follow."""

    def forge(forger: Forger) -> None:
        getattr(forger, verb)(*what)
        forger.seal()

    return forge


FORGERIES |= {n: (check, sealed("cells", do, at)) for n, (check, at, do) in CELLS.items()}
FORGERIES |= {n: (check, sealed("suite", do)) for n, (check, do) in SUITES.items()}
FORGERIES |= {name: ("manifest", sealed("manifest", do)) for name, do in MANIFESTS.items()}


def forgery(found_by: str) -> Callable[[Forgery], Forgery]:
    """Name the check that finds a forgery first."""

    def add(function: Forgery) -> Forgery:
        FORGERIES[function.__name__.replace("_", " ")] = found_by, function
        return function

    return add


@forgery("files")
def one_flipped_bit(forger: Forger) -> None:
    path = forger.folder / "cells.tar.xz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@forgery("files")
def one_changed_digit_in_the_table(forger: Forger) -> None:
    path = forger.folder / "scores.csv"
    path.write_text(path.read_text("utf-8").replace("0.7", "0.8", 1), "utf-8")


@forgery("files")
def a_file_more(forger: Forger) -> None:
    (forger.folder / "notes.py").write_text("print('hello')\n")


@forgery("files")
def a_signed_file_without_a_place(forger: Forger) -> None:
    (forger.folder / "notes.py").write_text("print('hello')\n")
    resign(forger)


@forgery("files")
def a_signed_file_among_replaced_cells(forger: Forger) -> None:
    path = forger.folder / "cells" / "replaced" / "best.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}\n")
    resign(forger)


@forgery("files")
def a_member_that_tar_would_write_elsewhere(forger: Forger) -> None:
    path = forger.folder / "cells.tar.xz"
    with tarfile.open(path, "r:xz") as archive:
        cells = [(m, archive.extractfile(m).read()) for m in archive]  # type: ignore[union-attr]
    with tarfile.open(path, "w:xz") as archive:
        for member, content in [*cells, (tarfile.TarInfo("../out"), b"")]:
            archive.addfile(member, io.BytesIO(content))
    resign(forger)


@forgery("files")
def a_member_behind_the_end_of_the_archive(forger: Forger) -> None:
    path = forger.folder / "cells.tar.xz"
    hidden = tarfile.TarInfo("evil.sh").tobuf() + bytes(1024)
    path.write_bytes(path.read_bytes() + lzma.compress(hidden))
    resign(forger)


@forgery("one recipe")
def a_method_whose_code_is_not_there(forger: Forger) -> None:
    def change(cell: dict[str, Any]) -> None:
        cell["method"] = cell["recipe"]["method"]["name"] = "mine"

    forger.cells(change, "*wise-ft*")
    forger.suite(lambda s: s["baseline"]["wise-ft"].update(method="mine"))
    forger.seal()


@forgery("files")
def a_missing_table(forger: Forger) -> None:
    (forger.folder / "scores.csv").unlink()


@forgery("files")
def a_link_out_of_the_folder(forger: Forger) -> None:
    path = forger.folder / "scores.csv"
    path.rename(forger.folder.parent / "scores.csv")
    path.symlink_to(forger.folder.parent / "scores.csv")


@forgery("files")
def a_swapped_cell(forger: Forger) -> None:
    extract(forger.folder)
    one = forger.folder / "cells" / f"{CELL}.json"
    other = one.with_name(f"{PLAIN}.json")
    text, changed = one.read_text("utf-8"), other.read_text("utf-8")
    one.write_text(changed, "utf-8")
    other.write_text(text, "utf-8")
    compress(forger.folder)


@forgery("files")
def another_suite_in_the_manifest(forger: Forger) -> None:
    forger.manifest(lambda m: m.update(suite="findings"))


@forgery("whole matrix")
def a_cell_left_out(forger: Forger) -> None:
    drop(forger, CELL)
    forger.seal()


@forgery("whole matrix")
def a_method_with_fewer_seeds(forger: Forger) -> None:
    for seed in (1, 2, 3):
        drop(forger, f"growing-head--replay--seed{seed}")
    forger.seal()


@forgery("whole matrix")
def a_cell_more(forger: Forger) -> None:
    copy(forger, CELL, seed=7)
    forger.seal()


@forgery("no seed chosen")
def the_best_of_many_seeds(forger: Forger) -> None:
    for old, new in ((3, 17), (2, 9), (1, 5)):
        forger.cells(lambda cell, new=new: rename(cell, seed=new), f"*seed{old}")  # type: ignore[misc]
    forger.suite(lambda suite: suite.update(seeds=[0, 5, 9, 17]))
    forger.seal()


@forgery("no cell twice")
def one_training_under_two_seeds(forger: Forger) -> None:
    drop(forger, PLAIN.replace("seed0", "seed1"))
    copy(forger, PLAIN, seed=1)
    forger.seal()


@forgery("one recipe")
def shown_settings_that_were_not_used(forger: Forger) -> None:
    forger.cells(lambda c: c["settings"]["method"].update(alpha=0.1), CELL)
    forger.cells(lambda c: c["recipe"]["method"].update(settings={"alpha": 0.5}), "*wise-ft*")
    forger.suite(lambda s: s["baseline"]["wise-ft"].update(settings={"alpha": 0.5}))
    forger.seal()


@forgery("not tuned on what is reported")
def scores_on_the_rows_for_tuning(forger: Forger) -> None:
    protocol(forger, score_on="tuning")


@forgery("not tuned on what is reported")
def a_smoke_run(forger: Forger) -> None:
    protocol(forger, smoke=True)


@forgery("not tuned on what is reported")
def rows_of_the_test_in_training(forger: Forger) -> None:
    def same(cell: dict[str, Any]) -> None:
        rows = cell["recipe"]["tasks"]["synthetic/sentiment"]["rows"]
        rows["train"] = rows["validation"]

    forger.cells(same)
    forger.manifest(
        lambda m: m["tasks"]["synthetic/sentiment"]["rows"].update(
            train=m["tasks"]["synthetic/sentiment"]["rows"]["validation"]
        )
    )
    forger.seal()


@forgery("scores from R")
def a_better_score_in_the_table(forger: Forger) -> None:
    path = forger.folder / "scores.csv"
    lines = path.read_text("utf-8").splitlines()
    column = lines[0].split(",").index("p_o")
    parts = lines[1].split(",")
    parts[column] = "0.99"
    path.write_text("\n".join([lines[0], ",".join(parts), *lines[2:]]) + "\n", "utf-8")
    resign(forger)


@forgery("one recipe")
def a_precision_that_allows_more_noise(forger: Forger) -> None:
    forger.cells(lambda c: c["settings"].update(precision="bf16"), CELL)
    forger.seal()


@forgery("scores from R")
def a_score_of_its_own_in_the_table(forger: Forger) -> None:
    path = forger.folder / "scores.csv"
    first, *lines = path.read_text("utf-8").splitlines()
    rows = [f"{first},wisdom", *(f"{line},0.99" for line in lines)]
    path.write_text("\n".join(rows) + "\n", "utf-8")
    resign(forger)


@forgery("scores from R")
def scores_besides_the_matrix(forger: Forger) -> None:
    forger.cells(lambda c: c["scores"].update(told=0.999, old_gain_left=9.0), CELL)
    forger.seal()


@forgery("whole matrix")
def a_better_score_in_a_cell(forger: Forger) -> None:
    forger.cells(lambda c: c["scores"].update(p_o=0.99), CELL)
    resign(forger)


@forgery("fingerprints from recipes")
def a_recipe_with_an_old_fingerprint(forger: Forger) -> None:
    def change(cell: dict[str, Any]) -> None:
        cell["recipe"]["corpus"] = {"built-in": "0" * 32}

    forger.cells(change)
    resign(forger)


@forgery("model")
def another_checkpoint_under_the_same_name(forger: Forger) -> None:
    forger.cells(other_weights)
    forger.manifest(lambda m: m["models"][0]["files"].update({"model.safetensors": "0" * 32}))
    forger.seal()


@forgery("model")
def other_weights_in_the_manifest(forger: Forger) -> None:
    forger.manifest(lambda m: m["models"][0].update(sha256={"model.safetensors": ZEROS * 2}))


@forgery("rows")
def other_rows_under_the_same_name(forger: Forger) -> None:
    forger.cells(other_rows)
    forger.manifest(lambda m: m["tasks"]["synthetic/sentiment"]["rows"].update(train="0" * 32))
    forger.seal()


def drop(forger: Forger, key: str) -> None:
    extract(forger.folder)
    (forger.folder / "cells" / f"{key}.json").unlink()
    compress(forger.folder)


def copy(forger: Forger, key: str, *, seed: int) -> None:
    extract(forger.folder)
    path = forger.folder / "cells" / f"{key}.json"
    cell = json.loads(path.read_text("utf-8"))
    rename(cell, seed=seed)
    path.with_name(f"{cell['key']}.json").write_text(json.dumps(cell), "utf-8")
    compress(forger.folder)


def protocol(forger: Forger, **changes: Any) -> None:
    """Change the protocol of the suite and of all cells."""
    forger.suite(lambda suite: suite["protocol"].update(changes))

    def change(cell: dict[str, Any]) -> None:
        cell["recipe"]["protocol"].update(changes)
        cell["settings"]["protocol"].update(changes)

    forger.cells(change)
    forger.seal()


def resign(forger: Forger) -> None:
    """Sign the files anew, and change nothing else."""
    forger.manifest(lambda m: m.update(files=files_of(forger.folder)))
