"""How does a cluster grade a class? Each submission is sent to a worker, which runs it as one machine would.

Nothing here is imported unless `dojo grade --scheduler` asks for it; it needs the extra `cluster`.
"""
