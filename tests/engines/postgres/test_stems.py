"""Stems of the PostgreSQL engine are those of FTS5, so both engines find the same texts."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.core.text import folded, stem, words

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
