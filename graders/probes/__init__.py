"""How is student code looked at? Scenarios, and the calling of student functions under the ledger."""
