"""Two runs: where their outputs part, and what a difference of their scores is made of."""
