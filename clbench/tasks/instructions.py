"""IFEval's 25 kinds of verifiable instructions and the rules that check them.

Zhou et al. 2023 (https://arxiv.org/abs/2311.07911), Tables 1 and 2; loose verdicts are those of its
section 2.2. What the paper leaves open follows the authors' checker, but for the differences that
docs/decoders.md lists.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, create_model

from clbench.core import errors
from clbench.core.registry import Count
from clbench.tasks.languages import LANGUAGES, language_of

Verdicts = list[tuple[bool, bool]]
Arguments = str | Sequence[Mapping[str, Any]]
_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Lower = Annotated[_Text, StringConstraints(to_lower=True)]
_Lowers = Annotated[list[_Lower], Field(min_length=1)]
_Relation = Literal["less than", "at least"]
_COUNTS = (
    "capital_frequency frequency let_frequency num_bullets num_highlights "
    "num_paragraphs num_placeholders num_sections num_sentences num_words"
)
ARGUMENTS: dict[str, Any] = {
    **dict.fromkeys(_COUNTS.split(), Count),
    **dict.fromkeys(("capital_relation", "let_relation", "relation"), _Relation),
    **dict.fromkeys(("forbidden_words", "keywords"), _Lowers),
    **dict.fromkeys(("end_phrase", "first_word", "keyword", "postscript_marker"), _Lower),
    "language": Literal[tuple(LANGUAGES)],
    "letter": Annotated[_Lower, StringConstraints(max_length=1)],
    "nth_paragraph": Annotated[int, Field(ge=1)],
    "prompt_to_repeat": _Lower,
    "section_spliter": _Text,
}
"""Types of the arguments of all kinds, named as in the data."""

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
    arguments of other kinds. Raises a DataError that names the prompt if an id is unknown, or if
    arguments are missing, unknown or of a wrong type.
    """
    where = f"instructions of the prompt {errors.printable(prompt, 60)!r}"
    try:
        given = json.loads(kwargs) if isinstance(kwargs, str) else list(kwargs)
        pairs = list(zip(instruction_ids, [dict(each) for each in given], strict=True))
    except (TypeError, ValueError) as error:
        raise errors.DataError(
            f"{where}: kwargs must be a list with one object for each instruction "
            f"({len(instruction_ids)}), got {errors.format_value(kwargs)}."
        ) from error
    return [_bind(where, name, arguments) for name, arguments in pairs]


def _bind(where: str, name: str, arguments: dict[str, Any]) -> Callable[[str], bool]:
    if name not in INSTRUCTIONS:
        hint = errors.did_you_mean(str(name), INSTRUCTIONS)
        raise errors.DataError(f"{where}: {name!r} is not an instruction.{hint}")
    arguments = {key: value for key, value in arguments.items() if value is not None}
    model = _arguments_model(name)
    try:
        checked = model.model_validate(arguments)
    except ValidationError as error:
        text = "; ".join(errors.describe_errors(error, arguments, model=model))
        raise errors.DataError(errors.sentence(f"{where}: {name}: {text}")) from error
    return partial(INSTRUCTIONS[name], **checked.model_dump())


@cache
def _arguments_model(name: str) -> type[BaseModel]:
    names = [*inspect.signature(INSTRUCTIONS[name]).parameters][1:]
    fields: dict[str, Any] = {key: (ARGUMENTS[key], ...) for key in names}
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


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


def instruction_scores(verdicts: Verdicts) -> dict[str, float]:
    """Return the scores of one prompt, strict and loose.

    ``prompt`` is 1 if all its instructions are followed, ``instruction`` the share of those that
    are. The paper's instruction-level accuracy pools the instructions of all prompts: weight
    by their number.
    """
    scores: dict[str, float] = {}
    for kind, column in zip(("strict", "loose"), zip(*verdicts, strict=True), strict=True):
        scores[f"prompt-{kind}"] = float(all(column))
        scores[f"instruction-{kind}"] = sum(column) / len(column)
    return scores
