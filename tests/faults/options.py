"""Odd values of options and arguments, of every command."""

from __future__ import annotations

from pathlib import Path
from random import Random

from faults.cases import LONG, Case

OPTIONS = {
    "run": ["--out", "--model", "--data", "--methods", "--scenarios", "--seeds", "--limit", "--epochs",
            "--device", "--precision", "--corpus", "--plugin", "--workers", "--threads", "--gpus",
            "--address"],
    "search": ["--scenario", "--trials", "--searcher", "--scheduler", "--workers", "--threads",
               "--gpus", "--time-limit", "--out", "--model", "--data", "--limit", "--epochs",
               "--groups", "--division", "--lowest", "--highest", "--grace", "--reduction",
               "--seed", "--device", "--precision", "--plugin", "--address"],
    "report": ["--out", "--formats"],
    "compare": ["--out", "--formats"],
    "check": ["--plugin", "--set"],
    "combine": ["--out", "--b", "--flat", "--depth", "--division"],
    "list": [],
}  # fmt: skip
VALUES = (
    "", " ", "x" * 300, LONG, "-1", "0", "1.5", "1e308", "nan", "inf", "9" * 5_000, "4294967296",
    "99999999999999999999", "\x1b[31mred", "a\nb", "\u202eabc", "名前", "../../../../../../etc", "/dev/null",
    "/proc/self/mem", "a,b,,c", ",", "0-99999999", "5-1", "0,0", "-", "--", "*", "[", "~", "~nobody/x",
    "$HOME", "\udcff", "small.toml", "model", "mood.csv", "a=b=c", "=", "1" + "0" * 300, "true", "None",
    "x/" * 2_000, "https://example.org/x", "cuda:99", "mps", "127.0.0.1:1", "ray://nowhere", ":0",
)  # fmt: skip
NUL = "a\0b"
"""No shell can pass it, but `clbench.cli.main` takes any words."""
LINES = (
    ["run"], [], ["nonsense"], ["--nonsense"], ["run", "--nonsense"], ["run", "small.toml", "extra"],
    ["run", ""], ["run", NUL], ["run", LONG], ["run", "."], ["run", "/dev/null"], ["run", "\x1b[31m"],
    ["report"], ["report", ""], ["report", NUL], ["report", "model"], ["report", "out", "out"],
    ["report", "small.toml"], ["report", LONG], ["compare", "out"], ["compare", "out", "out"],
    ["compare", "out", "none\x1b"], ["list", "nonsense"], ["list", "\x1b[31m"], ["list", LONG], ["list", ""],
    ["check", "nonsense"], ["check", ""], ["check", NUL], ["check", "a:b"], ["check", "os:path"],
    ["check", "sys:exit"], ["combine", "none", "--out", "x.toml"], ["combine", "out", "--out", "x.toml"],
    ["combine", "small.toml", "--out", "x.toml"], ["combine", "model", "--out", NUL],
    ["search", "nonsense", "--dry-run"], ["search", "small.toml", "--dry-run", "--scenario", "x"],
    ["run", "small.toml", "--methods", "os:path"], ["run", "small.toml", "--methods", "clbench:Method"],
    ["run", "small.toml", "--methods", "a:b:c"], ["run", "small.toml", "--plugin", "/dev/zero"],
    ["run", "small.toml", "--out", "out", "--seeds", "7", "--model", "tiny"],
    ["run", "small.toml", "--out", "small.toml/x"], ["run", "small.toml", "--out", "model"],
    ["search", "small.toml", "--dry-run", "--seed", "4294967296"],
)  # fmt: skip
ACCEPTED = (["run"], [])
"""Lines that are fine, or print help."""


def option(number: int, rng: Random, folder: Path) -> Case:
    """Return a command with an odd word."""
    if number < len(LINES):
        words = list(LINES[number])
        writes = ("out", "results", "model/report", "report")
        if words == ["run"]:
            words = ["run", "--dry-run"]
        refused = words not in ([*line] for line in ACCEPTED) and words != ["run", "--dry-run"]
        refused = refused and words not in (["compare", "out", "out"],)
        return Case(_shown(words), words, refused=refused, writes=writes)
    verb = rng.choice([verb for verb, names in OPTIONS.items() for _ in names])
    words = [verb, *ARGUMENTS[verb]]
    name, value = rng.choice(OPTIONS[verb]), rng.choice([*VALUES, NUL])
    if name == "--out" and value.startswith(".."):
        value = "x"  # what is above is not ours to write into
    if verb == "combine" and name == "--out":
        words = words[:-2]
    words += [name, value]
    dry = verb == "run" and name not in ("--workers", "--address", "--gpus")
    if verb == "run" and not dry:
        words.append("--dry-run")
    if verb == "run" and name != "--out":
        words += ["--out", "out"]
    # Folders that the value names are the user's choice.
    places = ("out", "results", "mine.toml", "mine.png", _place(value))
    return Case(_shown(words), words, dry=dry, writes=places)


ARGUMENTS = {
    "run": ["small.toml", "--seeds", "1"],
    "search": ["small.toml", "--dry-run"],
    "report": ["out"],
    "compare": ["out", "out2"],
    "check": ["vanilla"],
    "combine": ["a.log", "--out", "mine.toml"],
    "list": [],
}


def _place(value: str) -> str:
    """The first folder of a path below the working directory."""
    return next((part for part in value.split("/") if part), "out")


def _shown(words: list[str]) -> str:
    return " ".join(ascii(word)[1:-1][:60] or "''" for word in words)
