"""Workers call a function with each message. The function's result or exception decides the effect on the message."""
