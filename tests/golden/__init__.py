"""Kept records of alpha's behaviour: public names, texts of wrong calls, hashes of training steps.

    python -m tests.golden            compares the records with the code, and prints a diff
    python -m tests.golden --write    writes them anew; the diff of the files is what a reviewer reads

`api.txt`, `wrong_calls.txt` and the part of `steps.json` that holds on every machine are compared by the suite too.
"""
