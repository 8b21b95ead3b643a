"""IFEval's rules: answers worked out by hand for every kind, and the real rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from clbench.core.errors import DataError
from clbench.tasks.instructions import (
    INSTRUCTIONS,
    count_sentences,
    follows,
    read_instructions,
)

BOTH, LOOSELY, NEITHER = (True, True), (False, True), (False, False)
FRENCH = "Le chat est sur la table et il ne veut pas descendre."
CASES: list[tuple[str, dict[str, Any], dict[str, tuple[bool, bool]]]] = [
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 3, "capital_relation": "less than"},
        {
            "I saw NASA land.": BOTH,
            "THE END OF IT": NEITHER,
            "ALL DONE, SEE:\nI saw it.": LOOSELY,
        },
    ),
    (
        "change_case:english_capital",
        {},
        {
            "THE DOG IS IN THE HOUSE.": BOTH,
            "THE DOG is in the house.": NEITHER,
            FRENCH.upper(): NEITHER,
            "Sure!\nTHE DOG IS IN THE HOUSE.": LOOSELY,
        },
    ),
    (
        "change_case:english_lowercase",
        {},
        {
            "the dog is in the house.": BOTH,
            "The dog is in the house.": NEITHER,
            FRENCH.lower(): NEITHER,
            "the dog is in the house.\nEnjoy!": LOOSELY,
        },
    ),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Name a sea. "},
        {
            " name a sea. The Baltic.": BOTH,
            "A sea: the Baltic.": NEITHER,
            "**Name** a sea.\nThe Baltic.": LOOSELY,
        },
    ),
    (
        "combination:two_responses",
        {},
        {
            "Yes.\n******\nNo.": BOTH,
            "Yes.******Yes.": NEITHER,
            "Yes.******": NEITHER,
            "One.******Two.******Three.": NEITHER,
            "Yes.\n******\n******\nNo.": NEITHER,
            "Yes.******No.\n******And that is all.": LOOSELY,
        },
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        {"[name], [street]": BOTH, "[name] [street": NEITHER, "[name], [stre\net]": NEITHER},
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.P.S"},
        {"Bye.\n\np. p. s. Write!": BOTH, "Bye. P.S. Write!": NEITHER, "*P.*P.S. Write!": LOOSELY},
    ),
    (
        "detectable_format:constrained_response",
        {},
        {
            "My answer is maybe.": BOTH,
            "My answer is perhaps.": NEITHER,
            "My answer is **no**.": LOOSELY,
        },
    ),
    (
        "detectable_format:json_format",
        {},
        {
            '```json\n{"sea": ["Baltic"]}\n```': BOTH,
            "[1, 2]": BOTH,
            "{sea: Baltic}": NEITHER,
            'Here it is:\n{"sea": "Baltic"}': LOOSELY,
        },
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        {
            "SECTION 1\nA sea.\nSECTION2\nA lake.": BOTH,
            "Section 1\nA sea.\nSection 2\nA lake.": NEITHER,
            "SECTION 1\nA sea.\nSECTION *2*\nA lake.": LOOSELY,
        },
    ),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        {
            "Seas:\n* Baltic\n  - Adriatic": BOTH,
            "* Baltic\n** Adriatic **": NEITHER,
            "- Baltic\n- Adriatic\n- Aegean\n- Black\n- Red": NEITHER,
            "- Baltic\n- Adriatic\n- and so on": LOOSELY,
        },
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        {"*Baltic* and **Adriatic**": BOTH, "*Baltic* and ** **": NEITHER, "*Bal\ntic* *": NEITHER},
    ),
    (
        "detectable_format:title",
        {},
        {"<<The sea>>\nIt is blue.": BOTH, "<< >> It is blue.": NEITHER, "<<The\nsea>>": NEITHER},
    ),
    (
        "keywords:existence",
        {"keywords": ["Sea", "lake"]},
        {"Seas and LAKES": BOTH, "Seas only": NEITHER, "s*ea, lake": LOOSELY},
    ),
    (
        "keywords:forbidden_words",
        {"forbidden_words": ["sea", "C."]},
        {"Seas and lakes": BOTH, "The SEA is blue.": NEITHER, "The sea?\nIt is blue.": LOOSELY},
    ),
    (
        "keywords:frequency",
        {"keyword": "sea", "frequency": 2, "relation": "at least"},
        {"Sea and seaside": BOTH, "Sea and lake": NEITHER, "Sea and s**ea": LOOSELY},
    ),
    (
        "keywords:letter_frequency",
        {"letter": "#", "let_frequency": 2, "let_relation": "at least"},
        {"#sea #lake": BOTH, "#sea lake s S": NEITHER},
    ),
    (
        "language:response_language",
        {"language": "fr"},
        {
            FRENCH: BOTH,
            "The cat is on the table and it does not want to leave.": NEITHER,
            "123 ...": NEITHER,
            f"Here is the sentence that you asked for, and it is in French:\n{FRENCH}": LOOSELY,
        },
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"first_word": "Lake", "num_paragraphs": 2, "nth_paragraph": 2},
        {
            "A sea.\n\n'lake's end.": BOTH,
            "A sea.\n\nLakes end.": NEITHER,
            "Lake.\n\nA sea.": NEITHER,
            "A sea.\n\nLake.\n\nA pond.": LOOSELY,
        },
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        {
            "A sea.\n***\nA lake.\n***": BOTH,
            "A sea.\n\nA lake.": NEITHER,
            "A sea.\n***\n***\nA lake.\nA pond.": NEITHER,
            "A sea.\n***\nA lake.\n*** A pond.": LOOSELY,
        },
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "less than"},
        {
            "Dr. Lee swam. He won!": BOTH,
            "Swim. Run. Rest.": NEITHER,
            "Sure. Here:\nSwim. Run.": LOOSELY,
        },
    ),
    (
        "length_constraints:number_words",
        {"num_words": 4, "relation": "at least"},
        {"It's a sea.": BOTH, "The blue sea.": NEITHER, "The blu*e sea.": BOTH},
    ),
    ("punctuation:no_comma", {}, {"No; none.": BOTH, "Well, no.": NEITHER, "Well,\nno.": LOOSELY}),
    (
        "startend:end_checker",
        {"end_phrase": "Any questions? "},
        {
            'A sea. "Any QUESTIONS?" ': BOTH,
            "Any questions? No.": NEITHER,
            "Any questions?\nBye.": LOOSELY,
        },
    ),
    (
        "startend:quotation",
        {},
        {'"A sea.\nA lake."\n': BOTH, '"A sea.': NEITHER, '"': NEITHER, '*"A sea."*': LOOSELY},
    ),
]


def test_every_kind_has_cases() -> None:
    assert [kind for kind, _, _ in CASES] == sorted(INSTRUCTIONS)
    assert len(INSTRUCTIONS) == 25


@pytest.mark.parametrize(("kind", "arguments", "responses"), CASES, ids=[c[0] for c in CASES])
def test_rules_give_the_answers_worked_out_by_hand(
    kind: str, arguments: dict[str, Any], responses: dict[str, tuple[bool, bool]]
) -> None:
    verdicts = {r: follows([kind], [arguments], "", r)[0] for r in responses}
    assert verdicts == responses
    assert {BOTH, NEITHER} <= set(responses.values())
    assert follows([kind], [arguments], "", " \n ") == [NEITHER]


def test_the_eight_loose_texts_leave_out_first_line_last_line_and_asterisks() -> None:
    seen: list[str] = []
    INSTRUCTIONS["spy"] = lambda text: bool(seen.append(text))
    try:
        assert follows(["spy"], [{}], "", "*a* \nb\n c*d\ne*") == [NEITHER]
    finally:
        del INSTRUCTIONS["spy"]
    plain = ["*a* \nb\n c*d\ne*", "b\n c*d\ne*", "*a* \nb\n c*d", "b\n c*d"]
    assert sorted(seen) == sorted([*plain, "a \nb\n cd\ne", "b\n cd\ne", "a \nb\n cd", "b\n cd"])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 0),
        ("no full stop", 1),
        ("A poem\nin two lines", 1),
        ("One. two? Three!", 3),
        ('"Stop!" he said. (He meant it.) Then he left', 4),  # "!" always ends one
        ("Mr. Smith met J. K. Lee, e.g. in the U.S. in Dec. 2020.", 1),
        ("He moved to the U.S. The end.", 2),
        ("Well... maybe. So... Then no.", 3),
        ("It costs 3.50 in 2020. And more in 2021.", 2),
        ("Wait!!! What?! Go.", 3),
    ],
)
def test_sentences(text: str, number: int) -> None:
    assert count_sentences(text) == number


def test_sentences_of_degenerate_texts_are_counted_in_linear_time() -> None:
    # In quadratic time, each would take minutes.
    assert count_sentences("a" * 200_000) == 1
    assert count_sentences("!" * 200_000) == 1
    assert count_sentences(". " * 100_000) == 100_000


def test_arguments_are_read_as_the_hub_has_them() -> None:
    # The hub's rows have every argument, most of them null.
    every = dict.fromkeys(argument for _, arguments, _ in CASES for argument in arguments)
    kwargs = [every | {"num_words": 3.0, "relation": "less than"}, every]
    ids = ["length_constraints:number_words", "punctuation:no_comma"]
    assert follows(ids, kwargs, "", "two words") == [BOTH, BOTH]
    assert follows(ids, json.dumps(kwargs), "", "three words, now") == [NEITHER, NEITHER]


@pytest.mark.parametrize(
    ("kind", "kwargs", "message"),
    [
        ("keywords:existance", "[{}]", "(KeyError: 'keywords:existance')"),
        ("keywords:existence", "[{", "(JSONDecodeError: Expecting property name"),
        ("keywords:existence", "[]", "is shorter than"),
        ("keywords:existence", [3], "'int' object has no attribute 'items'"),
        ("keywords:existence", 3, "(TypeError: "),
        ("keywords:existence", [{}], "missing a required argument: 'keywords'"),
        ("punctuation:no_comma", [{"n": 1}], "got an unexpected keyword argument 'n'"),
    ],
)
def test_malformed_instructions_are_refused_in_one_line(
    kind: str, kwargs: Any, message: str
) -> None:
    with pytest.raises(DataError) as caught:
        read_instructions([kind], kwargs, "Name\na sea.")
    text = str(caught.value)
    assert text.startswith("instructions of the prompt 'Name a sea.' cannot be read (")
    assert text.endswith("). Use an unchanged copy of IFEval's rows.")
    assert message in text
    assert "\n" not in text


@pytest.mark.real
def test_every_instruction_of_the_real_rows_is_understood(real_data: Path) -> None:
    files = sorted((real_data / "IFEval").glob("*.parquet"))
    if not files:
        pytest.skip(f"no rows of google/IFEval in {real_data}")
    frame = pd.read_parquet(files[0])
    kinds = set()
    for row in frame.itertuples():
        assert len(read_instructions(row.instruction_id_list, row.kwargs, row.prompt)) > 0
        kinds |= set(row.instruction_id_list)
    assert len(frame) == 541
    assert kinds == set(INSTRUCTIONS)
