"""Words of a text."""
import re


def words(text):
    """The words of text, in order, in lower case."""
    return re.findall(r"[a-z']+", text.lower())


def count(text):
    """How many words text has."""
    return len(words(text))
