"""Programs of diagnostic jobs: calibration, fabric check, node probe. They time what ranks reach, and no layout."""
