"""Everything that is patched in torch while the virtual device is open."""
