"""Developers' tools: fitting the clock, probing a GPU, making facts about operators. Not in the wheel."""
