"""Workers: they call a function with each message; its result or exception decides the effect on the message."""
