"""What does a notebook's reader see of a check? Verdicts, reasons, hints, and what each line moved where."""
