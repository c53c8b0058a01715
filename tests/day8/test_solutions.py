"""Every right solution of day8 passes, every wrong one gets its diagnosis, every check has a wrong
solution.
"""

from tests.solutions import *  # noqa: F403 - the tests are the same for every day
