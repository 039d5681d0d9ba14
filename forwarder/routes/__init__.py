"""The rounds of one route, one after the other, apart from what a round does; and whether a cluster can run them."""
