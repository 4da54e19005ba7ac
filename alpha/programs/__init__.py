"""programs: what the command `alpha` runs."""
