"""Do the claims hold? As an instructor writes it for a plain pytest."""

import pytest
from claims import CLAIMS, about
from student import function


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_claim(claim):
    claim(function(about(claim)))
