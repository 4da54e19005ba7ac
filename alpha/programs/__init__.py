"""What the command `alpha` does with a run that was trained: predict, evaluate, export.

Each module has `main(argv)`, which returns the exit status; errors are alpha's own, and the command tells them.
"""
