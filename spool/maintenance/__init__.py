"""What an open space does for itself: it reclaims files, compacts what is fragmented, and merges tombstones."""
