"""Words of contents, and the terms of a query that are worth searching for.

Stems of the PostgreSQL engine are those of FTS5, so both engines find the same texts.
"""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.core.content import KINDS, Content
from treering.core.encoding import encode, encode_json
from treering.core.text import STOP_WORDS, counted, folded, query_terms, stem, text_of, words

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


def strings_in(value):
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for each in pair for text in strings_in(each)]
    if isinstance(value, list):
        return [text for each in value for text in strings_in(each)]
    return []


@given(JSON)
def test_the_text_of_json_is_all_its_strings(value):
    assert sorted(text_of(Content("json", encode_json(value))).split("\n")) == sorted(
        "\n".join(strings_in(value)).split("\n")
    )


@given(st.text(max_size=50))
def test_the_text_of_text_is_itself(text):
    assert text_of(encode(text)) == text


@given(st.sampled_from(KINDS), st.binary(max_size=30))
def test_any_content_can_be_read_for_words(kind, data):
    assert isinstance(text_of(Content(kind, data)), str)


def test_bytes_and_trees_have_no_words():
    assert text_of(Content("bytes", b"oak")) == text_of(Content("tree", b"oak")) == ""


@given(st.text(max_size=100))
def test_terms_are_unique_lower_case_words_of_the_query(text):
    terms = query_terms(text)
    assert len(terms) == len(set(terms))
    assert all(term == term.lower() for term in terms)
    assert all(term in text.lower() for term in terms)
    assert all(term.isprintable() and " " not in term and '"' not in term for term in terms)


@given(st.lists(st.sampled_from([*sorted(STOP_WORDS), "oak", "elm"]), max_size=8))
def test_common_words_are_searched_only_if_there_are_no_others(words):
    terms = query_terms(" ".join(words))
    telling = {"oak", "elm"} & set(words)
    assert set(terms) == (telling or set(words))


def test_a_query_may_be_very_long():
    assert len(query_terms(" ".join(f"word{number}" for number in range(1000)))) == 64


def test_words_of_any_script():
    assert query_terms("Über 年轮, naïve Bäume!") == ["über", "年轮", "naïve", "bäume"]
    assert query_terms("?! ...") == []


_STARTS = (
    "a be by cr die fly hop tan fail fil siz agre plast motor sing conflat troubl happ sk relat condit "
    "ration val hesit digit conform radic vil analog oper feudal decis hope call sens triplic form "
    "electr goodn reviv allow infer air gyroscop adjust defens irrit replac depend adopt homolog commun "
    "activ angular effect bowdler prob rat ceas control roll yy sayy bb oat tree q"
).split()
_ENDS = (
    "s ss es sses ies e y ed eed ing ly at bl iz ll er or al ic ous ful ness ational tional enci anci "
    "izer bli alli entli eli ousli ization ation ator alism iveness fulness ousness aliti iviti biliti "
    "logi icate ative alize iciti ical ance ence able ible ant ement ment ent ion sion tion ou ism ate "
    "iti ive ize"
).split()


@pytest.fixture(scope="module")
def fts5():
    """What FTS5's tokenizer makes of a text: its tokens, in order."""
    connection = sqlite3.connect(":memory:")
    connection.execute(
        "CREATE VIRTUAL TABLE f USING fts5(w, tokenize='porter unicode61 remove_diacritics 2')"
    )
    connection.execute("CREATE VIRTUAL TABLE v USING fts5vocab(f, 'instance')")

    def tokens(text: str) -> list[str]:
        connection.execute("DELETE FROM f")
        connection.execute("INSERT INTO f VALUES (?)", (text,))
        return [term for (term,) in connection.execute("SELECT term FROM v ORDER BY offset")]

    yield tokens
    connection.close()


def test_stems_are_those_of_fts5(fts5):
    vocabulary = [start + end for start in _STARTS for end in ("", *_ENDS)]
    vocabulary += [word + end for word in vocabulary for end in ("s", "ed", "ing", "ly")]
    assert [stem(word) for word in vocabulary] == fts5(" ".join(vocabulary))


@given(st.text("abcdeilmnoprstuyz", min_size=1, max_size=12))
def test_stems_of_anything_are_those_of_fts5(fts5, word):
    assert [stem(word)] == fts5(word)


def test_words_are_cut_as_fts5_cuts_them(fts5):
    text = "Über-Größe: naïve_café user@example.com, v1.2.3 — 'don't' e\u0301te\u0301 ΟΔΟΣ 東京 x\x00y"
    assert [stem(word) for word in words(text)] == fts5(text.replace("\x00", " "))


def test_accents_and_case_are_folded():
    assert folded("ÀÉÎ Ñandú 한국어") == "aei nandu 한국어"


def test_a_number_has_its_noun_in_the_right_number():
    assert [counted(number, "threads") for number in (0, 1, 2, 1200)] == [
        "0 threads", "1 thread", "2 threads", "1,200 threads",
    ]  # fmt: skip
    assert counted(1, "session log entries") == "1 session log entry"
    assert counted(1, "objects of files") == "1 object of files"
