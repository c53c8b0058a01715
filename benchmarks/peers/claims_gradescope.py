"""Do the claims hold?

As an instructor writes it for Gradescope: weighted unit tests, and its runner.
"""

import sys
import unittest

from claims import CLAIMS, about
from gradescope_utils.autograder_utils.decorators import weight
from gradescope_utils.autograder_utils.json_test_runner import JSONTestRunner
from student import function


class TestClaims(unittest.TestCase):
    """One method for each claim, as if it were written out."""


def _test(name, claim):
    @weight(1)
    def test(self):
        claim(function(about(claim)))

    test.__name__ = f"test_{name}"
    test.__doc__ = name
    return test


for _name, _claim in CLAIMS.items():
    setattr(TestClaims, f"test_{_name}", _test(_name, _claim))


if __name__ == "__main__":
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(TestClaims)
    with open(sys.argv[1], "w") as results:
        JSONTestRunner(visibility="visible", stream=results).run(suite)
