"""Workers: a function is called with each message, and what it returns or raises decides what becomes of that."""
