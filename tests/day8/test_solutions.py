"""Every right solution of day8 passes, every wrong one gets its diagnosis, and every check has a wrong solution."""

from tests.solutions import (
    pytest_generate_tests,
    shared_names_put_back,
    test_a_right_solution_passes,
    test_a_wrong_solution_gets_its_diagnosis,
    test_every_check_has_an_enemy,
    test_every_function_has_four_right_spellings_and_the_points_add_up,
)

__all__ = [
    "pytest_generate_tests",
    "shared_names_put_back",
    "test_a_right_solution_passes",
    "test_a_wrong_solution_gets_its_diagnosis",
    "test_every_check_has_an_enemy",
    "test_every_function_has_four_right_spellings_and_the_points_add_up",
]
