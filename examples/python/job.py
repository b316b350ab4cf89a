"""What the scripted model is asked for, and what it writes: the same in every format."""

TASK = "words.py needs a function top(text, n): the n most common words with their counts. Test it."

WORDS_PY = '''"""Words of a text."""
import collections
import re


def words(text):
    """The words of text, in order, in lower case."""
    return re.findall(r"[a-z']+", text.lower())


def count(text):
    """How many words text has."""
    return len(words(text))


def top(text, n):
    """The n most common words of text with their counts."""
    return collections.Counter(words(text)).most_common(n)
'''

TEST_TOP_PY = '''import unittest

import words


class Top(unittest.TestCase):
    def test_most_common_first(self):
        self.assertEqual(words.top("a b a c A b", 2), [("a", 3), ("b", 2)])
'''

# Meant well, and a disaster: what no edit tool sees, and no tool that watches edits can undo.
CLEAN_UP = "rm -rf samples && sed -i 's/text.lower()/text/' words.py"

RUN_TESTS = "python3 -B -m unittest discover -s tests"
