"""Tests over generated inputs: Hypothesis draws a case, a test compares what the tool makes of it with
the real thing, and what fails is shrunk and printed.

    @generated(200)                     # as many cases as a minute in CI has room for
    @given(case=cases())                # `cases` is a composite strategy: its parts shrink one by one
    def test_generated_names(case): ...

CI draws the same cases each time. `tests/generated.sh SECONDS [PATTERN]` draws new ones, prints the
seed of each round, and ends at the first that fails: `SHARDINIT_GENERATED_SEED=N` repeats a round.
"""

import os

from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: F401 (`given` is for tests)

SEED = int(os.environ.get("SHARDINIT_GENERATED_SEED", "0"))


def generated(cases):
    """Marks a test: so many cases, of CI's seed or the environment's. Nothing else changes with time."""
    limits = settings(max_examples=cases, deadline=None, database=None, derandomize=False,
                      print_blob=True, report_multiple_bugs=False,
                      phases=[Phase.explicit, Phase.generate, Phase.shrink],
                      suppress_health_check=list(HealthCheck))
    return lambda test: seed(SEED)(limits(test))
