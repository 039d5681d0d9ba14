"""The rounds of one route, one after the other: what is claimed next and when it pauses, apart from doing it."""
