"""One run: its request, its four steps, and its reports."""
