"""IFEval's 25 kinds of verifiable instructions and the rules that check them.

Zhou et al. 2023 (https://arxiv.org/abs/2311.07911), Tables 1 and 2; loose verdicts are those of its
section 2.2. What the paper leaves open follows the authors' checker, but for the differences that
docs/decoders.md lists.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, SupportsInt

from clbench.core.errors import DataError, printable
from clbench.tasks.languages import language_of

Verdicts = list[tuple[bool, bool]]
Arguments = str | Sequence[Mapping[str, Any]]
EXACT = ("section_spliter",)
"""Arguments whose case counts."""

_HIGHLIGHTS = (r"\*([^\n*]*)\*", r"\*\*([^\n*]*)\*\*")
_OPENING, _CLOSING = "([{*\"'“‘", ")]}\"'"
_SENTENCE_END = re.compile(r"(.*)([.?!])(?:[)\]}\"';:@*({!?].*)?")
_ABBREVIATION = re.compile(
    r"(?:[^\W\d_]\.)*[^\W\d_]|bros|capt|col?|corp|dr|gen|gov|inc|jr|lt|ltd|mrs?|ms|prof|rev|sen|sgt|sr"
    r"|st|vs|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec"
)
_STARTER = re.compile(
    r"(?:A|And|As|At|But|By|For|He|Her|His|How|I|If|In|It|My|On|Our|She|So|Some|That|The|Then|There"
    r"|Therefore|These|They|This|Thus|To|We|What|When|Where|Who|Why|You|Your),?"
)
_TOKEN_BREAKS = re.compile(
    r"[\s\[\](){}<>*?!;:,@#$%&\"“”‘’«»`]+|(?=n't\b|'(?:s|m|d|ll|re|ve)\b)", re.IGNORECASE
)


def count_sentences(text: str) -> int:
    """Return the number of sentences, as the English Punkt model splits them in most texts.

    A sentence ends with ``.``, ``?`` or ``!``, not with a line. The full stop of an abbreviation,
    an initial or an ellipsis ends one only if a capitalised function word follows, that of a number
    unless a small letter does.
    """
    count, unfinished = 0, False
    for word, following in pairwise([*text.split(), ""]):
        match = _SENTENCE_END.fullmatch(word)
        ends = match is not None and _ends(match[1], match[2], following.lstrip(_OPENING))
        unfinished = not ends and (unfinished or word.strip(_CLOSING) != "")
        count += ends
    return count + unfinished


def _ends(before: str, mark: str, following: str) -> bool:
    word = before.lower().lstrip(_OPENING)
    if mark != "." or not (word.isdigit() or word[-1:] == "." or _ABBREVIATION.fullmatch(word)):
        return True
    if word.isdigit():
        return not following[:1].islower()
    return _STARTER.fullmatch(following) is not None


def _compare(number: int, relation: str, bound: int) -> bool:
    return number < bound if relation == "less than" else number >= bound


def _parts(text: str, separator: str) -> list[str]:
    """Return the stripped parts between separators; no parts if one in the middle is empty."""
    parts = [part.strip() for part in re.split(separator, text)]
    return [] if "" in parts[1:-1] else [part for part in parts if part]


def _is_json(text: str) -> bool:
    block = re.sub(r"^```(?:json|Json|JSON)?|```$", "", text.strip())
    try:
        json.loads(block)
    except (ValueError, RecursionError):
        return False
    return True


def _nth_paragraph(text: str, first_word: str, num_paragraphs: int, nth_paragraph: int) -> bool:
    paragraphs = text.split("\n\n")
    if sum(bool(p.strip()) for p in paragraphs) != num_paragraphs or nth_paragraph > num_paragraphs:
        return False
    words = paragraphs[nth_paragraph - 1].split()
    bare = words[0].lstrip("'").lstrip('"').lower() if words else ""
    return re.split(r"[.,?!'\"]", bare)[0] == first_word


INSTRUCTIONS: dict[str, Callable[..., bool]] = {
    "change_case:capital_word_frequency": lambda text, capital_frequency, capital_relation: (
        _compare(
            sum(map(str.isupper, _TOKEN_BREAKS.split(text))), capital_relation, capital_frequency
        )
    ),
    "change_case:english_capital": lambda text: text.isupper() and language_of(text) == "en",
    "change_case:english_lowercase": lambda text: text.islower() and language_of(text) == "en",
    "combination:repeat_prompt": lambda text, prompt_to_repeat: (
        text.strip().lower().startswith(prompt_to_repeat)
    ),
    "combination:two_responses": lambda text: (
        len(parts := _parts(text, r"\*{6}")) == 2 and parts[0] != parts[1]
    ),
    "detectable_content:number_placeholders": lambda text, num_placeholders: (
        len(re.findall(r"\[.*?\]", text)) >= num_placeholders
    ),
    "detectable_content:postscript": lambda text, postscript_marker: bool(
        re.search(re.escape(postscript_marker).replace(r"\.", r"\.\s?"), text.lower())
    ),
    "detectable_format:constrained_response": lambda text: bool(
        re.search(r"My answer is (?:yes|no|maybe)\.", text)
    ),
    "detectable_format:json_format": _is_json,
    "detectable_format:multiple_sections": lambda text, section_spliter, num_sections: (
        len(re.findall(re.escape(section_spliter) + r"\s?\d+", text)) >= num_sections
    ),
    "detectable_format:number_bullet_lists": lambda text, num_bullets: (
        len(re.findall(r"^\s*(?:-|\*[^*])", text, re.MULTILINE)) == num_bullets
    ),
    "detectable_format:number_highlighted_sections": lambda text, num_highlights: (
        sum(bool(h.strip()) for p in _HIGHLIGHTS for h in re.findall(p, text)) >= num_highlights
    ),
    "detectable_format:title": lambda text: any(
        title.strip("<> \t") for title in re.findall(r"<<.+>>", text)
    ),
    "keywords:existence": lambda text, keywords: all(k in text.lower() for k in keywords),
    "keywords:forbidden_words": lambda text, forbidden_words: (
        not any(re.search(rf"\b{re.escape(word)}\b", text.lower()) for word in forbidden_words)
    ),
    "keywords:frequency": lambda text, keyword, frequency, relation: _compare(
        text.lower().count(keyword), relation, frequency
    ),
    "keywords:letter_frequency": lambda text, letter, let_frequency, let_relation: _compare(
        text.lower().count(letter), let_relation, let_frequency
    ),
    "language:response_language": lambda text, language: language_of(text) == language,
    "length_constraints:nth_paragraph_first_word": _nth_paragraph,
    "length_constraints:number_paragraphs": lambda text, num_paragraphs: (
        len(_parts(text, r"\*{3}")) == num_paragraphs
    ),
    "length_constraints:number_sentences": lambda text, num_sentences, relation: _compare(
        count_sentences(text), relation, num_sentences
    ),
    "length_constraints:number_words": lambda text, num_words, relation: _compare(
        len(re.findall(r"\w+", text)), relation, num_words
    ),
    "punctuation:no_comma": lambda text: "," not in text,
    "startend:end_checker": lambda text, end_phrase: (
        text.strip().strip('"').lower().endswith(end_phrase)
    ),
    "startend:quotation": lambda text: re.fullmatch(r'".*"', text.strip(), re.DOTALL) is not None,
}
"""Rules by kind: whether a text that is not empty follows the instruction with its arguments."""


def read_instructions(
    instruction_ids: Sequence[str], kwargs: Arguments, prompt: str
) -> list[Callable[[str], bool]]:
    """Return the rule of each instruction, with its arguments filled in.

    `kwargs` has one mapping for each id, or is the JSON text of that list; values of None are
    arguments of other kinds. Raises a DataError that names the prompt if an id is unknown, or
    arguments are missing or unknown.
    """
    try:
        given = json.loads(kwargs) if isinstance(kwargs, str) else kwargs
        return [
            _bind(INSTRUCTIONS[name], {k: v for k, v in own.items() if v is not None})
            for name, own in zip(instruction_ids, given, strict=True)
        ]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"instructions of the prompt {printable(prompt, 60)!r} cannot be read "
            f"({type(error).__name__}: {error}). Use an unchanged copy of IFEval's rows."
        ) from error


def _bind(rule: Callable[..., bool], arguments: Mapping[str, Any]) -> Callable[[str], bool]:
    values = {key: _plain(value, lower=key not in EXACT) for key, value in arguments.items()}
    inspect.signature(rule).bind("", **values)
    return partial(rule, **values)


def _plain(value: Any, *, lower: bool) -> Any:
    """Return an argument as rules read it: texts without blanks around them, whole numbers."""
    if isinstance(value, str):
        return value.strip().lower() if lower else value.strip()
    return int(value) if isinstance(value, SupportsInt) else [_plain(v, lower=lower) for v in value]


def follows(
    instruction_ids: Sequence[str], kwargs: Arguments, prompt: str, response: str
) -> Verdicts:
    """Return whether a response follows each instruction of its prompt, strictly and loosely.

    Loosely, one of eight texts must follow it: the response with or without its first line, its
    last line and its asterisks. An empty text follows none. Arguments and errors are those of
    `read_instructions`.
    """
    lines = response.split("\n")
    texts = [response]  # the only one that keeps blanks around it
    texts += ["\n".join(lines[a : len(lines) - b]).strip() for a, b in ((1, 0), (0, 1), (1, 1))]
    texts += [text.replace("*", "") for text in texts]
    rules = read_instructions(instruction_ids, kwargs, prompt)
    verdicts = [[bool(t.strip()) and rule(t) for t in texts] for rule in rules]
    return [(each[0], any(each)) for each in verdicts]
