"""A plan in a training loop of one's own: a call for each batch, or a scheduler of torch's kind."""
