"""Tests over generated inputs: Hypothesis draws a case, the test compares the tool's result with the real package, and
a failing case is shrunk and printed.

    @generated(200)                     # the number of cases that CI can run in a minute
    @given(case=cases())                # `cases` is a composite strategy: its parts shrink one by one
    def test_random_names_are_resolved(case): ...

CI draws the same cases each time. `tests/generated.sh SECONDS [PATTERN]` draws new ones, prints the seed of each round,
and stops at the first failure. `SHARDINIT_GENERATED_SEED=N` repeats a round.
"""

import os

from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: F401 (`given` is for tests)

SEED = int(os.environ.get("SHARDINIT_GENERATED_SEED", "0"))


def generated(cases):
    """Marks a test to run this number of cases, with CI's seed or the environment's. Nothing depends on time."""
    limits = settings(max_examples=cases, deadline=None, database=None, derandomize=False,
                      print_blob=True, report_multiple_bugs=False,
                      phases=[Phase.explicit, Phase.generate, Phase.shrink],
                      suppress_health_check=list(HealthCheck))
    return lambda test: seed(SEED)(limits(test))
