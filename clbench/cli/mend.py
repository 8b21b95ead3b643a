"""`clbench mend`."""

from pathlib import Path
from typing import Annotated

import typer

from clbench.cli.arguments import Data, Device, Plugins, option, words
from clbench.cli.console import out as stdout
from clbench.cli.console import show_table, working
from clbench.core.errors import RunFolderError
from clbench.core.files import check_folder
from clbench.suite.plugins import load_plugins


def mend(
    base: Annotated[
        str, typer.Argument(metavar="BASE", help="Base model: built-in, a folder, or a hub name.")
    ],
    tuned: Annotated[
        str, typer.Argument(metavar="TUNED", help="Model tuned from it, or a PEFT adapter.")
    ],
    keep: Annotated[list[str], option("A,B", "Tasks that the base model can do.")],
    learn: Annotated[str, option("TASK", "Task that the model was tuned on.")],
    out: Annotated[Path, option("DIR", "Folder of the mended model.")],
    data: Data = None,
    rows: Annotated[int, option("ROWS", "Maximum rows per task for the final scores.")] = 500,
    device: Device = "auto",
    plugin: Plugins = None,
) -> int:
    """Mix a tuned model's weights with its base model's, to get back what was forgotten.

    Tries mixtures on some rows, chooses the best by what it keeps and has learned, and scores it on
    others. Writes the model as safetensors with a card, unless no mixture beats the tuned model.
    """
    from rich.table import Table

    from clbench.audit.mend import mend as run
    from clbench.audit.page import write_mended
    from clbench.audit.weights import TUNED

    if out.exists() and (out.is_file() or any(out.iterdir())):
        raise RunFolderError(f"{out} exists and is not empty. Give a new folder with --out.")
    check_folder(out)  # before the work: it may not be writable
    load_plugins(plugin or ())
    with working("loading models") as tell:
        mended, model = run(
            base,
            tuned,
            keep=words("--keep", keep) or (),
            learn=learn,
            data=data,
            rows=rows,
            device=device,
            tell=tell,
        )
        write_mended(mended, model, out)
    front = out / "front.png"
    if mended.chosen == TUNED:
        stdout().print(
            f"None of the {len(mended.points) - 1} mixtures has a better mean of accuracy kept and "
            f"accuracy learned than the tuned model, so no model is written. Plot: {front}",
            soft_wrap=True,
        )
        return 0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("task", "tuned", "mended", "difference", ""):
        table.add_column(name, justify="left" if name in ("task", "") else "right")
    for name, change in mended.changes.items():
        scores = (f"{mended.before[name]:.3f}", f"{mended.after[name]:.3f}")
        table.add_row(name, *scores, str(change), change.verdict)
    show_table(stdout(), table)
    if not any(change.verdict == "better" for change in mended.changes.values()):
        stdout().print("On these rows no task is shown to be better.", soft_wrap=True)
    stdout().print(
        f"Chosen: {mended.chosen}. The accuracies are on rows not used to choose it.\n"
        f"Model: {out}, plot: {front}",
        soft_wrap=True,
    )
    return 0
