"""Checks of calls and of files: kinds of arguments, sizes, dtypes, and schemas of stored state.

Checks are made of annotations and declarations, once; code that reads values from outside asks here.
"""
