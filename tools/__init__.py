"""Programs for work on the repository itself; they are not installed."""
