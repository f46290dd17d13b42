"""Terminal views: live table, event lines, headline, progress, rank diagram."""
