"""The virtual CUDA device: tensors, dispatch, memory, streams, generators."""
