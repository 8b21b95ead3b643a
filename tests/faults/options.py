"""Odd values of options and arguments, of every command."""

from __future__ import annotations

from pathlib import Path
from random import Random

from faults.cases import LONG, Case

OPTIONS = {
    "run small.toml --seeds 1": "--out --model --data --methods --scenarios --seeds --limit "
    "--subset --epochs --device --precision --corpus --plugin --workers --threads --gpus --address",
    "search small.toml --dry-run": "--scenario --trials --searcher --scheduler --workers --threads "
    "--gpus --time-limit --out --model --data --limit --epochs --groups --division --lowest "
    "--highest --grace --reduction --seed --device --precision --plugin --address",
    "report out": "--out --formats",
    "compare out out2": "--out --formats",
    "check vanilla": "--plugin --set",
    "combine out --out x.toml": "--b --flat --depth --division",
}
"""The options of each command."""
PLAIN = "-1 0 1.5 1e308 nan inf 4294967296 99999999999999999999 - -- * [ ~ ~nobody/x $HOME , a,b,,c"
PLAIN += " 0-99999999 5-1 0,0 /dev/null /proc/self/mem small.toml model mood.csv a=b=c = true None"
PLAIN += " https://example.org/x cuda:99 mps 127.0.0.1:1 ray://nowhere :0 名前 a\u202eb"
VALUES = [
    "",
    " ",
    "x" * 300,
    LONG,
    "9" * 5_000,
    "\x1b[31mred",
    "a\nb",
    "a\0b",
    "\udcff",
    "x/" * 2_000,
]
VALUES += PLAIN.split()
"""No shell can pass a NUL, but `clbench.cli.main` takes any words."""
WORDS = (
    "",
    "a\0b",
    LONG,
    "\x1b[31m",
    ".",
    "/dev/null",
    "/dev/zero",
    "nonsense",
    "small.toml",
    "model",
)
LINES = """--nonsense
run --nonsense
run small.toml extra
run small.toml --methods os:path
run small.toml --methods a:b:c
run small.toml --out out --seeds 7 --model tiny
run small.toml --out small.toml/x
run small.toml --out small.toml/x --dry-run
run small.toml --address 127.0.0.1:1 --dry-run
search small.toml --dry-run --highest 0.01 --out small.toml
search small.toml --dry-run --highest 0.01 --out small.toml/x
search small.toml --dry-run --seed 4294967296
search small.toml --dry-run --scenario x
report
report out out
compare out
check os:path
check sys:exit
combine out --out x.toml
combine none --out x.toml
combine small.toml --out x.toml"""
REFUSED = [line.split() for line in LINES.splitlines()]
REFUSED += [[verb, word] for verb in ("run", "report", "check") for word in WORDS]
REFUSED.remove(["run", "small.toml"])
"""Commands that are all to be refused."""


def option(number: int, rng: Random, folder: Path) -> Case:
    """Return a command with an odd word."""
    if number < len(REFUSED):
        return Case(_shown(REFUSED[number]), REFUSED[number], refused=True)
    line = rng.choice([line for line, names in OPTIONS.items() for _ in names.split()])
    name, value = rng.choice(OPTIONS[line].split()), rng.choice(VALUES)
    words = [*line.split(), name, value]
    dry = line.startswith("run") and name not in ("--workers", "--address", "--gpus")
    if line.startswith("run"):
        words += [] if name == "--out" else ["--out", "out"]
        words += [] if dry else ["--dry-run"]
    # What the value names is the user's choice.
    place = next((part for part in value.split("/") if part), "out")
    return Case(_shown(words), words, dry=dry, writes=("out", "x.toml", "x.png", place))


def _shown(words: list[str]) -> str:
    return " ".join(ascii(word)[1:-1][:60] or "''" for word in words)
