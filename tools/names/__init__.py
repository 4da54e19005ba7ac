"""Public names, written from the definitions: `python -m tools.names`, or with --check a comparison.

`@public(...)` (alpha.core.table) stands at the definition of an op or a function of alpha.ops, and says under which
names it is offered. This program reads the definitions, and writes the lists of names between two comments in the files
of `lists.LISTS`: imports and `__all__` of alpha, alpha.ops, alpha.nn and alpha.nn.functional, the typed signatures,
the methods of Tensor, the layers that keep channels, and the operators of ONNX. The lists are plain code: importing
alpha looks for nothing.
"""
