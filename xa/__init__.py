"""Who decides: resource manager, transaction manager, adapters to two-phase commit conventions."""
