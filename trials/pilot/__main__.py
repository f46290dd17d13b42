"""`python -m trials.pilot FOLDER`: the agent of the pilot in this folder."""

import sys
from pathlib import Path

from trials.pilot.agent import run_agent

if __name__ == "__main__":
    run_agent(Path(sys.argv[1]))
