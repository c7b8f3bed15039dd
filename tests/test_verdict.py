"""Yes/no verdicts in free text."""

import pytest

from analysis.hallucination.verdict import parse_verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Yes.", "yes"),
        ("no", "no"),
        (" YES", "yes"),
        ("Not sure", None),
        ("Nothing suggests so", None),
        ("I know it", None),
        ("Yesterday", None),
        ("Yes and No", None),
        ("Yes, No, Yes", None),
        ("Yes/No", None),
        ("yes or no, who can say", None),
        ("", None),
        (" \n ", None),
        ("<think>no...</think> Yes", "yes"),
        ("</think>\nNo", "no"),
        ("<think>Yes, it is", None),
        ("Yes, there is no proof of it", "yes"),
        ("No: yes would be wrong here", "no"),
        ("The answer is no", "no"),
        ("Let me see. Yes. But no", "yes"),
        ("**Yes**", "yes"),
        ('"No"', "no"),
    ],
)
def test_verdict(text, verdict):
    assert parse_verdict(text) == verdict
