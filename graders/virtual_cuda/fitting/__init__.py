"""Records of what programs took on a GPU, and the fit of a GPU's figures to them."""
