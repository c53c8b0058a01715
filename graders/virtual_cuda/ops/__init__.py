"""What is known about operators: kernels, placement, waits, refusals, memory."""
