"""The service against its own openapi.json: every response matches the document."""

from __future__ import annotations

from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import load_all_checks
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode

from tests.orchestrator.service.asking import served

pytestmark = pytest.mark.slow

EXAMPLES = 7
"""An operation; together they take a few seconds."""

CONFIG = {
    "generation": {"allow-x00": True, "deterministic": True},
    "checks": {
        # A text that is no search file fits its description all the same, and so does an id of no search.
        "positive_data_acceptance": {"expected-statuses": [200, 201, 202, 400, 404, 409]},
        # Too long a text is most often too large a body, which is not even read.
        "negative_data_rejection": {"expected-statuses": [400, 401, 403, 404, 405, 409, 413, 415]},
    },
}


@pytest.fixture
def described(own_home, tmp_path, monkeypatch):
    """A service with one search that has ended; submitted searches are not driven, since only the interface is
    fuzzed."""
    with served(own_home, tmp_path) as service:
        search = service.submitted()
        service.ended(search)
        monkeypatch.setattr("orchestrator.service.supervisor.DriverSupervisor.iterate", lambda self: None)
        config = SchemathesisConfig.from_dict(CONFIG)
        yield service, search, schemathesis.openapi.from_asgi("/openapi.json", service.app, config=config)


@pytest.mark.timeout(300)
def test_every_answer_is_one_that_its_description_has(described):
    service, search, schema = described
    load_all_checks()
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 11
    for operation in operations:
        _fuzz(operation.as_strategy())
        if [*operation.iter_parameters(), *operation.body]:
            _fuzz(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
        if "{search}" in operation.path:
            _fuzz(operation.as_strategy(path_parameters={"search": search}))
    statuses = Counter(line.split()[-3] for line in service.log)
    assert {"200", "202", "400", "404"} <= set(statuses), statuses
    assert statuses.total() > 100  # of 11 operations, at EXAMPLES or fewer each and for each way of asking


def _fuzz(strategy) -> None:
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(case=strategy)
    def answers(case):
        case.call_and_validate()

    answers()
