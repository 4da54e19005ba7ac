"""Random cases against the parts that take input from outside: python -m tests.fuzz --minutes 10.

A target is a module tests/fuzz/<name>.py with one function:

    def attempt(rng: random.Random, folder: pathlib.Path) -> str: ...

It makes one case out of rng, in milliseconds, and returns a line that describes it. `folder` is empty and its own.
What may happen it catches itself (AlphaError, mostly); whatever it raises is a finding, and so is a case that takes
too long, takes too much memory or ends the process. A module may set SECONDS and MIB, its limits of one case.
"""
