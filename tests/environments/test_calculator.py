"""The calculator computes and never executes. Case RW11."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.environments.calculator import CALCULATOR, CalculationError, calculate, number_to_text


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("2+2", "4"),
        ("12 + 30", "42"),
        ("2+3*4", "14"),
        ("(2+3)*4", "20"),
        ("10-4-3", "3"),
        ("-2**2", "-4"),
        ("2**3**2", "512"),
        ("2^10", "1024"),
        ("--5", "5"),
        ("48/2", "24"),
        ("7/2", "3.5"),
        ("7//2", "3"),
        ("-7//2", "-4"),
        ("7%3", "1"),
        ("0.1+0.2", "0.3"),
        ("1/3", "0.333333333333"),
        (".5*4", "2"),
        ("1,575,000*2", "3150000"),
        ("$1,200 − $200 =", "1000"),
        ("6 × 7", "42"),
        ("84÷2", "42"),
        ("998*998*998*998", "992023968016"),
        ("123456789012345678901234567890+1", "123456789012345678901234567891"),
        ("1e3*2", "2000"),
    ],
)
def test_it_computes(expression, result):
    assert number_to_text(calculate(expression)) == result


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("1/0", "division by zero"),
        ("1%0", "division by zero"),
        ("0**-1", "division by zero"),
        ("12+", "ends too early"),
        ("(1+2", r"a \) is missing"),
        ("1 2", "'2' is not expected"),
        ("1,2,3", "not one number"),
        ("two", "cannot read 'two'"),
        ("(1).__class__", "cannot read"),
        ("__import__('os').system('touch owned')", "cannot read"),
        ("9**9**9**9", "too large"),
        ("9**9**9", "too large"),
        ("10.0**308*10", "too large"),
        ("1e999", "too large"),
        ("(-8)**0.5", "root of a negative"),
        ("(" * 60 + "1" + ")" * 60, "50 deep"),
        ("-" * 900 + "1", "50 deep"),
        ("1+" * 600 + "1", "1000 characters"),
        ("٣+٤", "cannot read"),
    ],
)
def test_what_has_no_value_is_refused_with_a_reason(expression, reason):
    with pytest.raises(CalculationError, match=reason):
        calculate(expression)


def test_nothing_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in ("__import__('os').system('touch owned')", "open('owned', 'w')", "().__class__.__bases__"):
        assert asyncio.run(CALCULATOR.call({"expression": text})).is_error
    assert list(tmp_path.iterdir()) == []


@given(st.text(alphabet="0123456789.,+-*/%^()eE ", max_size=60))
def test_every_text_gives_a_bounded_number_or_a_reason(text):
    result = asyncio.run(CALCULATOR.call({"expression": text}))
    assert result.is_error == result.text.startswith("error: ")
    assert 0 < len(result.text) < 1300


SUMS = st.recursive(
    st.integers(0, 999).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map("".join).map("({})".format),
    max_leaves=8,
)


@given(SUMS)
def test_ints_are_exact(expression):
    assert calculate(expression) == eval(expression)


def test_the_tool_takes_one_text_and_tells_the_reason_of_an_error():
    assert CALCULATOR.text_argument == "expression"
    assert asyncio.run(CALCULATOR.call({"expression": "12+30"})).text == "42"
    refused = asyncio.run(CALCULATOR.call({"expression": "1/0"}))
    assert (refused.text, refused.is_error) == ("error: division by zero", True)
