"""Reader of bash launch scripts: the commands that they would run, without running anything."""
