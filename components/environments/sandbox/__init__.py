"""Code that a model wrote -> what it printed, its value or its error; within limits, and with nothing else in reach."""
