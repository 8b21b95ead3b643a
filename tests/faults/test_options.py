"""Any word in the place of an option's value or an argument, of every verb."""

import io
import re
from contextlib import redirect_stdout
from functools import cache

from hypothesis import strategies as st

from clbench.cli import main
from faults.spoil import LONG, any_input, one_of, texts
from faults.verdict import Judge

VERBS = {
    "run": "small.toml --seeds 1 --out out",
    "search": "small.toml --dry-run",
    "tune": "small.toml --dry-run",
    "report": "out",
    "compare": "out out2",
    "power": "out",
    "list": "methods",
    "check": "nothing",
    "combine": "out --out x.toml",
    "audit": "nothing nothing",
    "mend": "nothing nothing",
    "board": "out --out site",
    "export": "nothing --to github",
}
"""What is valid for each verb, or refused before anything is computed."""
PLAIN = """-1 0 1.5 1e308 nan inf 4294967296 99999999999999999999 - -- * [ ~ ~nobody/x , a,b,,c
0-99999999 5-1 0,0 /dev/null /dev/zero /proc/self/mem small.toml model mood.csv a=b=c = true :0
os:path sys:exit a:b:c small.toml/x
https://example.org/x cuda:99 mps 127.0.0.1:1 ray://nowhere 名前 a\u202eb"""
WORDS = (
    "", " ", "x" * 300, LONG, "9" * 5_000, "\x1b[31mred", "a\nb", "a\0b", "\udcff", "x/" * 2_000,
    *PLAIN.split(),
)  # fmt: skip
"""No shell can pass a NUL, but `clbench.cli.main` takes any words."""


@cache
def options(verb: str) -> list[str]:
    """Return the options of a verb, as its help lists them."""
    with redirect_stdout(io.StringIO()) as text:
        main([verb, "--help"])
    return re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", text.getvalue(), re.MULTILINE)


@any_input
def test_any_option(judge: Judge, data: st.DataObject) -> None:
    verb = one_of(data.draw, *(verb for verb in VERBS for _ in options(verb)))
    name, value = one_of(data.draw, "", *options(verb)), data.draw(st.sampled_from(WORDS) | texts)
    words = [verb, *VERBS[verb].split(), name, value] if name else [verb, value]
    # Ray would start for a run, whose --dry-run looks at no cluster.
    dry = verb == "run" and name not in ("", "--workers", "--address", "--gpus", "--dry-run")
    if verb == "run" and not dry:
        words.append("--dry-run")
    # What the value names is the user's choice.
    place = next((part for part in value.split("/") if part), "out")
    what = " ".join(ascii(word)[1:-1][:60] or "''" for word in words)
    judge.fresh(finished=True)
    judge.answer(what, words, dry=dry, writes=("out", "site", "x.toml", "x.png", place))
