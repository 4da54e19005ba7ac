"""What a call or a file may hold: kinds of arguments, sizes, dtypes, and schemas of stored state.

Checks are made of annotations and declarations, once; whoever reads values from outside asks here.
"""
