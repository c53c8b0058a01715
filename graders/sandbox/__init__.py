"""Where does untrusted code run? In a forked child of a warm process, fenced in by every layer this machine has.

Only `child` and what it calls run student code. `nursery` is the warm process, `keeper` its handle in the grader.
"""
