"""What happened while no process had the space open: start-up scan, in-doubt resolution, check and repair."""
