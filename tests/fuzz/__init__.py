"""Random attacks; `python -m tests.fuzz` runs them."""
