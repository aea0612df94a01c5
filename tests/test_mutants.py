"""The list of mutants cannot rot: every text is still where it is said to be, and every test file exists."""

from __future__ import annotations

import pytest

import mutants

LIST = mutants.read()


@pytest.mark.parametrize("mutant", LIST, ids=lambda mutant: mutant.name)
def test_the_text_is_there_once(mutant: mutants.Mutant):
    assert mutant.written(mutants.PACKAGE) != (mutants.PACKAGE / mutant.file).read_text(encoding="utf-8")
    files = [test.split("::")[0] for test in mutant.tests]
    assert files and all((mutants.ROOT / file).is_file() for file in files)


def test_there_are_forty_with_names_of_their_own():
    assert len({mutant.name for mutant in LIST}) == len(LIST) >= 40
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in LIST}) == len(LIST)
