"""A checker of silence: each setting of each public callable changes something that can be seen, or is refused.

    found.py    finds the public callables, and their settings: parameters that have a default
    values.py   other values than the default, from the annotation, the default and the name
    seen.py     calls, and what can be seen of a call: values, dtypes, gradients, state, files, printed lines
    ops.py, layers.py, training.py    base calls of each callable
    reasons.py  settings that are meant to change nothing that this checker sees, each with its reason

tests/test_silence.py runs it. A new callable or a new setting is found by itself; what it lacks is said in the failure.
"""
