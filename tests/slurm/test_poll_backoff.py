from slurm.poll_backoff import LONGEST_INTERVAL_S, PollPace


def test_a_quick_controller_is_asked_at_the_floor():
    pace = PollPace(30.0)
    pace.answered(0.2)
    assert pace.interval_s == 30.0


def test_a_slow_controller_is_asked_less_often():
    pace = PollPace(30.0)
    pace.answered(12.0)
    assert pace.interval_s == 60.0
    pace.answered(0.2)
    assert pace.interval_s == 30.0


def test_one_that_does_not_answer_is_asked_ever_less_often_until_it_does():
    pace = PollPace(30.0)
    intervals = []
    for _ in range(6):
        pace.failed()
        intervals.append(pace.interval_s)
    assert intervals == [60.0, 120.0, 240.0, 300.0, 300.0, 300.0]
    pace.answered(0.1)
    assert pace.interval_s == 30.0


def test_a_question_that_ran_into_its_limit_counts_as_slow():
    pace = PollPace(1.0)
    pace.failed(took_s=30.0)
    assert pace.interval_s == 150.0


def test_a_floor_above_the_longest_interval_is_kept():
    pace = PollPace(2 * LONGEST_INTERVAL_S)
    pace.failed()
    assert pace.interval_s == 2 * LONGEST_INTERVAL_S
