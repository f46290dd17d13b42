"""parlay serve (docs/service.md): REST, live pages, drivers of several searches."""
