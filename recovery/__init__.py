"""What happened while nobody looked: start-up scan, in-doubt resolution, check and repair."""
