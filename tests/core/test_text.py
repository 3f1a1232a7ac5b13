"""Words of contents, and the terms of a query that are worth searching for."""

from hypothesis import given
from hypothesis import strategies as st

from treering.core.content import KINDS, Content
from treering.core.encoding import encode, encode_json
from treering.core.text import STOP_WORDS, query_terms, text_of

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
