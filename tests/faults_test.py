#!/usr/bin/env python3
"""Checks that every test which FAULTS.md names exists, in the file that it names.

A cell names a file below tests/ in backquotes, and after it the tests of that file as Suite.Name,
or of a Python file as test_name.
What follows MISSING is owed, and must not exist yet.
"""

import pathlib
import re
import sys

TESTS = pathlib.Path(__file__).resolve().parent
FILE = re.compile(r"[\w/]+\.(?:cc|py)")
TEST = re.compile(r"(?:(\w+)\.)?(\w+)")


def defined(text, suite, name):
    if suite is None:
        return re.search(r"\bdef %s\(" % name, text) is not None
    return re.search(r"\bTEST(?:_F|_P)?\(\s*%s,\s*%s\s*\)" % (suite, name), text) is not None


def is_test(path, word):
    test = TEST.fullmatch(word)
    if test is None:
        return False
    return word.startswith("test_") if path.suffix == ".py" else test[1] is not None


def problems(ledger):
    found = []
    named = 0
    for number, line in enumerate(ledger.splitlines(), 1):
        if not line.startswith("| ") or line.count("|") < 4:
            continue
        text = None
        for cell in re.split(r"\b(?:MISSING|BUG)\b", line.split("|")[-2])[:1]:
            for word in re.findall(r"`([^`]+)`", cell):
                if FILE.fullmatch(word):
                    path = TESTS / word.removeprefix("tests/")
                    if not path.exists():
                        found.append(f"line {number}: there is no tests/{word}")
                        break
                    text = path.read_text(encoding="utf-8")
                elif text is not None and is_test(path, word):
                    named += 1
                    if not defined(text, *TEST.fullmatch(word).groups()):
                        found.append(f"line {number}: {path.name} has no test {word}")
    return found, named


def main():
    found, named = problems((TESTS / "FAULTS.md").read_text(encoding="utf-8"))
    for problem in found:
        print(problem)
    print(f"{named} tests named, {len(found)} problems")
    return 1 if found or named == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
