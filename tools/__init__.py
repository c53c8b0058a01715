"""Developers' tools: fitting the clock, probing a GPU, making facts about operators.

They are not in the wheel.
"""
