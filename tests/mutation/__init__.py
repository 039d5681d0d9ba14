"""Does the suite notice when a flush, a lock, a verification or a second look is left out? ``scripts/mutate`` asks."""
