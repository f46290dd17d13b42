"""The search: config, planning, the search loop, launchers, samplers, recipes, replay, service, command line.
Imported by nothing of ours but tests and benchmarks; `orchestrator.api` is its public face."""
