"""Sub-commands of `alpha` beside training: predict, evaluate, export; compare.

Each module has `main(argv)`, which returns the exit status; errors are alpha's own, and the command tells them.
"""
