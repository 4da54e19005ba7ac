"""Ops that are functions of other ops: one definition serves every device, and has gradients of every order."""
