"""Functions of the dialects as terms of an SMT solver, so that claims about them can be proved for all values at once.

Integers are mathematical integers: what leaves 32 bits is outside of every claim, as it is outside of the executable
semantics (dialects/semantics), which raise an error there. Nothing here imports z3 before it is needed.
"""
