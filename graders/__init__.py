"""gpudojo: exercises in GPU programming, and the benches and checks that grade them."""

__version__ = "0.1.0"
