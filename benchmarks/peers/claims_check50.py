"""Do the claims hold?

As an instructor writes it for check50: checks, each in a process and a folder of its own.
"""

import pathlib
import sys

import check50

# check50 puts the folder of its checks on no path.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

from claims import CLAIMS, about
from student import function


def _check(name, claim):
    def check():
        try:
            claim(function(about(claim)))
        except Exception as error:
            raise check50.Failure(f"{type(error).__name__}: {error}") from error

    check.__name__, check.__doc__ = name, name.replace("_", " ")
    return check50.check()(check)


for _name, _claim in CLAIMS.items():
    globals()[_name] = _check(_name, _claim)
