"""How far the virtual device agrees with a real GPU: recorded snippets, a runner, a comparison."""
