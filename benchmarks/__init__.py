"""Scripts that measure, each printing one table of ratios from one run; README.md lists them."""
