import pytest

from slurm.poll_backoff import LONGEST_INTERVAL_S, PollBackoff


@pytest.mark.parametrize(
    ("floor_s", "answers_s", "interval_s"),
    [
        (30.0, [0.2], 30.0),
        (30.0, [12.0], 60.0),
        (30.0, [None] * 3, 240.0),
        (30.0, [None] * 6, LONGEST_INTERVAL_S),
        (30.0, [None] * 6 + [0.1], 30.0),
        (2 * LONGEST_INTERVAL_S, [None], 2 * LONGEST_INTERVAL_S),
    ],
)
def test_a_slow_controller_is_asked_less_often_and_a_silent_one_ever_less(floor_s, answers_s, interval_s):
    backoff = PollBackoff(floor_s)
    for took_s in answers_s:
        if took_s is None:
            backoff.failed()
        else:
            backoff.answered(took_s)
    assert backoff.interval_s == interval_s


def test_a_question_that_ran_into_its_limit_counts_as_slow():
    backoff = PollBackoff(1.0)
    backoff.failed(took_s=30.0)
    assert backoff.interval_s == 150.0
