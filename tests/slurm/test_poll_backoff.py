from slurm.poll_backoff import LONGEST_INTERVAL_S, PollBackoff


def test_a_quick_controller_is_asked_at_the_floor():
    backoff = PollBackoff(30.0)
    backoff.answered(0.2)
    assert backoff.interval_s == 30.0


def test_a_slow_controller_is_asked_less_often():
    backoff = PollBackoff(30.0)
    backoff.answered(12.0)
    assert backoff.interval_s == 60.0
    backoff.answered(0.2)
    assert backoff.interval_s == 30.0


def test_one_that_does_not_answer_is_asked_ever_less_often_until_it_does():
    backoff = PollBackoff(30.0)
    intervals = []
    for _ in range(6):
        backoff.failed()
        intervals.append(backoff.interval_s)
    assert intervals == [60.0, 120.0, 240.0, 300.0, 300.0, 300.0]
    backoff.answered(0.1)
    assert backoff.interval_s == 30.0


def test_a_question_that_ran_into_its_limit_counts_as_slow():
    backoff = PollBackoff(1.0)
    backoff.failed(took_s=30.0)
    assert backoff.interval_s == 150.0


def test_a_floor_above_the_longest_interval_is_kept():
    backoff = PollBackoff(2 * LONGEST_INTERVAL_S)
    backoff.failed()
    assert backoff.interval_s == 2 * LONGEST_INTERVAL_S
