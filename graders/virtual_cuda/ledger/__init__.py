"""The ledger: what happened on a device, with file and line, and questions about it. No torch."""
