"""`python -m trials.pilot FOLDER`: the agent of the pilot in this folder."""

import sys
from pathlib import Path

from trials.pilot.agent import serve

if __name__ == "__main__":
    serve(Path(sys.argv[1]))
