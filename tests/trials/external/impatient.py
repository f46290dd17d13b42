"""The supervisor with a clock that jumps at the second step to three seconds before the hang limit: `python -m
tests.trials.external.impatient SPEC_PATH`."""

from __future__ import annotations

import sys

from trials.external.log_follower import trainer_hang_limit_s
from trials.external.measurement import LogMeasurement
from trials.external.program import main
from trials.trainers.common.trainer_log import TrainerStep

_take = LogMeasurement._take


def _take_and_wait(measurement: LogMeasurement, step: TrainerStep) -> None:
    _take(measurement, step)
    if measurement.num_steps == 2:
        measurement._report.last_progress -= trainer_hang_limit_s(measurement._spec.measure) - 3.0


if __name__ == "__main__":
    LogMeasurement._take = _take_and_wait  # type: ignore[method-assign]
    main(sys.argv[1:])
