"""Every right solution of day8 passes, every wrong one gets its diagnosis, every check has a wrong
solution.
"""

from gpudojo.authoring.solution_tests import *  # noqa: F403 - the tests are the same for every day
