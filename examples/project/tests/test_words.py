import pathlib
import unittest

import words

FOX = pathlib.Path(__file__).parent.parent / "samples" / "fox.txt"


class Words(unittest.TestCase):
    def test_case_does_not_matter(self):
        self.assertEqual(words.words("Dog, DOG; dog!"), ["dog"] * 3)

    def test_apostrophes_belong_to_words(self):
        self.assertEqual(words.words("don't"), ["don't"])

    def test_count_of_the_sample(self):
        self.assertEqual(words.count(FOX.read_text()), 17)


if __name__ == "__main__":
    unittest.main()
