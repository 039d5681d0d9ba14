"""Every kind of file of a space is damaged in every way, one at a time: what the space, check and repair make of it."""
