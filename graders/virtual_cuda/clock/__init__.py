"""The modelled clock: how long a GPU would take for what a ledger recorded."""
