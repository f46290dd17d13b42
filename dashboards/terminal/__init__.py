"""Terminal views: live table, headline, progress, rank diagram."""
